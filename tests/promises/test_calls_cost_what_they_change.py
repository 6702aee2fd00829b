"""A public call costs what it changes: of all calls, over open sequences, the sequence's own length and cached blocks, which ones grow.

Counted in lines that the interpreted build runs, of which the compiled one has every one; never in time. A call that `GROWS` does not
name takes as many lines beside 64 open sequences as beside 4, with 130 blocks of its own as with 10, and beside 300 cached blocks as
beside 40. One that it names does grow, so that the table is neither short nor stale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
from public_calls import World, make_uses
from round_count import RoundCount
from small_models import BYTES_PER_TOKEN, attention_layers, run_prompt

from kv_cache_manager_v2 import (
    BatchPageTable,
    DecodeBatch,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCache,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    is_compiled,
)

BLOCK = 4
SLOT_BYTES = 2 * BYTES_PER_TOKEN * BLOCK
PROMPT_BLOCKS = 20
MOST_BLOCKS = 140
IS_COMPILED = "compiled code has no lines to count; its lines are those of the interpreted build"


@dataclass(frozen=True)
class Size:
    num_open: int = 4
    own_blocks: int = 10
    cached_blocks: int = 40


BASE: Final = Size()
LARGER: Final = {"open sequences": Size(num_open=64), "own length": Size(own_blocks=130), "cached blocks": Size(cached_blocks=300)}
FEW_LINES: Final = 50
"""That a call may take more in the larger state, as where an array is made longer, or a search by halves (`can_finish`) takes eight times
six. Lines that run once for each sequence or block more are 60 and up."""

GROWS: Final[dict[str, dict[str, str]]] = {
    "open sequences": {
        "KVCacheManager.open_kv_caches (property)": "a list of them",
        "KVCacheManager.shutdown": "what they have published is cached, and dropped",
        "PrometheusExporter.collect": "their states are counted",
        "PrometheusExporter.update": "the same",
    },
    "own length": {
        "KVCache.suspend": "each page is unlocked, its index is bad",
        "KVCache.resume": "each page is locked, its index is good again",
        "KVCache.prefetch": "each page is looked at",
        "KVCache.close": "each page is released",
        "KVCache.rewind": "the pages are released, and those of the tokens that stay are matched anew",
        "KVCache.fork": "each page is shared",
        "KVCache.beam_width=": "each page is shared",
        "KVCache.take_changed_blocks": "a new sequence's blocks have all changed",
        "KVCache.committed_tokens (property)": "a list of them",
        "KVCache.get_block_levels": "an entry a block",
        "KVCache.get_block_slots": "an entry a block",
    },
    "cached blocks": {"KVCacheManager.shutdown": "each cached block is dropped"},
}
EVERYTHING: Final = {
    "KVCacheManager.clear_reusable_blocks": "each cached block is dropped, and the path of each open sequence is its own from then on",
    "KVCacheManager.invalidate_reuse_scope": "the same for the blocks of that scope; the test's have all the same one",
    "KVCacheManager.check_invariants": "for tests and for looking, never for a step",
    "KVCacheManager.describe": "for looking, never for a step",
    "KVCacheEventManager.snapshot": "all that is cached, for a router that comes late",
}
"""These grow with all three."""


class SizedWorld(World):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.opened: list[KVCache] = []

    @property
    def config(self) -> KVCacheManagerConfig:
        quotas = [2000 * SLOT_BYTES, 64 * SLOT_BYTES]
        tiers: list[Any] = [GpuCacheTierConfig(quotas[0], EvictionPolicy.LRU), HostCacheTierConfig(quotas[1], EvictionPolicy.LRU)]
        return self._once("config", lambda: KVCacheManagerConfig(BLOCK, tiers, attention_layers([None, 8], BLOCK)))

    @property
    def manager(self) -> KVCacheManager:
        def make() -> KVCacheManager:
            manager = self._open(self.config, event_manager=KVCacheEventManager(10_000))
            for number in range(self.size.cached_blocks // PROMPT_BLOCKS):
                run_prompt(manager, range(1000 * (number + 1), 1000 * (number + 1) + PROMPT_BLOCKS * BLOCK)).close()
            self.opened += [run_prompt(manager, [100 + number, 1, 2, 3, 4]) for number in range(self.size.num_open)]
            return manager

        return self._once("manager", make)

    def run_own(self, first_token: int) -> KVCache:
        """With tokens that no other sequence has, all committed but the last two blocks of its room."""
        tokens = list(range(first_token, first_token + (self.size.own_blocks - 2) * BLOCK - 2))
        return self._run(self.manager, tokens, self.size.own_blocks * BLOCK)

    @property
    def active(self) -> KVCache:
        return self._once("active", lambda: self.run_own(20_000))

    @property
    def suspended(self) -> KVCache:
        def make() -> KVCache:
            kv_cache = self.run_own(40_000)
            kv_cache.suspend()
            return kv_cache

        return self._once("suspended", make)

    @property
    def with_input(self) -> KVCache:
        tokens = list(range(60_000, 60_000 + self.size.own_blocks * BLOCK))
        kv_cache = self.manager.create_kv_cache(input_tokens=tokens)
        assert kv_cache.resume() and kv_cache.resize(len(tokens))
        return kv_cache

    def wide_table(self) -> BatchPageTable:
        table = BatchPageTable(self.manager, 4, MOST_BLOCKS)
        table.add(self.active)
        return table

    def decode_batch(self) -> DecodeBatch:
        batch = DecodeBatch(self.manager, 4, MOST_BLOCKS)
        batch.join(self.active)
        return batch


def _closed(world: SizedWorld) -> Callable[[], object]:
    manager = world.manager
    for kv_cache in manager.open_kv_caches:
        kv_cache.close()
    return manager.shutdown


def _invalidating(world: SizedWorld) -> Callable[[], object]:
    world.active.close()
    return world.manager.invalidate_reuse_scope


def _stopped(world: SizedWorld) -> Callable[[], object]:
    world.active.stop_committing()
    return world.active.plan_committed_block_drop


def _half_committed(world: SizedWorld) -> Callable[[], object]:
    kv_cache = world.with_input
    kv_cache.commit_input((world.size.own_blocks - 2) * BLOCK)
    return lambda: kv_cache.commit_input(1)


def _rewinding(world: SizedWorld) -> Callable[[], object]:
    kv_cache = world.active
    return lambda: kv_cache.rewind(1)


def _step(world: SizedWorld, history: int) -> dict[str, Any]:
    return {"capacity": world.active.capacity + 1, "history_length": world.active.history_length + history}


def _batch(world: SizedWorld) -> dict[str, Any]:
    step = _step(world, 0)
    return {"kv_caches": [world.active], "capacities": [step["capacity"]], "history_lengths": [step["history_length"]]}


def _prepare(function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[[], object]:
    return lambda: function(*arguments, **named)


FITTING: Final[dict[str, Callable[[SizedWorld], Callable[[], object]]]] = {
    "KVCacheManager.create_kv_cache": lambda w: _prepare(w.manager.create_kv_cache, None, [1, 2, 3]),
    "KVCacheManager.invalidate_reuse_scope": _invalidating,
    "KVCacheManager.resize_batch": lambda w: _prepare(w.manager.resize_batch, **_batch(w)),
    "KVCacheManager.find_refusal": lambda w: _prepare(w.manager.find_refusal, **_batch(w)),
    "KVCacheManager.shutdown": _closed,
    "KVCache.resume": lambda w: w.suspended.resume,
    "KVCache.prefetch": lambda w: w.suspended.prefetch,
    "KVCache.set_residency_window": lambda w: _prepare(w.suspended.set_residency_window, 0, None),
    "KVCache.rewind": _rewinding,
    "KVCache.resize": lambda w: _prepare(w.active.resize, **_step(w, 1)),
    "KVCache.find_refusal": lambda w: _prepare(w.active.find_refusal, **_step(w, 1)),
    "KVCache.capacity=": lambda w: _prepare(setattr, w.active, "capacity", w.active.capacity + 1),
    "KVCache.history_length=": lambda w: _prepare(setattr, w.active, "history_length", w.active.history_length + 1),
    "KVCache.commit_input": _half_committed,
    "KVCache.commit_tree": lambda w: _prepare(w.active.commit_tree, [7], [w.active.history_length]),
    "KVCache.plan_committed_block_drop": _stopped,
    "KVCache.set_base_page_index_buf": lambda w: _prepare(
        w.active.set_base_page_index_buf, layer_group_id=0, beam_id=0, buf=np.zeros(MOST_BLOCKS, np.int32)
    ),
    "BatchPageTable.add": lambda w: _prepare(BatchPageTable(w.manager, 4, MOST_BLOCKS).add, w.active),
    "BatchPageTable.update": lambda w: _prepare(w.wide_table().update, [2]),
    "DecodeBatch.join": lambda w: _prepare(DecodeBatch(w.manager, 4, MOST_BLOCKS).join, w.active),
    "DecodeBatch.leave": lambda w: _prepare(w.decode_batch().leave, w.active),
    "DecodeBatch.step": lambda w: _prepare(w.decode_batch().step, [7]),
}
"""Calls whose example in `public_calls` fits one length, or another state."""
LEFT_OUT: Final = {
    "KVCacheManager.flush_journal": "needs a journal, whose bytes it writes",
    "KVCacheManager.state_layer_group_id": "needs recurrent layers: a look into a dict",
    "KVCache.get_ssm_block_base_index": "the same",
    "KVCacheManager.take_copies": "needs memory that the engine's workers copy: a look at each open sequence, and at each copy",
    "KVCacheManager.report_copies": "the same: a look at each worker, and at the layout",
    "KVCacheManager.reset_copies": "the same: as clear_reusable_blocks",
}


def count_in(world: SizedWorld, name: str) -> int:
    use = FITTING[name](world) if name in FITTING else make_uses(world)[name]
    with RoundCount() as count:
        use()
    return count.num_lines


@cache
def count_lines(size: Size) -> dict[str, int]:
    """Of each call in a state of its own; properties, which change nothing, in one."""
    shared = SizedWorld(size)
    lines = {name: count_in(shared, name) for name in name_calls() if name.endswith("(property)")}
    shared.close()
    for name in [name for name in name_calls() if name not in lines]:
        world = SizedWorld(size)
        lines[name] = count_in(world, name)
        world.close()
    return lines


@cache
def name_calls() -> list[str]:
    world = SizedWorld(Size(1, 4, 0))
    try:
        return sorted(set(make_uses(world)) - set(LEFT_OUT))
    finally:
        world.close()


@pytest.mark.skipif(is_compiled(), reason=IS_COMPILED)
@pytest.mark.parametrize("axis", LARGER)
def test_a_call_grows_with_what_is_said_and_nothing_else(axis: str) -> None:
    grows = {}
    larger = count_lines(LARGER[axis])
    for name, few in count_lines(BASE).items():
        many = larger[name]
        if many > few + FEW_LINES:
            grows[name] = f"{few} lines, {many} with more {axis}"
    wanted = GROWS[axis] | EVERYTHING
    assert {name: lines for name, lines in grows.items() if name not in wanted} == {}
    assert sorted(wanted.keys() - grows.keys()) == []
