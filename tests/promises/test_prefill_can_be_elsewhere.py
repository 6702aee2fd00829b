"""One machine computes the prompt, another decodes: pages are copied by byte ranges that both agree on, also between splits."""

from collections.abc import Sequence
from typing import Any

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    BufferId,
    CacheTier,
    CopyBatch,
    GpuCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step

T = 4
HEAD_BYTES = 16  # of one head, block and role
NUM_HEADS = 4
NUM_LAYERS = 4
WINDOWS = (None, 8, None, 8)


def config_of_rank(layers: Sequence[int], num_heads: int) -> KVCacheManagerConfig:
    return KVCacheManagerConfig(
        tokens_per_block=T,
        cache_tiers=[GpuCacheTierConfig(64 * len(layers) * 2 * HEAD_BYTES * num_heads)],
        layers=[
            AttentionLayerConfig(
                LayerId(layer),
                [BufferConfig(role, HEAD_BYTES * num_heads) for role in ("key", "value")],
                sliding_window_size=WINDOWS[layer],
            )
            for layer in layers
        ],
    )


class Rank:
    """One process of an engine: some layers, some heads of each block (the heads of a block lie one after another)."""

    def __init__(self, device: SimulatedDevice, layers: Sequence[int], heads: range) -> None:
        self.device = device
        self.layers = layers
        self.heads = heads
        self.manager = KVCacheManager(config_of_rank(layers, len(heads)), device=device)

    def ranges(self, layer: int, role: str, kv_cache: Any) -> list[tuple[int, int]]:
        """(address, bytes) of each block of that buffer, for the blocks that the sequence needs."""
        group = self.manager.get_layer_group_id(LayerId(layer))
        (pages,) = self.manager.get_aggregated_pages([BufferId(LayerId(layer), role)])
        slots = kv_cache.get_aggregated_page_indices(group, valid_only=True)
        return [(pages.base + pages.stride * slot, pages.size) for slot in slots]


def make_ranks(device: SimulatedDevice, tp: int, pp: int) -> list[Rank]:
    heads, layers = NUM_HEADS // tp, NUM_LAYERS // pp
    return [
        Rank(device, range(stage * layers, (stage + 1) * layers), range(part * heads, (part + 1) * heads))
        for stage in range(pp)
        for part in range(tp)
    ]


def transfer(sources: Sequence[tuple[Rank, Any]], targets: Sequence[tuple[Rank, Any]], stream: int) -> int:
    """Every head of every buffer that both sides have, block by block, on ``stream``; the number of copies."""
    count = 0
    for source, from_cache in sources:
        for target, to_cache in targets:
            for layer in set(source.layers) & set(target.layers):
                for head in set(source.heads) & set(target.heads):
                    for role in ("key", "value"):
                        blocks = zip(
                            source.ranges(layer, role, from_cache), target.ranges(layer, role, to_cache), strict=True
                        )
                        for (from_address, from_bytes), (to_address, to_bytes) in blocks:
                            assert from_bytes == HEAD_BYTES * len(source.heads)
                            assert to_bytes == HEAD_BYTES * len(target.heads)
                            batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.GPU_MEM, HEAD_BYTES)
                            batch.add(
                                to_address + (head - target.heads.start) * HEAD_BYTES,
                                from_address + (head - source.heads.start) * HEAD_BYTES,
                            )
                            target.device.copy_batch(stream, batch)
                            count += 1
    return count


SPLITS = [(1, 1), (2, 1), (1, 2)]


@pytest.mark.parametrize("to_split", SPLITS)
@pytest.mark.parametrize("from_split", SPLITS)
def test_decode_goes_on_where_prefill_ended(from_split: tuple[int, int], to_split: tuple[int, int]) -> None:
    """22 tokens in 6 blocks of 4: full attention needs all 6; a window of 8 at 22 reads 15 .. 22, so blocks 3, 4 and 5.

    The model is first run whole (1x1) by the fake engine, whose bytes know layer, role and token; that is moved to the prefill's
    split, from there to the decode's, and back to one rank, where the fake engine checks every byte that the next token reads.
    """
    prompt = list(range(100, 122))
    device = SimulatedDevice(1)
    stream = device.create_stream()
    stages = [make_ranks(device, *split) for split in ((1, 1), from_split, to_split, (1, 1))]
    engine = FakeEngine(config_of_rank(range(NUM_LAYERS), NUM_HEADS), device)
    previous: list[tuple[Rank, Any]] = []
    for number, ranks in enumerate(stages):
        present = []
        for rank in ranks:
            kv_cache = rank.manager.create_kv_cache(input_tokens=prompt)
            assert kv_cache.num_committed_tokens == 0
            assert kv_cache.resume(stream)
            if number == 0:
                assert kv_cache.resize(22, 0)
                engine.execute([Step(kv_cache, prompt, [])])
            else:
                assert kv_cache.resize(22, 22)
                for layer in rank.layers:
                    group = rank.manager.get_layer_group_id(LayerId(layer))
                    slots = kv_cache.get_aggregated_page_indices(group, valid_only=True)
                    assert len(slots) == (6 if WINDOWS[layer] is None else 3)
            present.append((rank, kv_cache))
        if number == 0:
            present[0][1].commit(prompt)
        else:
            assert transfer(previous, present, stream) > 0
            # The copies are enqueued: the other side may go.
            for rank, kv_cache in previous:
                kv_cache.close()
                rank.manager.check_invariants()
            for rank, kv_cache in present:
                kv_cache.commit(prompt)
                rank.manager.check_invariants()
        previous = present
    (last_rank, last), = previous
    assert last.resize(23, 22)
    engine.execute([Step(last, [122], prompt)])
    last.commit([122])
    last.close()
    assert last_rank.manager.probe_reuse(input_tokens=[*prompt, 122, 5]) == 23
    engine.close()
    for ranks in stages:
        for rank in ranks:
            rank.manager.shutdown()
    device.destroy_stream(stream)
    assert not device.races
    device.close()


def test_a_shared_last_block_that_the_window_passes_needs_no_copy() -> None:
    """The other machine fills what comes behind it; the pool is full, and the step's one page is the one that it frees."""
    layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64), BufferConfig("value", 64)], sliding_window_size=2)
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(3 * 128)], [layer], max_util_for_resume=1.0)
    with KVCacheManager(config, device=SimulatedDevice(1)) as manager:
        first = manager.create_kv_cache()
        assert first.resume() and first.resize(6)
        first.commit([1, 2, 3, 4, 5, 6])
        kv_cache = first.fork()
        first.close()  # publishes the partial block 1 for both
        with manager.create_kv_cache() as other:
            assert other.resume() and other.resize(8)  # the two other slots
            # Token 17 reads tokens 16 and 17: of blocks 0 to 4 only block 4 has a page.
            assert kv_cache.resize(17, 17)
            assert [page >= 0 for page in kv_cache.get_base_page_indices(0)] == [False, False, False, False, True]
            manager.check_invariants()
        kv_cache.close()
