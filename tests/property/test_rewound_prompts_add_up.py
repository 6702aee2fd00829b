"""Over random histories with forks, suspends, rewinds and failed reads, requests are the sequences that ran, and hits and misses
their prompts."""

import random
from typing import Any

import pytest
from tiered_models import TOKENS_PER_BLOCK, tiered_config

from kv_cache_manager_v2 import KVCache, KVCacheManager, LoadFailed, PageMoveError, StorageIOError, UsageStatistics
from kv_cache_manager_v2.testing import SimulatedDevice

NUM_CALLS = 150


class Refused(Exception):
    """What the disk says."""


class History:
    """Sequences over three levels, and by handle what was done to each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.device = SimulatedDevice(seed)
        windows = self.random.choice([(None,), (None, 8)])
        self.manager = KVCacheManager(tiered_config(9, [("host", 2), ("disk", 80)], windows=windows), device=self.device)
        self.open: list[KVCache] = []
        self.prompts: dict[int, int] = {}
        """By id, the tokens; of a fork none."""
        self.firsts: dict[int, int] = {}
        """By id, its first token; the others follow in order."""
        self.forks: set[int] = set()
        self.resumes: dict[int, int] = {}
        self.suspends: dict[int, int] = {}
        self.requests: set[int] = set()
        """Ids of those that were given room, and of their forks."""
        self.num_failures = 0
        self.before = self.manager.get_statistics()

    def create(self) -> None:
        first = 1000 * self.random.randrange(6)
        length = self.random.randrange(1, 6 * TOKENS_PER_BLOCK)
        kv_cache = self.manager.create_kv_cache(input_tokens=list(range(first, first + length)))
        self.add(kv_cache, length, first)

    def add(self, kv_cache: KVCache, prompt: int, first: int) -> None:
        self.open.append(kv_cache)
        self.firsts[kv_cache.id] = first
        self.prompts[kv_cache.id] = prompt
        self.resumes[kv_cache.id] = 0
        self.suspends[kv_cache.id] = 0

    def close(self, kv_cache: KVCache) -> None:
        kv_cache.close()
        self.open.remove(kv_cache)
        own = kv_cache.statistics
        assert own.requests == (0 if kv_cache.id in self.forks else 1) and own.resumes == self.resumes[kv_cache.id]
        assert own.prompts.tokens == self.prompts[kv_cache.id]

    def grow(self, kv_cache: KVCache) -> None:
        begin = kv_cache.num_committed_tokens
        end = min(begin + self.random.randrange(1, 12), 8 * TOKENS_PER_BLOCK)
        if begin < end and kv_cache.resize(end, begin):
            self.requests.add(kv_cache.id)
            first = self.firsts[kv_cache.id]
            kv_cache.commit(list(range(first + begin, first + end)))

    def act(self) -> None:
        choice = self.random.random()
        if not self.open or (choice < 0.15 and len(self.open) < 5):
            self.create()
            return
        kv_cache = self.random.choice(self.open)
        if choice < 0.25:
            self.close(kv_cache)
        elif choice < 0.35:
            kv_cache.rewind(self.random.randrange(kv_cache.num_committed_tokens + 1))
        elif not kv_cache.is_active:
            if kv_cache.resume(None, self.random.random() < 0.5):
                self.resumes[kv_cache.id] += 1
        elif choice < 0.55:
            kv_cache.suspend()
            self.suspends[kv_cache.id] += 1
        elif choice < 0.65 and len(self.open) < 6:
            fork = kv_cache.fork()
            self.forks.add(fork.id)
            if kv_cache.id in self.requests:
                self.requests.add(fork.id)
            self.add(fork, 0, self.firsts[kv_cache.id])
        elif choice < 0.8:
            bool(kv_cache.ready)
        else:
            self.grow(kv_cache)

    def recover(self) -> None:
        """A sequence that has lost pages is rewound, closed, or left for later."""
        for kv_cache in list(self.open):
            try:
                if kv_cache.is_active:
                    bool(kv_cache.ready)
            except LoadFailed as error:
                self.num_failures += 1
                choice = self.random.random()
                if choice < 0.5:
                    kv_cache.rewind(error.first_bad_token)
                elif choice < 0.7:
                    self.close(kv_cache)

    def check(self) -> None:
        now = self.manager.get_statistics()
        assert now.prompts.tokens == sum(now.prompts.hit_tokens) + sum(now.prompts.missed_tokens.values())
        for name, number in flat(now).items():
            assert number >= flat(self.before).get(name, 0), f"{name} went back"
        self.before = now

    def run(self) -> None:
        for _ in range(NUM_CALLS):
            if self.random.random() < 0.2:
                # A batch that fails is read again page by page.
                for nth in range(1, self.random.randrange(2, 7)):
                    self.device.faults.fail("disk_read", nth, Refused("unreadable"))
            try:
                self.act()
            except LoadFailed:
                self.num_failures += 1
                self.recover()
            except (PageMoveError, StorageIOError):
                self.recover()
            self.check()
        self.device.faults.clear()
        for kv_cache in list(self.open):
            self.close(kv_cache)
        self.manager.check_invariants()
        self.check()
        usage = self.manager.get_statistics()
        ran = self.requests - self.forks
        assert usage.requests == len(ran)
        assert usage.prompts.tokens == sum([self.prompts[number] for number in ran])
        assert usage.resumes == sum([self.resumes[number] for number in self.requests])
        assert usage.suspends == sum([self.suspends[number] for number in self.requests])
        for _ in range(100):
            try:
                self.device.drain()
                break
            except StorageIOError:
                pass  # of a read that no call has waited for
        self.manager.shutdown()
        self.device.close()


def flat(usage: UsageStatistics) -> dict[Any, int]:
    counts: dict[Any, int] = {"requests": usage.requests, "resumes": usage.resumes, "suspends": usage.suspends}
    counts |= {("hit", level): tokens for level, tokens in enumerate(usage.prompts.hit_tokens)}
    counts |= {("missed", cause): tokens for cause, tokens in usage.prompts.missed_tokens.items()}
    counts |= {("dropped", drop.level, drop.reason): drop.blocks for drop in usage.drops}
    for group in usage.layer_groups:
        for name in ("allocated", "reused_full", "reused_partial", "missed", "generated"):
            counts[(name, group.layer_group_id)] = getattr(group, name)
    return counts


@pytest.mark.parametrize("seed", range(12))
def test_requests_are_what_ran(seed: int) -> None:
    history = History(seed)
    history.run()


def test_reads_do_fail() -> None:
    histories = [History(seed) for seed in range(12)]
    for history in histories:
        history.run()
    assert sum([history.num_failures for history in histories]) > 10
