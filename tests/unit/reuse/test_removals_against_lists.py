"""A removal history answers what plain lists of eight entries to a bucket answer."""

import random
from dataclasses import dataclass

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.reuse.removal_history import FIRST_DROPPED, IN_OTHER_SCOPE, IS_HERE, NOT_KNOWN, SCOPE_MASK, RemovalHistory

WAYS = 8
LAST_TIME = (1 << 34) - 1


@dataclass
class Entry:
    prefix: int
    scope: int
    state: int
    time: int


class PlainHistory:
    def __init__(self, num_entries: int) -> None:
        self.most_buckets = 1
        while self.most_buckets * WAYS < num_entries:
            self.most_buckets *= 2
        self.buckets: list[list[Entry]] = [[]]
        self.turns = [0]
        self.keeps_one_each = False
        self.time = 0

    def record(self, prefix: int, scope: int, state: int) -> None:
        if len(self.buckets) < self.most_buckets and self.time % 2 == 1:
            self.add_bucket()
        number = self.number_of(prefix)
        bucket = self.buckets[number]
        place = self.choose(bucket, prefix, scope) if self.keeps_one_each else self.turns[number]
        if not self.keeps_one_each:
            self.turns[number] = (place + 1) % WAYS
        entry = Entry(prefix, scope, state, self.time)
        if place == len(bucket):
            bucket.append(entry)
        else:
            bucket[place] = entry
        self.time = min(self.time + 1, LAST_TIME)

    def number_of(self, prefix: int) -> int:
        span = 1 << (len(self.buckets) - 1).bit_length()
        number = prefix % span
        return number if number < len(self.buckets) else number - span // 2

    def add_bucket(self) -> None:
        """One more takes its part of an older one's entries, as they were written."""
        parted = len(self.buckets) - (1 << len(self.buckets).bit_length() - 1)
        turn = self.turns[parted] if len(self.buckets[parted]) == WAYS else 0
        entries = self.buckets[parted][turn:] + self.buckets[parted][:turn]
        self.buckets.append([])
        self.turns.append(0)
        for number in (parted, len(self.buckets) - 1):
            self.buckets[number] = [entry for entry in entries if self.number_of(entry.prefix) == number]
            self.turns[number] = len(self.buckets[number]) % WAYS

    def choose(self, bucket: list[Entry], prefix: int, scope: int) -> int:
        """Its own place, an empty one, that of the oldest block that is gone, or that of the oldest one."""
        for place, entry in enumerate(bucket):
            if (entry.prefix, entry.scope) == (prefix, scope):
                return place
        if len(bucket) < WAYS:
            return len(bucket)
        gone = [place for place in range(WAYS) if bucket[place].state != IS_HERE]
        return min(gone if gone else range(WAYS), key=lambda place: bucket[place].time)

    def find(self, prefix: int, scope: int) -> int:
        entries = [entry for entry in self.buckets[self.number_of(prefix)] if entry.prefix == prefix]
        own = [entry for entry in entries if entry.scope == scope]
        if own:
            newest = max(own, key=lambda entry: (entry.time, entry.scope, entry.state))
            return newest.state
        return IN_OTHER_SCOPE if entries else NOT_KNOWN


@pytest.mark.parametrize("num_entries, num_buckets", [(0, 1), (1, 1), (8, 1), (9, 2), (16, 2), (17, 4), (100, 16), (128, 16), (129, 32)])
def test_the_number_of_entries_is_a_power_of_two(num_entries: int, num_buckets: int) -> None:
    assert RemovalHistory(num_entries).num_entries == num_buckets * WAYS


@pytest.mark.parametrize("begins_late", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_against_lists(seed: int, begins_late: bool) -> None:
    """In one scope, then in several: each outcome; also where times have reached the last one that an entry can hold."""
    choices = random.Random(seed)
    num_entries = choices.choice((1, 8, 9, 40, 256))
    table, plain = RemovalHistory(num_entries), PlainHistory(num_entries)
    if begins_late:
        table._time = plain.time = LAST_TIME - 200
    prefixes = [choices.getrandbits(62) for _ in range(plain.most_buckets * 14)] + [0, 1]
    scopes = [3]
    for step in range(120):
        if step == 60:
            table.keep_one_each()
            plain.keeps_one_each = True
            scopes = [3, 0, SCOPE_MASK]
        scope = choices.choice(scopes)
        state = choices.choice((IS_HERE, FIRST_DROPPED, FIRST_DROPPED + 3, 255))
        if choices.random() < 0.2:
            run = [choices.choice(prefixes) for _ in range(choices.choice((2, 5, 20, 700)))]
            count = choices.randint(0, len(run))
            table.record_run(vec[i64](run), count, scope, state)
            for prefix in run[:count]:
                plain.record(prefix, scope, state)
        else:
            for _ in range(choices.randint(0, 8)):
                prefix = choices.choice(prefixes)
                table.record(prefix, scope, state)
                plain.record(prefix, scope, state)
        if choices.random() < 0.5:
            for prefix in choices.sample(prefixes, min(len(prefixes), 40)):
                for asked in (3, 0, SCOPE_MASK, 9):
                    assert table.find(prefix, asked) == plain.find(prefix, asked)


def test_memory_comes_with_what_is_recorded() -> None:
    """A bucket of eight entries for each two that are written, however many there may be; fewer than one of a hundred are forgotten."""
    table = RemovalHistory(1 << 19)
    bucket = 2 * WAYS
    choices = random.Random(1)
    prefixes = [choices.getrandbits(62) for _ in range(3000)]
    for count, prefix in enumerate(prefixes, 1):
        table.record(prefix, 0, FIRST_DROPPED)
        assert len(table._words) <= count * bucket // 2 + 1024
    assert [table.find(prefix, 0) for prefix in prefixes].count(FIRST_DROPPED) > 2970
    full = RemovalHistory(8 * WAYS)
    for count in range(1000):
        full.record(count, 0, FIRST_DROPPED)
    assert full.find(999, 0) == FIRST_DROPPED and len(full._words) <= 1024


def test_the_first_entry_is_known_beside_another_scope_s() -> None:
    table = RemovalHistory(WAYS)
    table.keep_one_each()
    for scope in (0, 1):
        table.record(7, scope, IS_HERE)
    assert table.find(7, 0) == IS_HERE
