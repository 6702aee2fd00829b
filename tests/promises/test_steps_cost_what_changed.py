"""A call costs what it changes, not what there is: counted in objects, bytes, device calls and tokens read, never in time.

The number of cached blocks, the length of the sequence, the size of the tier and the number of layer groups do not show where
nothing of theirs changes. Objects are those of the Python allocator and of the garbage collector.
"""

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, overload

import kv_cache_manager_v2
import numpy as np
import pytest
from forwarding_device import ForwardingDevice
from small_models import config_of, manager_of, run_prompt
from tiered_models import Bench, tiered_config

from kv_cache_manager_v2 import CopyBatch, DecodeBatch, HostDevice, KVCache, KVCacheManager, ReuseScope

BLOCK = 4
WINDOWS: dict[int, list[int | None]] = {1: [None], 2: [None, 8], 4: [None, 8, 16, 12]}


class CountingDevice(ForwardingDevice):
    """A host device that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def record_event(self, stream: int) -> int:
        self.calls["record_event"] += 1
        return super().record_event(stream)

    def wait_event(self, stream: int, event: int) -> None:
        self.calls["wait_event"] += 1
        super().wait_event(stream, event)

    def is_event_done(self, event: int) -> bool:
        self.calls["is_event_done"] += 1
        return super().is_event_done(event)

    def start_timer(self, stream: int) -> int:
        self.calls["start_timer"] += 1
        return super().start_timer(stream)

    def read_timer(self, timer: int) -> float:
        self.calls["read_timer"] += 1
        return super().read_timer(timer)

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        self.calls["copy"] += int(batch.count)
        super().copy_batch(stream, batch)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self.calls["fill"] += 1
        super().fill(stream, address, num_bytes, value)


class CountingTokens(Sequence[int]):
    """Tokens that know how often each of them was read."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.num_read = 0
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, position: int) -> int: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[int]: ...

    def __getitem__(self, position: int | slice) -> int | Sequence[int]:
        self.num_read += 1 if isinstance(position, int) else len(self._tokens[position])
        return self._tokens[position]

    def __iter__(self) -> Iterator[int]:
        for token in self._tokens:
            self.num_read += 1
            yield token


def prompt_of(number: int, num_blocks: int) -> list[int]:
    """Texts of different numbers share nothing."""
    return list(range(1_000_000 * number, 1_000_000 * number + num_blocks * BLOCK))


def decode(kv_cache: KVCache, num_steps: int) -> None:
    for step in range(num_steps):
        kv_cache.resize(kv_cache.capacity + 1)
        kv_cache.commit([500_000_000 + step])


def peak_bytes_of_decode(num_cached: int, num_own: int) -> int:
    """The most memory that is alive at once in 3 blocks of decode steps, beyond what there was before."""
    with manager_of(WINDOWS[2], BLOCK, num_slots=4 * (num_cached + num_own) + 64) as manager:
        if num_cached > 0:
            run_prompt(manager, prompt_of(1, num_cached)).close()
        kv_cache = run_prompt(manager, prompt_of(2, num_own))
        decode(kv_cache, 2 * BLOCK)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            decode(kv_cache, 3 * BLOCK)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
            kv_cache.close()


@pytest.mark.parametrize(("num_cached", "num_own"), [(2000, 4), (0, 1100), (2000, 1100)])
def test_a_decode_step_needs_the_same_memory_whatever_is_cached_and_however_long(num_cached: int, num_own: int) -> None:
    """Three new blocks are a few hundred bytes each; a copy or a walk of all 1,100 blocks would be 8,800 and more."""
    # A page table that gets 1,100 blocks at once has room for 1,666, so it does not grow in these steps: 1,100 + 550 + 16.
    assert peak_bytes_of_decode(num_cached, num_own) <= peak_bytes_of_decode(0, 4) + 1000


def count_objects_of_decode(num_steps: int) -> int:
    with manager_of(WINDOWS[2], tokens_per_block=64, num_slots=64) as manager:
        kv_cache = run_prompt(manager, [1])
        decode(kv_cache, 4)
        gc.collect()
        before = sys.getallocatedblocks()
        decode(kv_cache, num_steps)
        count = sys.getallocatedblocks() - before
        kv_cache.close()
        return count


def test_decode_steps_inside_a_block_leave_no_object_behind() -> None:
    """Steps 5 to 45 of a block of 64; a few objects are the interpreter's own, 40 would be the steps'."""
    assert count_objects_of_decode(40) <= count_objects_of_decode(4) + 8


def count_per_block(num_groups: int, num_blocks: int) -> tuple[float, float]:
    """Allocations and objects of the garbage collector per cached block."""
    with manager_of(WINDOWS[num_groups], BLOCK, num_slots=num_groups * (num_blocks + 8)) as manager:
        run_prompt(manager, prompt_of(1, 4)).close()
        text = prompt_of(2, num_blocks)
        gc.collect()
        allocated, tracked = sys.getallocatedblocks(), len(gc.get_objects())
        run_prompt(manager, text).close()
        gc.collect()
        return (
            (sys.getallocatedblocks() - allocated) / num_blocks,
            (len(gc.get_objects()) - tracked) / num_blocks,
        )


def test_a_cached_block_is_one_object_and_its_key() -> None:
    """Block and key; interpreted also the int that names its first page. The garbage collector sees the block alone."""
    allocated, tracked = count_per_block(2, 500)
    assert allocated <= 3.2
    assert tracked <= 1.1


def test_a_further_layer_group_adds_no_object_to_a_block() -> None:
    """Its page is a row of integers."""
    two, _ = count_per_block(2, 500)
    four, _ = count_per_block(4, 500)
    assert four <= two + 0.2


def test_blocks_are_recycled() -> None:
    """A pool that has been full once makes no objects any more but keys, one for one: 20 prompts, 600 blocks, nothing more."""
    # Open all the time: the stream always has a user, whose leaving would be remembered in an event.
    with manager_of(WINDOWS[2], BLOCK, num_slots=2 * 40) as manager, run_prompt(manager, [1]):
        for number in range(1, 6):
            run_prompt(manager, prompt_of(number, 30)).close()
        gc.collect()
        before = sys.getallocatedblocks()
        for number in range(6, 26):
            run_prompt(manager, prompt_of(number, 30)).close()
        gc.collect()
        # A few numbers beyond the interpreter's small ones; less than one object per prompt.
        assert sys.getallocatedblocks() - before < 20


def count_objects_of_manager(num_slots: int) -> int:
    config = config_of(WINDOWS[2], BLOCK, num_slots)
    device = HostDevice()
    gc.collect()
    before = sys.getallocatedblocks()
    manager = KVCacheManager(config, device=device)
    count = sys.getallocatedblocks() - before
    manager.shutdown()
    return count


def test_a_large_tier_starts_with_no_more_objects_than_a_small_one() -> None:
    count_objects_of_manager(100)
    assert count_objects_of_manager(100_000_000) <= count_objects_of_manager(100) + 40


def calls_of(device: CountingDevice, action: Callable[[], None]) -> Counter[str]:
    before = Counter(device.calls)
    action()
    return device.calls - before


def test_on_one_stream_nothing_is_recorded_awaited_or_copied() -> None:
    """The work of one stream is in order anyway. Prefill, decode, eviction, reuse of whole blocks."""
    device = CountingDevice()
    manager = KVCacheManager(config_of(WINDOWS[2], BLOCK, num_slots=2 * 40), device=device)

    def serve() -> None:
        decode(first, 3 * BLOCK)
        for number in range(2, 5):
            run_prompt(manager, prompt_of(1, 8) + prompt_of(number, 2)).close()

    # The first sequence is open all the time: a stream that has a user need not be looked after.
    with run_prompt(manager, prompt_of(1, 30)) as first:
        assert calls_of(device, serve) == Counter()
    manager.shutdown()


def test_transfers_are_timed_only_on_request() -> None:
    """Two sequences of 6 blocks take turns in 8 slots."""
    numbers = []
    for is_timed in (False, True):
        device = CountingDevice()
        with Bench(tiered_config(8, [("host", 12)]), device) as bench:
            if is_timed:
                bench.manager.time_transfers()
            sequences = [bench.suspended(number, 24) for number in range(2)]
            assert sequences[0].resume()
            for sequence in sequences:
                sequence.close()
            numbers.append(Counter(device.calls))
    untimed, timed = numbers
    assert untimed["start_timer"] == untimed["read_timer"] == 0 < timed["start_timer"]
    # Nothing but timers is asked for more often.
    del timed["start_timer"], timed["read_timer"]
    assert timed == untimed


def test_a_partial_match_copies_one_block_and_nothing_else() -> None:
    """Three tokens of the fifth block: its page in each of the two groups, each of one pool."""
    device = CountingDevice()
    manager = KVCacheManager(config_of(WINDOWS[2], BLOCK, num_slots=200), device=device)
    first = run_prompt(manager, prompt_of(1, 8))
    text = prompt_of(1, 8)[: 4 * BLOCK + 3] + [7, 7, 7]
    calls = calls_of(device, lambda: run_prompt(manager, text).close())
    assert manager.get_storage_statistics()[0].slot_sizes == (2 * 8 * BLOCK,)
    assert calls["copy"] == 2
    first.close()
    manager.shutdown()


def test_each_token_is_read_once() -> None:
    """By a match and by a commit, whether or not they are in the cache, however many blocks they fill."""
    with manager_of(WINDOWS[2], BLOCK, num_slots=200) as manager:
        for _ in range(2):
            tokens = CountingTokens(prompt_of(1, 20))
            manager.probe_reuse(None, tokens)
            assert tokens.num_read == 20 * BLOCK
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(20 * BLOCK)
            tokens = CountingTokens(prompt_of(1, 20))
            kv_cache.commit(tokens)
            assert tokens.num_read == 20 * BLOCK


def test_a_batch_reads_each_number_once() -> None:
    with manager_of(WINDOWS[2], BLOCK, num_slots=200) as manager:
        kv_caches = [run_prompt(manager, prompt_of(number, 2)) for number in range(1, 6)]
        capacities = CountingTokens([2 * BLOCK + number for number in range(1, 6)])
        histories = CountingTokens([2 * BLOCK] * 5)
        assert manager.resize_batch(kv_caches, capacities, histories) == 5
        assert [kv_cache.capacity for kv_cache in kv_caches] == list(capacities)[:5]
        assert histories.num_read == 5
        assert capacities.num_read == 10  # 5 of them just now, by this test
        for kv_cache in kv_caches:
            kv_cache.close()


def test_priorities_are_asked_once_for_each_page_that_is_made() -> None:
    asked: Counter[tuple[int, int]] = Counter()

    def priority(ordinal: int, life_cycle: Any) -> Any:
        asked[ordinal, 0 if life_cycle.window_size is None else life_cycle.window_size] += 1
        return 35

    with manager_of(WINDOWS[2], BLOCK, num_slots=200) as manager:
        with manager.create_kv_cache(custom_priority_callback=priority) as kv_cache:
            assert kv_cache.resume()
            for capacity in range(1, 6 * BLOCK + 1):
                assert kv_cache.resize(capacity)
    assert asked == Counter({(ordinal, window): 1 for ordinal in range(6) for window in (0, 8)})


OURS: tuple[str, ...] = (str(Path(kv_cache_manager_v2.__file__).parent), str(Path(__file__).parent.parent))
STAND_INS = ("mypy_extensions.py", "typing.py")
"""What the interpreted build calls for types that are C's own, and for casts, where compiled code has no call."""


@pytest.mark.parametrize("form", [list, tuple, lambda tokens: np.array(list(tokens), np.int32), lambda tokens: np.array(list(tokens))])
def test_a_request_and_its_steps_run_no_other_python(form: Callable[[range], Any]) -> None:
    """Not an abstract class's `isinstance`, nor a dataclass's hash: one is more work than all else of a small step."""
    foreign: Counter[str] = Counter()

    def look(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and not name.startswith(OURS) and not name.endswith(STAND_INS):
            foreign[frame.f_code.co_qualname] += 1

    prompt, rest, more, last = form(range(60)), form(range(60, 70)), form(range(70, 72)), form(range(72, 73))
    scopes = [ReuseScope(salt=salt) for salt in ("one", "other", "one")]
    with manager_of([None, 8], num_slots=200) as manager:
        run_prompt(manager, range(40)).close()
        batch = DecodeBatch(manager, 4, 40)
        sys.setprofile(look)
        try:
            kv_cache = manager.create_kv_cache(input_tokens=prompt)
            assert kv_cache.resume() and kv_cache.resize(60)
            kv_cache.commit_input()
            assert kv_cache.resize(70)
            kv_cache.commit(rest)
            assert manager.resize_batch([kv_cache], [72]) == 1 and manager.probe_reuse(None, prompt) > 0
            kv_cache.commit(more)
            batch.join(kv_cache)
            assert batch.step() == [] and batch.step(last) == []
            batch.leave(kv_cache)
            kv_cache.close()
            for scope in scopes:
                manager.create_kv_cache(scope, prompt).close()
                assert manager.probe_reuse(scope, prompt) == 0
        finally:
            sys.setprofile(None)
    assert foreign == {}
