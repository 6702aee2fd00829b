"""Each eviction policy against itself written down plainly: any history of calls, the same victims in the same order."""

from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i64
from unit.storage.learned_laws import check_records
from unit.storage.naive_learned import NaiveLearned
from unit.storage.naive_queues import NaiveArc, NaiveLfu, NaiveLru, NaiveQueue, NaiveS3Fifo

from kv_cache_manager_v2.replay.policies.own_policy import make_compared_queue
from kv_cache_manager_v2.replay.policies.published import COMPARED
from kv_cache_manager_v2.storage.eviction.learned import LearnedQueue, NUM_SENTINELS
from kv_cache_manager_v2.storage.eviction.segment_records import Learning, SegmentRecords
from kv_cache_manager_v2.storage.page_rows import PLACE, ROW_WORDS, PageRows, pack_place
from kv_cache_manager_v2.storage.victim_queue import ContentKeys, VictimQueue

NAIVE = {"lru": NaiveLru, "lfu": NaiveLfu, "arc": NaiveArc, "s3-fifo": NaiveS3Fifo}
NUM_PAGES = 40


class PageNumbers(ContentKeys):
    """A page always comes back with the same content."""

    def content_key(self, page: int) -> int:
        return page * 7919


def naive_queue(policy: str, capacity: int) -> NaiveQueue:
    return NaiveLearned(capacity, PageNumbers().content_key) if policy == "learned" else NAIVE[policy](capacity)


def queue_of(policy: str, rows: PageRows, capacity: int) -> VictimQueue:
    named = {compared.value: compared for compared in COMPARED}
    return make_compared_queue(named[policy], rows, 0, PageNumbers(), capacity, SegmentRecords(Learning(), 1))


class History:
    """Random calls that a storage could make, on a queue and on its naive twin."""

    def __init__(self, policy: str, seed: int, capacity: int, num_priorities: int, num_pages: int = NUM_PAGES) -> None:
        self.random = Random(seed)
        self.rows = PageRows(1, NUM_SENTINELS)
        self.pages = [self.rows.add_block() for _ in range(num_pages)]
        self.queue: VictimQueue = queue_of(policy, self.rows, capacity)
        self.twin = naive_queue(policy, capacity)
        self.capacity = capacity
        self.num_priorities = num_priorities
        self.away = set(self.pages)
        self.used: set[int] = set()
        self.queued: set[int] = set()

    def set_priority(self, page: int, least: int = 0) -> int:
        priority = max(least, self.random.randrange(self.num_priorities))
        self.rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, priority)
        return priority

    def step(self) -> None:
        random = self.random
        kind = random.random()
        if kind < 0.45 and self.away:
            self.come(random.choice(sorted(self.away)))
        elif kind < 0.65 and self.queued:
            page = random.choice(sorted(self.queued))
            self.queue.use(page)
            self.twin.use(page)
            self.queued.remove(page)
            self.used.add(page)
        elif kind < 0.85 and self.used:
            self.let_go(random.choice(sorted(self.used)))
        elif kind < 0.92 and self.queued:
            page = random.choice(sorted(self.queued))
            priority = self.set_priority(page)
            self.queue.requeue(page)
            self.twin.requeue(page, priority)
        elif kind < 0.94 and len(self.queued) > 1:
            page = self.queue.first()
            below = random.choice(sorted(self.queued - {page}))
            self.twin.first()
            # As the storage does: never of a lower priority than the other.
            priority = max(self.rows.priority(page), self.rows.priority(below))
            self.rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, priority)
            self.queue.defer(page, below)
            self.twin.defer(page, priority, below)
        elif kind < 0.96 and self.queued:
            page = random.choice(sorted(self.queued))
            self.queue.remove(page)
            self.twin.remove(page)
            self.leave(page)
        elif self.queued:
            self.evict()

    def come(self, page: int) -> None:
        while len(self.queued) + len(self.used) >= self.capacity and self.queued:
            self.evict()
        if len(self.queued) + len(self.used) < self.capacity:
            self.away.remove(page)
            self.used.add(page)
            self.let_go(page)

    def let_go(self, page: int) -> None:
        priority = self.set_priority(page)
        self.used.remove(page)
        self.queued.add(page)
        if self.random.random() < 0.1:
            self.queue.push_first(page)
            self.twin.push_first(page, priority)
        else:
            self.queue.push(page)
            self.twin.push(page, priority)

    def evict(self) -> None:
        victim = self.queue.first()
        assert victim == self.twin.first()
        assert victim == self.queue.first()
        self.queue.evict(victim)
        self.twin.evict(victim)
        self.leave(victim)

    def leave(self, page: int) -> None:
        self.queued.remove(page)
        self.away.add(page)

    def step_by_runs(self) -> None:
        """Many pages at once, for the twin mostly one by one."""
        random = self.random
        kind = random.random()
        if kind < 0.4 and self.used:
            pages = self.choose(self.used)
            priorities = [self.set_priority(page) for page in pages]
            run = vec[i64](pages)
            if random.random() < 0.2:
                for page, priority in zip(pages, priorities, strict=True):
                    self.twin.push_first(page, priority)
                self.queue.push_run_first(run, len(pages))
            else:
                self.twin.push_run(pages, priorities)
                self.queue.push_run(run, len(pages))
            self.queued.update(pages)
            self.used.difference_update(pages)
        elif kind < 0.7 and self.queued:
            pages = self.choose(self.queued)
            if random.random() < 0.5:  # neighbours, from the last one on
                pages = self.queue.collect()[: len(pages) + random.randrange(5)][: -len(pages) - 1 : -1]
            if isinstance(self.queue, LearnedQueue):  # it takes pages that are used together for one use of them all
                for page in pages:
                    self.queue.use(page)
            else:
                self.queue.hold_run(vec[i64](pages), len(pages))
                self.queue.use_held_run(vec[i64](pages), len(pages))
            for page in pages:
                self.twin.use(page)
            self.used.update(pages)
            self.queued.difference_update(pages)
        elif self.queued:
            self.evict_run()

    def evict_run(self) -> None:
        """As far as the queue knows, and some others with them."""
        page = self.queue.first()
        pages = [int(page)]
        following = vec[i64]([0] * self.random.randint(1, 4))
        while len(pages) < 8:
            count = self.queue.list_following(pages[-1], following, 0, len(following))
            pages += list(following)[: int(count)]
            if count < len(following):
                break
        for victim in pages:
            assert victim == self.twin.first()
            self.twin.evict(victim)
            self.queued.remove(victim)
        others = self.choose(self.queued)[:2] if self.queued else []
        for other in others:
            self.twin.evict(other)
        self.queue.evict_run(vec[i64](pages + others), len(pages + others))
        self.queued.difference_update(others)
        self.away.update(pages + others)

    def resize(self, capacity: int) -> None:
        """As a level of another size: what is too much goes first. Nothing where more is in use than would be left."""
        if len(self.used) > capacity:
            return
        while len(self.queued) + len(self.used) > capacity:
            self.evict()
        self.capacity = capacity
        self.queue.set_capacity(capacity)
        self.twin.set_capacity(capacity)

    def choose(self, among: set[int]) -> list[int]:
        pages = sorted(among)
        self.random.shuffle(pages)
        return pages[: self.random.randint(1, len(pages))]

    def check(self) -> None:
        self.queue.check()
        if isinstance(self.queue, LearnedQueue):
            check_records(self.queue.records, self.rows)
        assert self.queue.num_pages == len(self.queued)
        assert set(self.queue.collect()) == self.queued == set(self.twin.queued())
        for page in self.pages:
            assert self.rows.is_queued(page) == (page in self.queued)


@pytest.mark.parametrize("policy", ["learned", *sorted(NAIVE)])
@pytest.mark.parametrize(("capacity", "num_priorities"), [(1, 1), (3, 2), (12, 1), (20, 3), (37, 101)])
def test_same_victims(policy: str, capacity: int, num_priorities: int) -> None:
    for seed in range(4):
        history = History(policy, seed, capacity, num_priorities)
        for _ in range(300):
            history.step()
            history.check()
        while history.queued:
            history.evict()
        for page in sorted(history.used):
            history.let_go(page)
        while history.queued:
            history.evict()
        assert history.queue.first() == -1


@pytest.mark.parametrize("policy", ["learned", *sorted(NAIVE)])
@pytest.mark.parametrize(("capacity", "num_priorities"), [(12, 1), (37, 1), (20, 3), (38, 101)])
def test_runs_are_as_page_by_page(policy: str, capacity: int, num_priorities: int) -> None:
    for seed in range(4):
        history = History(policy, seed, capacity, num_priorities)
        for _ in range(250):
            if history.random.random() < 0.5:
                history.step_by_runs()
            else:
                history.step()
            history.check()


@pytest.mark.parametrize("policy", ["learned", *sorted(NAIVE)])
@pytest.mark.parametrize(("num_pages", "num_priorities", "num_steps"), [(40, 1, 250), (40, 3, 250), (900, 1, 120), (900, 2, 120)])
def test_same_victims_at_other_sizes(policy: str, num_pages: int, num_priorities: int, num_steps: int) -> None:
    """Sizes on both sides of every threshold in `set_capacity`; the laws hold after each call, between two resizes as well."""
    for seed in range(3):
        history = History(policy, seed, num_pages // 2, num_priorities, num_pages)
        for _ in range(num_steps):
            kind = history.random.random()
            if kind < 0.15:
                history.resize(history.random.choice((num_pages // 8, num_pages // 3, num_pages // 2, num_pages)))
            elif kind < 0.2:
                history.resize(history.random.randint(1, num_pages))
            elif kind < 0.6:
                history.step_by_runs()
            else:
                history.step()
                for page in sorted(history.away)[: history.random.randint(0, num_pages // 40)]:
                    history.come(page)
            history.check()


def test_the_next_pages_are_known_among_pages_of_one_priority() -> None:
    history = History("lru", 0, NUM_PAGES, 3)
    for page in history.pages:
        history.come(page)
    line, priority = history.queue.collect(), history.rows.priority
    for position, page in enumerate(line):
        behind = [other for other in line[position + 1 :] if priority(other) == priority(page)]
        listed = vec[i64]([0] * (len(line) + 2))
        assert history.queue.list_following(page, listed, 2, len(listed)) == len(behind)
        assert list(listed) == [0, 0, *behind] + [0] * (len(line) - len(behind))
        assert history.queue.list_following(page, listed, 0, 1) == min(1, len(behind))
