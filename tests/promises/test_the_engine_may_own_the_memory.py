"""Memory may be the engine's: the manager hands out slot numbers and copies nothing. What needs bytes is refused, and says what helps."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from public_calls import BLOCK, CALLS, World, calls_of_class, decode_batch, event_manager, registry
from small_models import attention_layers

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DebugFill,
    DiskCacheTierConfig,
    ExternalCacheTierConfig,
    ExternalDevice,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    ModelId,
    PrometheusExporter,
    SsmLayerConfig,
    StatisticsLog,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.shared.memory_store import MemoryStore
from kv_cache_manager_v2.shared.shared_level import SharedLevel

SETTINGS: dict[str, Any] = {"enable_partial_reuse": False, "allow_seq_rebasing": False}


def external_config(num_slots: int = 64, **settings: Any) -> KVCacheManagerConfig:
    layers = attention_layers([None, 8], BLOCK)
    return KVCacheManagerConfig(BLOCK, [ExternalCacheTierConfig([num_slots])], layers, **{**SETTINGS, **settings})


class ExternalWorld(World):
    make_device = ExternalDevice

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()

    @property
    def manager(self) -> KVCacheManager:
        journal = Path(self._folder.name) / "journal"
        return self._once("manager", lambda: self._open(self.config, event_manager=KVCacheEventManager(100), journal=journal))

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    @property
    def config(self) -> KVCacheManagerConfig:
        return external_config()


def indices(kv_cache: KVCache, group: int = 0) -> list[int]:
    return kv_cache.get_base_page_indices(group).tolist()


def run(manager: KVCacheManager, tokens: list[int]) -> KVCache:
    kv_cache = manager.create_kv_cache(input_tokens=tokens)
    assert kv_cache.resume() and kv_cache.resize(len(tokens))
    kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
    return kv_cache


def test_an_engine_gets_slot_numbers_and_whole_blocks() -> None:
    with KVCacheManager(external_config(8, reserve_null_slot=True)) as manager:
        prompt = list(range(10))
        first = run(manager, prompt)
        # Slot 0 is the null slot. Two groups, three blocks each; the window of 8 begins at 10 + 1 - 8 = 3, in block 0.
        assert sorted(indices(first, 0) + indices(first, 1)) == [1, 2, 3, 4, 5, 6]
        second = manager.create_kv_cache(input_tokens=prompt)
        # Two whole blocks are published; the two tokens behind them cannot be reused.
        assert second.num_committed_tokens == 8
        assert second.resume() and indices(second, 0) == indices(first, 0)[:2]
        second.close()
        first.close()
        assert manager.probe_reuse(None, prompt) == 8
        assert manager.get_storage_statistics()[0].total == 8
        assert manager.get_quota(0) == 0 and not manager.need_adjustment
        assert [pool.base_address for desc in manager.pool_group_descs for pool in desc.pools] == [0]


def test_a_rewound_sequence_writes_into_no_published_block() -> None:
    with KVCacheManager(external_config()) as manager:
        with run(manager, list(range(12))) as kv_cache:
            # Token 10 is inside block 2, which is published: the sequence goes on from the block's begin.
            assert kv_cache.rewind(10) == 8
            assert kv_cache.resume() and kv_cache.resize(12)
            kv_cache.commit([70, 71, 72, 73])
        assert manager.probe_reuse(None, list(range(12))) == 12


def test_blocks_that_are_stale_after_their_step_get_no_slot() -> None:
    """So an engine keeps recurrent state in blocks: a window of two tokens, and a step leaves the state behind its last token."""
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("b", 1)]), AttentionLayerConfig(LayerId(1), [BufferConfig("b", 1)], 2)]
    # Three rewound tokens of a block of four keep the last block that the step fills or begins.
    config = KVCacheManagerConfig(
        BLOCK, [ExternalCacheTierConfig([64])], layers, swa_scratch_reuse=SwaScratchReuseConfig(BLOCK - 1), **SETTINGS
    )
    prompt = list(range(30))
    with KVCacheManager(config) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(5 * BLOCK, 0)
            assert [index >= 0 for index in indices(kv_cache, 1)] == [False] * 4 + [True]
            assert manager.get_storage_statistics()[0].unavailable == 5 + 1
            kv_cache.commit(prompt[: 5 * BLOCK])
            # The next step reads the state of the last one.
            assert kv_cache.resize(8 * BLOCK, 5 * BLOCK)
            assert [index >= 0 for index in indices(kv_cache, 1)] == [False] * 4 + [True, False, False, True]
            kv_cache.commit(prompt[5 * BLOCK :])
        # Thirty tokens are seven whole blocks; behind the fifth there is a state, the sixth and seventh were scratch blocks.
        assert manager.probe_reuse(None, prompt) == 5 * BLOCK
        with manager.create_kv_cache(input_tokens=[*prompt[:23], 99]) as other:
            assert other.num_committed_tokens == 5 * BLOCK


def list_handles(world: World) -> list[Any]:
    """What works with a manager of external memory; leases and pool views are refused."""
    manager = world.manager
    exporter = PrometheusExporter(manager, registry=registry())
    return [manager, world.active, world.table, decode_batch(world), event_manager(world), StatisticsLog(manager), exporter]


def list_names() -> list[str]:
    """Every public call and property of these."""
    world = ExternalWorld()
    try:
        names: list[str] = []
        for handle in list_handles(world):
            cls = type(handle)
            names += [name for name in calls_of_class(cls) if "." in name]
            names += [f"{cls.__name__}.{name}" for name in dir(cls) if name[0] != "_" and not callable(getattr(cls, name))]
        return sorted({*names} - {"KVCacheEventManager.bind", "KVCacheEventManager.require_unbound"})
    finally:
        world.close()


def find_use(world: World, name: str) -> Callable[[], Any]:
    if name in CALLS:
        function, arguments = CALLS[name](world)
        return partial(function, **arguments)
    class_name, _, member = name.partition(".")
    (handle,) = [handle for handle in list_handles(world) if type(handle).__name__ == class_name]
    return getattr(handle, member) if callable(getattr(type(handle), member)) else partial(getattr, handle, member)


REFUSED = {
    "BatchPageTable.add_offset_table": "has no memory",
    "KVCache.beam_width=": "make each beam a sequence of its own",
    "KVCache.commit_tree": "draft a chain",
    "KVCache.fork": "create_kv_cache",
    "KVCache.reserve_transfer": "keep the sequence open",
    "KVCacheManager.adjust": "slot_counts",
    "KVCacheManager.get_aggregated_pages": "has no memory",
    "KVCacheManager.get_mem_pool_base_address": "has no memory",
    "KVCacheManager.pool_view": "has no memory",
    "KVCacheManager.reset_copies": "copy_workers",
    "KVCacheManager.resize": "slot_counts",
}
"""What each refusal says; whatever else there is works."""


@pytest.mark.parametrize("name", list_names())
def test_every_public_call_works_or_says_why_not(name: str) -> None:
    world = ExternalWorld()
    try:
        use = find_use(world, name)
        if name not in REFUSED:
            if name == "KVCacheManager.shutdown":
                for kv_cache in world.manager.open_kv_caches:
                    kv_cache.close()
            elif name == "KVCache.plan_committed_block_drop":
                world.active.stop_committing()
            use()
            return
        before = world.fingerprint()
        with pytest.raises(LogicError, match=REFUSED[name]):
            use()
        assert world.fingerprint() == before
    finally:
        world.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache_tiers": [ExternalCacheTierConfig([64]), HostCacheTierConfig(1 << 20)]}, "2 tiers"),
        ({"cache_tiers": [ExternalCacheTierConfig([64]), DiskCacheTierConfig(1 << 20, "/tmp")]}, "2 tiers"),
        ({"cache_tiers": [ExternalCacheTierConfig([64, 64])]}, "2 numbers.*1 pool groups"),
        ({"cache_tiers": [ExternalCacheTierConfig([1])]}, "1 slots for pool group 0.*2 are needed"),
        ({"write_policy": "through"}, "write_policy"),
        ({"enable_partial_reuse": True}, "enable_partial_reuse"),
        ({"allow_seq_rebasing": True}, "allow_seq_rebasing"),
        ({"initial_pool_ratio": [1.0]}, "initial_pool_ratio"),
        ({"layers": [SsmLayerConfig(LayerId(0), [BufferConfig("state", 64)])]}, "SsmLayerConfig"),
    ],
)
def test_a_configuration_that_needs_bytes_is_refused(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "tokens_per_block": BLOCK, "cache_tiers": [ExternalCacheTierConfig([64])], "layers": attention_layers([None, 8], BLOCK), **SETTINGS,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        KVCacheManager(KVCacheManagerConfig(**{**fields, **changes}))


def test_pool_groups_of_their_own_have_counts_of_their_own() -> None:
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)]), AttentionLayerConfig(LayerId(1), [BufferConfig("key", 32)], 8)]
    config = KVCacheManagerConfig(BLOCK, [ExternalCacheTierConfig([5, 3])], layers, **SETTINGS)
    with KVCacheManager(config) as manager:
        assert [counts.total for counts in manager.get_storage_statistics()] == [5, 3]


def test_memory_and_its_owner_must_agree() -> None:
    device = HostDevice()
    with pytest.raises(ValueError, match="device has memory.*ExternalDevice"):
        KVCacheManager(external_config(), device=device)
    device.close()
    with pytest.raises(ValueError, match="debug_fill is NAN"):
        KVCacheManager(external_config(), debug_fill=DebugFill.NAN)
    with KVCacheManager(external_config()) as manager:
        with pytest.raises(LogicError, match="SharedLevel.*has no memory"):
            SharedLevel(manager, MemoryStore(), ModelId("a model"))


def test_a_journal_is_done_again_without_memory(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with KVCacheManager(external_config(), journal=path) as manager:
        run(manager, list(range(10))).close()
    assert main(["rerun", str(path)]) == 0
