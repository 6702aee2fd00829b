"""A step that copies shared blocks while the pool is all but full: it passes exactly if its copies fit beside what is in use before, and
what is in use afterwards fits; every byte is right, and a device that refuses the copies changes nothing. Each drawn step is tried in
pools of every size, from the least that the sequence fits in, with windows, sinks, committed and private blocks, and blocks that a
lease or a fork has too.
"""

from random import Random

import pytest
from refused_work import Refused, Story
from small_models import config_of

from kv_cache_manager_v2 import HostDevice, KVCacheEventIndex, KVCacheEventManager, KVCacheManager, compute_block_hashes
from kv_cache_manager_v2.testing import SimulatedDevice, Step

BLOCK = 4
Page = tuple[int, int]
"""A window's place in the list, and the ordinal of a block."""


class Draw:
    """A sequence of some tokens, and the step that it takes while another owner has its last blocks."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.seed = seed
        self.windows: list[int | None] = random.choice(([4], [8], [8, 12], [5, 16], [8, None], [4, 8, 12]))
        self.sinks = [None if window is None else random.choice((None, None, 1, 5)) for window in self.windows]
        self.num_tokens = random.randrange(6, 28)
        self.num_committed = random.choice((0, 0, self.num_tokens // 2, self.num_tokens - 1))
        self.first_history = max(self.num_committed, random.choice((0, self.num_tokens // 2, self.num_tokens - 1)))
        self.is_forked = random.random() < 0.3
        num_blocks = -(-self.num_tokens // BLOCK)
        self.first_lent = 0 if self.is_forked else max(num_blocks - random.choice((1, 1, 2, num_blocks)), 0)
        self.history = random.randrange(max(self.first_history, 1), self.num_tokens + 6)
        self.capacity = self.history + random.choice((0, 1, 1, 2, 6))

    def pages(self, history: int, capacity: int) -> set[Page]:
        """What a sequence holds: the sinks' blocks, and those from the next token's window on."""
        found: set[Page] = set()
        for place, (window, sinks) in enumerate(zip(self.windows, self.sinks, strict=True)):
            begin = 0 if window is None else max(history + 1 - window, 0) // BLOCK
            for ordinal in range(-(-capacity // BLOCK)):
                if ordinal >= begin or ordinal * BLOCK < (sinks or 0):
                    found.add((place, ordinal))
        return found

    def count_before(self) -> int:
        return len(self.pages(0, self.num_tokens))

    def lent(self) -> set[Page]:
        # Without a window the owner of a page has those before it, too.
        present = self.pages(self.first_history, self.num_tokens)
        return {page for page in present if page[1] >= self.first_lent or self.windows[page[0]] is None}

    def written(self) -> range:
        """The present blocks that the step writes. Behind the old capacity, what is no input of the step another machine may fill."""
        if self.history == self.capacity <= self.num_tokens:
            return range(0)
        first = max(min(self.history, self.num_tokens), self.num_committed // BLOCK * BLOCK) // BLOCK
        return range(first, -(-min(self.capacity, self.num_tokens) // BLOCK))

    def count_copying(self) -> int:
        """Slots in use once the written blocks are copied, and nothing is released yet."""
        present = self.pages(self.first_history, self.num_tokens)
        return len(present) + len([page for page in present if page[1] in self.written()])

    def count_after(self) -> int:
        """Slots in use: what the other owner has, and what the sequence then holds, of which the blocks that it writes are copies."""
        held = self.pages(self.history, self.capacity)
        return len(held | self.lent()) + len([page for page in held if page[1] in self.written()])

    def try_in(self, num_slots: int) -> bool:
        """Whether the step passes."""
        story = Story(config_of(self.windows, num_slots=num_slots, sinks=self.sinks, max_util_for_resume=1.0), SimulatedDevice(self.seed))
        text = list(range(self.num_tokens))
        kv_cache = story.begin(1, text, 0, self.num_committed)
        assert kv_cache.resize(self.num_tokens, self.first_history)
        fork = kv_cache.fork(id=2) if self.is_forked else None
        lease = kv_cache.reserve_transfer(self.first_lent) if fork is None else None
        before = story.manager.describe()
        story.device.faults.fail("copy", 1, Refused("no copies now"))
        try:
            passed = kv_cache.resize(self.capacity, self.history)
        except Refused:
            # A page that was cached may have been dropped.
            assert self.num_committed > 0 or story.manager.describe() == before
            assert (kv_cache.capacity, kv_cache.history_length) == (self.num_tokens, self.first_history)
            story.check()
            passed = kv_cache.resize(self.capacity, self.history)
            assert passed
        story.device.faults.clear()
        if passed and self.history > self.num_tokens:
            # What lies between is computed elsewhere, and not here.
            story.manager.check_invariants()
            kv_cache.close()
            story.open.remove(kv_cache)
        elif passed:
            inputs = [100 + position for position in range(self.history, self.capacity)]
            story.engine.execute([Step(kv_cache, inputs, text[: self.history])])
            story.texts[1] = text[: self.history] + inputs
        else:
            assert story.manager.describe() == before
        if fork is not None:
            story.texts[2] = text
            story.open.append(fork)
        if lease is not None:
            story.at_end = lease.settle
        story.finish()
        return passed


@pytest.mark.parametrize("seed", range(100))
def test_a_step_passes_where_its_copies_and_what_it_leaves_fit(seed: int) -> None:
    draw = Draw(seed)
    least = max(draw.count_copying(), draw.count_after())
    for num_slots in range(draw.count_before(), max(draw.count_before(), least) + 3):
        assert draw.try_in(num_slots) == (num_slots >= least), (num_slots, least)


@pytest.mark.parametrize(("history", "num_slots"), [(15, 8), (15, 14), (20, 9), (20, 14)])
def test_copies_have_the_priority_that_was_asked_for(history: int, num_slots: int) -> None:
    """Windows of 8 and 12, 11 tokens in 3 blocks, of which a lease has the last, too: it is copied, at 20 for the larger window only. Six
    pages and two copies take 8 slots. At 15 blocks 2 and 3 then have two pages each beside the lease's two; at 20 two and three: 9 slots
    are more than enough."""
    events = KVCacheEventManager(100)
    config = config_of([8, 12], num_slots=num_slots, max_util_for_resume=1.0)
    with KVCacheManager(config, device=HostDevice(), event_manager=events) as manager:
        with manager.create_kv_cache(custom_priority_callback=lambda ordinal, cycle: 5 * ordinal + (cycle.window_size == 12)) as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(11, 10)
            lease = kv_cache.reserve_transfer(2)
            assert kv_cache.resize(history + 1, history)
            kv_cache.commit(range(history + 1))
            lease.settle()
        index = KVCacheEventIndex()
        events.flush_iteration_events()
        index.apply(events.get_latest_events())
        priorities = {}
        for ordinal, name in enumerate(compute_block_hashes(range(history + 1), BLOCK)):
            block = index.find(name)
            for window, (_level, priority) in ({} if block is None else block.places).items():
                priorities[window, ordinal] = priority
    # Of the window of 8, block 2 begins at token 8: at 20 the next token reads 13 to 20.
    assert {2, 3} <= {ordinal for window, ordinal in priorities if window == 1}
    assert ((0, 2) in priorities) is (history == 15)
    for (window, ordinal), priority in priorities.items():
        assert priority == 5 * ordinal + window
