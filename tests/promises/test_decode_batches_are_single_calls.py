"""A step of a `DecodeBatch` is the commits and resizes of its members, one after the other: it decides the same, is recorded so, and
leaves tables as a new `BatchPageTable` would have them; members without room are returned, and a wrong step changes nothing."""

import random
from array import array
from collections import UserList, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_models import config_of, manager_of, run_prompt

from kv_cache_manager_v2 import BatchPageTable, DecodeBatch, HostDevice, KVCacheManager, LogicError, StridedPages
from kv_cache_manager_v2.replay.rerun import rerun

WINDOWS = (None, 8)
FORMS: list[Callable[[list[int]], Any]] = [
    list, tuple, lambda ids: np.array(ids, np.int32), lambda ids: np.array(ids, np.int64), lambda ids: array("i", ids),
    lambda ids: memoryview(array("i", ids)),
]  # fmt: skip


class Outputs:
    """A table with every kind of output."""

    def __init__(self, table: BatchPageTable) -> None:
        self.table = table
        self.blocks = [table.add_block_table(StridedPages(group)) for group in range(2)]
        self.lists = table.add_csr(StridedPages(1))
        self.slots = table.add_slot_mapping(StridedPages(0), 64)
        self.offsets = table.add_offset_table()

    def contents(self) -> list[Any]:
        lengths = [self.table.seq_lens, self.table.query_start_loc, self.table.kv_start_loc]
        lists = [self.lists.indptr, self.lists.indices[: self.lists.num_pages], self.lists.last_page_len]
        arrays: list[Any] = [*lengths, *[one.array for one in self.blocks], *lists, self.slots.tokens, self.offsets.offsets]
        return [one.tolist() for one in arrays]


def contents_of_a_new_table(manager: KVCacheManager, batch: DecodeBatch, members: list[Any], num_inputs: int) -> list[Any]:
    fresh = Outputs(BatchPageTable(manager, 8, 32))
    for kv_cache in sorted(members, key=batch.table.row_of):
        fresh.table.add(kv_cache)
    fresh.table.update([num_inputs] * len(members))
    return fresh.contents()


def step_singly(members: list[Any], tokens: list[int], num_inputs: int) -> list[int]:
    """The same by single calls; which members there was no room for."""
    refused = []
    for row, (kv_cache, token) in enumerate(zip(members, tokens, strict=True)):
        if token >= 0:
            kv_cache.commit([token])
        if not kv_cache.resize(max(kv_cache.capacity, kv_cache.history_length + num_inputs)):
            refused.append(row)
    return refused


def leave(rows: list[int], row: int) -> None:
    """The last one moves into its row."""
    last = rows.pop()
    if row < len(rows):
        rows[row] = last


@pytest.mark.parametrize("num_slots", [44, 400])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_decisions_tables_and_records_as_single_calls(seed: int, num_slots: int, tmp_path: Any) -> None:
    """Members join, leave, are refused, are forked, have priorities of their own; few tokens, so that blocks become equal."""
    rng = random.Random(seed)
    paths = [tmp_path / "singly", tmp_path / "together"]
    config = config_of(WINDOWS, num_slots=num_slots)
    form = FORMS[seed]
    num_refused = 0
    with (
        KVCacheManager(config, device=HostDevice(), journal=paths[0]) as one,
        KVCacheManager(config, device=HostDevice(), journal=paths[1]) as other,
    ):
        batch = DecodeBatch(other, 8, 32)
        outputs = Outputs(batch.table)
        sides: list[list[Any]] = [[], []]
        for side, manager in enumerate((one, other)):
            for number in range(5):
                callback = (lambda ordinal, _life_cycle: 20 + 7 * int(ordinal) % 30) if number == 3 else None
                tokens = [number % 3] * 5 + list(range(number))
                sides[side].append(run_prompt(manager, tokens, custom_priority_callback=callback))
            sides[side].append(sides[side][2].fork())
        outside = list(range(6))
        rows: list[int] = []
        computed: dict[int, bool] = {}
        for step in range(60):
            if outside and rng.random() < 0.5:
                number = outside.pop(rng.randrange(len(outside)))
                assert batch.join(sides[1][number]) == len(rows)
                rows.append(number)
                computed[number] = False
            if rows and rng.random() < 0.1:
                number = rng.choice(rows)
                assert batch.leave(sides[1][number]) == rows.index(number)
                leave(rows, rows.index(number))
                outside.append(number)
            num_inputs = rng.choice((1, 1, 1, 2))
            tokens = [rng.randrange(2) if computed[number] else -1 for number in rows]
            refused = step_singly([sides[0][number] for number in rows], tokens, num_inputs)
            left = batch.step(form(tokens) if rng.random() < 0.9 or max(tokens, default=-1) >= 0 else None, num_inputs)
            assert [kv_cache.id for kv_cache, _ in left] == [sides[0][rows[row]].id for row in refused]
            assert all("slots" in refusal.text for _, refusal in left)
            num_refused += len(refused)
            for row in reversed(refused):
                outside.append(rows[row])
                leave(rows, row)
            for number in rows:
                computed[number] = True
            assert len(batch) == len(rows) and [batch.table.row_of(sides[1][number]) for number in rows] == [*range(len(rows))]
            assert one.state_digest() == other.state_digest(), step
            assert one.describe() == other.describe()
            other.check_invariants()
            assert outputs.contents() == contents_of_a_new_table(other, batch, [sides[1][number] for number in rows], num_inputs)
            if refused:
                # Its token was committed; the engine would preempt it. Room comes from one that ends.
                for kv_caches, manager in zip(sides, (one, other), strict=True):
                    victim = outside[-1]
                    kv_caches[victim].close()
                    kv_caches[victim] = run_prompt(manager, [step, victim])
                computed[victim] = False
        for kv_caches in sides:
            for kv_cache in kv_caches:
                kv_cache.close()
        digest = one.state_digest()
        assert other.state_digest() == digest
    assert (num_refused > 0) == (num_slots == 44)
    assert rerun(paths[1], HostDevice(), check_invariants=True).digest == digest
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_members_without_room_leave_with_their_refusal() -> None:
    """6 slots: 4 sequences with a full block each, so 2 get another. The last two are refused, and rows 0 and 1 stay."""
    with manager_of(num_slots=6) as manager:
        batch = DecodeBatch(manager, 4, 8)
        kv_caches = [run_prompt(manager, [number] * 4) for number in range(4)]
        for kv_cache in kv_caches:
            batch.join(kv_cache)
        left = batch.step()
        assert [kv_cache for kv_cache, _ in left] == kv_caches[2:]
        assert all(refusal.asked == 1 and refusal.free == 0 for _, refusal in left)
        assert [kv_cache.capacity for kv_cache in kv_caches] == [5, 5, 4, 4]
        assert batch.table.seq_lens.tolist() == [5, 5, 0, 0] and len(batch) == 2
        left[0][0].close()
        assert batch.join(left[1][0]) == 2 and batch.step() == []
        for kv_cache in kv_caches:
            kv_cache.close()


def widen(kv_cache: Any) -> int:
    kv_cache.beam_width = 2
    return 2


WRONG: list[tuple[str, type[Exception], Callable[[DecodeBatch, list[Any]], Any]]] = [
    ("too few tokens", ValueError, lambda b, s: b.step([1, 2])),
    ("too many tokens", ValueError, lambda b, s: b.step([1, 2, 3, 4])),
    ("a token under -1", ValueError, lambda b, s: b.step(np.array([1, 2, -2], np.int32))),
    ("a token under -1 in a list", ValueError, lambda b, s: b.step([1, 2, -2])),
    ("a token beyond 32 bits", ValueError, lambda b, s: b.step([1, 2, 2**31])),
    ("a token beyond 32 bits in an array", ValueError, lambda b, s: b.step(np.array([1, 2, 2**31]))),
    ("a token beyond 64 bits", ValueError, lambda b, s: b.step([1, 2, 2**70])),
    ("tokens in two dimensions", ValueError, lambda b, s: b.step(np.zeros((3, 1), np.int32))),
    ("tokens of a wrong type", TypeError, lambda b, s: b.step(np.zeros(3))),  # type: ignore[arg-type]
    ("a digest", TypeError, lambda b, s: b.step([1, 2, b"digest"])),
    ("text", TypeError, lambda b, s: b.step("abc")),  # type: ignore[arg-type]
    ("a number", TypeError, lambda b, s: b.step(7)),  # type: ignore[arg-type]
    ("no inputs", ValueError, lambda b, s: b.step([1, 2, 3], 0)),
    ("inputs of a wrong type", TypeError, lambda b, s: b.step([1, 2, 3], 1.0)),  # type: ignore[arg-type]
    ("more inputs than the slot mapping has room for", ValueError, lambda b, s: b.step([1, 2, 3], 22)),
    ("more blocks than the table has room for", ValueError, lambda b, s: b.step([1, 2, 3], 20)),
    ("a token without room", ValueError, lambda b, s: (s[2].commit([7]), b.step([1, 2, 3]))),
    ("a suspended member", LogicError, lambda b, s: (s[2].suspend(), b.step([1, 2, 3]))),
    ("a suspended member without a token", LogicError, lambda b, s: (s[2].suspend(), b.step([1, 2, -1]))),
    ("a closed member", LogicError, lambda b, s: (s[2].close(), b.step([1, 2, 3]))),
    ("a member that commits no more", LogicError, lambda b, s: (s[2].stop_committing(), b.step([1, 2, 3]))),
    ("a member with beams", LogicError, lambda b, s: (widen(s[2]), b.step([1, 2, 3]))),
    ("a member with beams, without a token", LogicError, lambda b, s: (widen(s[2]), b.step([1, 2, -1]))),
    ("a member twice", ValueError, lambda b, s: b.join(s[0])),
    ("more members than rows", ValueError, lambda b, s: (b.join(s[3]), b.join(s[3].fork()))),
    ("no member", ValueError, lambda b, s: b.leave(s[3])),
    ("a sequence of no type", TypeError, lambda b, s: b.join(3)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("error", "call"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_step_changes_nothing(error: type[Exception], call: Callable[[DecodeBatch, list[Any]], Any]) -> None:
    """The first two members' steps are small and right; they are taken before the third is looked at."""
    with manager_of(WINDOWS) as manager:
        batch = DecodeBatch(manager, 4, 5)
        outputs = Outputs(batch.table)
        kv_caches = [run_prompt(manager, [number] * 5) for number in range(4)]
        for kv_cache in kv_caches[:3]:
            batch.join(kv_cache)
        assert batch.step() == []
        contents = outputs.contents()
        seen: list[Any] = []
        state = [(one.committed_tokens, one.capacity, one.history_length) for one in kv_caches[:2]]
        with pytest.raises(error) as caught:
            seen.append(call(batch, kv_caches))
        assert seen == [] and str(caught.value)
        assert [(one.committed_tokens, one.capacity, one.history_length) for one in kv_caches[:2]] == state
        assert outputs.contents() == contents
        manager.check_invariants()
        for kv_cache in manager.open_kv_caches:
            kv_cache.close()


def test_what_a_callback_raises_midway_leaves_the_rows_before() -> None:
    """The second member begins a block, and its callback raises. The first has moved, the third has not, and its token is not committed."""
    is_asked = False
    batch: Any = None

    def refuse(_ordinal: Any, _life_cycle: Any) -> int:
        if is_asked:
            with pytest.raises(LogicError):
                batch.leave(kv_caches[0])
            raise KeyError("not now")
        return 50

    with manager_of() as manager:
        batch = DecodeBatch(manager, 4, 8)
        kv_caches = [run_prompt(manager, [1] * 5), run_prompt(manager, [2] * 3, custom_priority_callback=refuse)]
        kv_caches.append(run_prompt(manager, [3] * 5))
        for kv_cache in kv_caches:
            batch.join(kv_cache)
        assert batch.step() == []
        is_asked = True
        with pytest.raises(KeyError):
            batch.step([7, 8, 9])
        found = [(one.num_committed_tokens, one.capacity, one.history_length) for one in kv_caches]
        assert found == [(6, 7, 6), (4, 4, 4), (5, 6, 5)]
        assert kv_caches[2].committed_tokens == [3] * 5
        manager.check_invariants()
        is_asked = False
        assert batch.step([-1, -1, 9]) == []
        assert [one.capacity for one in kv_caches] == [7, 5, 7]
        for kv_cache in kv_caches:
            kv_cache.close()


def test_forks_of_one_block_must_say_the_same() -> None:
    with manager_of() as manager:
        batch = DecodeBatch(manager, 4, 8)
        parent = run_prompt(manager, [1] * 5)
        assert parent.resize(7)
        child = parent.fork()
        batch.join(parent)
        batch.join(child)
        before = manager.describe()
        with pytest.raises(ValueError, match="share"):
            batch.step([6, 7])
        assert manager.describe() == before
        assert batch.step([6, 6]) == []
        assert batch.step([7, 8]) == [], "the step before was a resize, which parted them"
        assert parent.committed_tokens[5:] == [6, 7] and child.committed_tokens[5:] == [6, 8]
        manager.check_invariants()
        parent.close()
        child.close()


def test_a_fork_beside_a_member_of_as_many_tokens_and_fewer_blocks() -> None:
    with manager_of() as manager:
        batch = DecodeBatch(manager, 4, 8)
        full = run_prompt(manager, [1] * 4)
        parent = run_prompt(manager, [1] * 4)
        assert parent.resize(6)
        child = parent.fork()
        for kv_cache in (full, parent, child):
            batch.join(kv_cache)
        assert batch.step([-1, 6, 6]) == []
        assert [one.num_committed_tokens for one in (full, parent, child)] == [4, 5, 5]
        manager.check_invariants()
        for kv_cache in (full, parent, child):
            kv_cache.close()


@pytest.mark.parametrize("make", [list, tuple, deque, UserList, lambda ids: range(ids[0], ids[0] + 2), lambda ids: array("q", ids)])
def test_any_sequence_of_ints_has_tokens(make: Callable[[list[int]], Any]) -> None:
    with manager_of() as manager:
        batch = DecodeBatch(manager, 2, 8)
        members = [manager.create_kv_cache() for _ in range(2)]
        for kv_cache in members:
            assert kv_cache.resume()
            batch.join(kv_cache)
        batch.step()
        batch.step(make([7, 8]))
        assert [kv_cache.num_committed_tokens for kv_cache in members] == [1, 1]
        for kv_cache, token in zip(members, [7, 8], strict=True):
            kv_cache.close()
            assert manager.probe_reuse(None, [token]) == 1


def test_a_batch_without_members_does_nothing() -> None:
    with manager_of() as manager:
        batch = DecodeBatch(manager, 4, 8)
        assert batch.step() == [] and batch.step([]) == [] and len(batch) == 0
        foreign = DecodeBatch(manager, 4, 8)
        with manager_of() as other, run_prompt(other, [1]) as kv_cache, pytest.raises(ValueError, match="another manager"):
            foreign.join(kv_cache)
    with pytest.raises(LogicError):
        batch.step()
