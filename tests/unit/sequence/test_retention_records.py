"""What `RetentionRecords` keeps of retained blocks, bounded by the blocks and not by the calls, and what their priorities are when."""

from math import inf
from random import Random

import pytest
from small_models import attention_layers, manager_of, run_prompt

from kv_cache_manager_v2 import GpuCacheTierConfig, KVCacheManager, KVCacheManagerConfig, RetentionConfig, TokenRangeRetention
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.sequence.retention_records import NO_CLOCK, SECONDS

T = 4


@pytest.mark.parametrize("durations", [[1000.0], [None], [None, 1000.0], [1000.0, inf, None]], ids=str)
def test_retaining_again_and_again_keeps_no_more(durations: list[float | None]) -> None:
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(16 * 2 * 8 * T)], attention_layers([None], T))
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
        # Enough returns for the policy to expect more of them.
        for turn in range(60):
            tokens = list(range(turn % 3, turn % 3 + 3 * T))
            with manager.create_kv_cache(None, tokens) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(len(tokens))
                kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
        records = manager._shared.claims.retention
        for position in range(500):
            manager.retain(tokens, duration_seconds=durations[position % len(durations)])
            assert durations != [None] or records.num_expected > 0, "the policy expects nothing"
        # An end of each of 3 blocks, as many void ones, and 64 that are spared.
        assert sum([len(ends) for ends in records._ends]) <= 64 + 2 * 3
        assert records.num_expected == sum([len(ends) for ends in records._ends[1:]])
        manager.check_invariants()


class Entry:
    """A block that is retained; ``end``: by the clock, None until it is released."""

    def __init__(self, block: Block, life: int, priority: int, clock: int, end: int | None) -> None:
        self.block = block
        self.life = life
        self.priority = priority
        self.clock = clock
        self.end = end


class PlainRecords:
    """The rules of `RetentionRecords` over rows and priorities; ``lives``: how often a row has been published."""

    def __init__(self, max_pinned: int) -> None:
        self.max_pinned = max_pinned
        self.now = 0
        self.timed: dict[int, Entry] = {}
        self.pins: dict[int, Entry] = {}
        self.lives: dict[int, int] = {}
        self.priorities: dict[int, int] = {}
        """By row of the blocks that there are."""

    def is_there(self, entry: Entry) -> bool:
        row = int(entry.block.first_page)
        return row in self.priorities and self.lives[row] == entry.life

    def pin(self, block: Block, priority: int, clock: int, end: int | None) -> bool:
        row = int(block.first_page)
        if row not in self.pins or not self.is_there(self.pins[row]):
            if len(self.pins) >= self.max_pinned:
                self.pins = {at: entry for at, entry in self.pins.items() if self.is_there(entry)}
                if len(self.pins) >= self.max_pinned:
                    return False
        self.pins.pop(row, None)
        self.timed.pop(row, None)
        entry = Entry(block, self.lives[row], priority, clock, end)
        self.pins[row] = entry
        self.priorities[row] = priority
        if end is not None:
            self.timed[row] = entry
        return True

    def publish(self, block: Block, priority: int, duration: int | None) -> None:
        row = int(block.first_page)
        self.lives[row] = self.lives.get(row, 0) + 1
        self.priorities[row] = priority
        if duration is not None:
            self.timed[row] = Entry(block, self.lives[row], priority, SECONDS, self.now + duration)

    def release(self, block: Block, priority: int) -> None:
        row = int(block.first_page)
        self.pins.pop(row, None)
        self.timed.pop(row, None)
        self.priorities[row] = priority

    def end(self, clocks: dict[int, int]) -> None:
        for row, entry in list(self.timed.items()):
            if entry.clock in clocks and entry.end is not None and entry.end <= clocks[entry.clock]:
                del self.timed[row]
                if self.pins.get(row) is entry:
                    del self.pins[row]
                if self.is_there(entry) and self.priorities[row] == entry.priority:
                    self.priorities[row] = 35


@pytest.mark.parametrize("seed", range(12))
def test_priorities_end_with_the_last_word_of_each_block(seed: int) -> None:
    """Blocks are retained and released, published with durations, raised by others and gone; time passes by each of the clocks."""
    random = Random(seed)
    windows = [None] if seed % 2 else [None, 8]
    with manager_of(windows, T, 200, max_pinned_share=0.03) as manager:
        records = manager._shared.claims.retention
        storage = manager._shared.storage
        plain = PlainRecords(int(200 * 0.03))
        blocks: list[Block] = []
        texts = 0
        for _ in range(220):
            draw = random.random()
            if not blocks or draw < 0.08:
                texts += 1
                prompt = [1000 * texts + position for position in range(T * random.randint(1, 3))]
                seconds = random.choice((None, 2.0, 30.0))
                priority = random.choice((35, 35, 50, 80))
                retention = RetentionConfig([TokenRangeRetention(0, None, priority, seconds)])
                kv_cache = run_prompt(manager, prompt, retention=retention)
                found = kv_cache._state_for_batch().blocks
                for block in found:
                    plain.publish(block, priority, None if seconds is None else int(seconds * 1_000_000))
                blocks += found
                kv_cache.close()
                # A request that ends looks at the clocks of the pool groups.
                plain.end({1: int(storage.level_orders[0].clock)})
            elif draw < 0.12:
                manager.clear_reusable_blocks()
                blocks = []
                plain.priorities = {}
            elif draw < 0.5:
                block, priority = random.choice(blocks), random.choice((0, 35, 50, 80, 100))
                clock = random.choice((NO_CLOCK, SECONDS, SECONDS, 1))
                end = plain.now + random.choice((0, 1, 3_000_000)) if clock == SECONDS else random.choice((0, 0, 1))
                expected = plain.pin(block, priority, clock, None if clock == NO_CLOCK else end)
                assert records.pin(block, priority, clock, end) is expected
            elif draw < 0.6:
                block, priority = random.choice(blocks), random.choice((0, 35))
                plain.release(block, priority)
                records.release(block, priority)
            elif draw < 0.7:
                block = random.choice(blocks)
                plain.priorities[int(block.first_page)] = 90
                for number in range(len(windows)):
                    if storage.rows.has_page(block.first_page + number):
                        storage.set_priority(block.first_page + number, storage.pool_group_of[number], 90)
            elif draw < 0.85:
                microseconds = random.choice((1, 1_000_000, 2_000_000, 40_000_000))
                plain.now += microseconds
                records.advance(microseconds)
                plain.end({SECONDS: plain.now})
            else:
                records.end_expected()
                plain.end({1: int(storage.level_orders[0].clock)})
            assert records.now_us == plain.now
            for block in blocks:
                expected_priority = plain.priorities[int(block.first_page)]
                pages = [block.first_page + number for number in range(len(windows)) if storage.rows.has_page(block.first_page + number)]
                assert pages and all(storage.rows.priority(page) == expected_priority for page in pages)
            assert len(records._pins) == len(plain.pins) and len(records._timed) == len(plain.timed)
            assert records.num_expected == len(records._ends[1]) >= sum(entry.clock == 1 for entry in plain.timed.values())
            assert sum(len(ends) for ends in records._ends) <= 64 + 2 * max(len(plain.timed), 1)
        manager.check_invariants()
