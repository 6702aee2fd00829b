"""A batch call does what the single calls would do in its order, decides the same, and changes nothing if one entry is wrong."""

import random
from typing import Any

import numpy as np
import pytest
from small_models import config_of, manager_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, LogicError
from kv_cache_manager_v2.replay.rerun import rerun

WINDOWS = (None, 8)


def open_running(manager: KVCacheManager, count: int) -> list[Any]:
    """Sequences of unequal length, so that their blocks begin and end at different steps; some share a prompt."""
    return [run_prompt(manager, [number % 3] * 5 + list(range(number))) for number in range(count)]


@pytest.mark.parametrize("form", [list, tuple, lambda numbers: np.array(numbers, np.int32), lambda numbers: np.array(numbers, np.int64)])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_decisions_as_single_calls(seed: int, form: Any) -> None:
    rng = random.Random(seed)
    dumps = []
    with manager_of(WINDOWS, num_slots=400) as one, manager_of(WINDOWS, num_slots=400) as other:
        singly, together = open_running(one, 9), open_running(other, 9)
        for _ in range(12):
            chosen = rng.sample(range(9), 6)
            # Few tokens, so that blocks of several sequences become equal and are taken over.
            tokens = [rng.randrange(2) for _ in chosen]
            for position in chosen:
                assert singly[position].resize(singly[position].capacity + 1)
            for position, token in zip(chosen, tokens, strict=True):
                singly[position].commit([token])
            listed = [together[position] for position in chosen]
            assert other.resize_batch(listed, form([kv_cache.capacity + 1 for kv_cache in listed])) == 6
            other.commit_batch(listed, form(tokens))
            assert one.state_digest() == other.state_digest()
            other.check_invariants()
        for manager, kv_caches in ((one, singly), (other, together)):
            dumps.append([(kv_cache.committed_tokens, kv_cache.history_length, kv_cache.capacity) for kv_cache in kv_caches])
            for kv_cache in kv_caches:
                kv_cache.close()
        assert dumps[0] == dumps[1]
        assert one.state_digest() == other.state_digest()


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_that_stops_midway_has_done_what_single_calls_had(seed: int, tmp_path: Any) -> None:
    """Too few slots, priority callbacks of which one in six raises, histories that move, wrong entries, forks: the same decisions and the
    same dumps as single calls up to the first that fails; both journals run again."""
    is_last = [False, False]

    def make_callback(side: int) -> Any:
        def ask(ordinal: Any, _life_cycle: Any) -> int:
            if is_last[side]:
                raise KeyError("not now")
            return 20 + 7 * int(ordinal) % 30

        return ask

    rng = random.Random(seed)
    paths = [tmp_path / "singly", tmp_path / "together"]
    config = config_of(WINDOWS, num_slots=40)
    outcomes = set()
    with (
        KVCacheManager(config, device=HostDevice(), journal=paths[0]) as one,
        KVCacheManager(config, device=HostDevice(), journal=paths[1]) as other,
    ):
        sides: list[list[Any]] = [[], []]
        for side, manager in enumerate((one, other)):
            for number in range(6):
                callback = make_callback(side) if number % 3 == 2 else None
                sides[side].append(run_prompt(manager, [number] * (number + 2), custom_priority_callback=callback))
            sides[side].append(sides[side][4].fork())
        for _ in range(60):
            chosen = rng.sample(range(7), rng.randrange(1, 8))
            capacities = [max(0, sides[0][number].capacity + rng.choice((1, 1, 1, 2, 5, -2))) for number in chosen]
            histories = [min(c, sides[0][number].history_length + rng.randrange(3)) for number, c in zip(chosen, capacities, strict=True)]
            raises = rng.random() < 1 / 6
            is_last[:] = [raises, raises]
            before = other.describe()
            outcome: Any
            try:
                outcome = other.resize_batch([sides[1][number] for number in chosen], capacities, histories)
            except (ValueError, KeyError) as error:
                outcome = type(error)
            if outcome is ValueError:
                assert other.describe() == before
            else:
                done: Any = 0
                try:
                    for number, capacity, history in zip(chosen, capacities, histories, strict=True):
                        if not sides[0][number].resize(capacity, history):
                            break
                        done += 1
                except KeyError:
                    done = KeyError
                assert outcome == done
            is_last[:] = [False, False]
            outcomes.add(outcome if not isinstance(outcome, int) else outcome == len(chosen))
            assert one.state_digest() == other.state_digest()
            assert one.describe() == other.describe()
            other.check_invariants()
            if outcome is False or rng.random() < 0.2:
                for kv_caches in sides:
                    kv_caches[chosen[0]].suspend()
                    assert kv_caches[chosen[0]].resume()
        assert {True, False, ValueError} <= outcomes
        for kv_caches in sides:
            for kv_cache in kv_caches:
                kv_cache.close()
        digest = one.state_digest()
        assert other.state_digest() == digest
    for path in paths:
        assert rerun(path, HostDevice()).digest == digest


@pytest.mark.parametrize("num_slots", [20, 400])
def test_a_step_that_begins_a_block_decides_as_one_that_is_planned(num_slots: int) -> None:
    """Where a user's callback is asked for priorities each step is planned, and the default, 35, changes nothing else. One block at a
    time, with windows and sinks, until the pool is full and beyond: equal slots, equal dumps, equal figures."""
    settings: Any = {"num_slots": num_slots, "sinks": (None, 4, None)}
    with manager_of((None, 8, 1), **settings) as plain, manager_of((None, 8, 1), **settings) as planned:
        opened: list[Any] = []
        for manager, callback in ((plain, None), (planned, lambda _ordinal, _life_cycle: 35)):
            prompts = [[number] * (3 + 2 * number) for number in range(3)]
            kv_caches = [run_prompt(manager, prompt, custom_priority_callback=callback) for prompt in prompts]
            for step in range(30):
                kv_cache = kv_caches[step % 3]
                if kv_cache.resize(kv_cache.capacity + 3, kv_cache.history_length + step % 4):
                    kv_cache.commit([step] * (step % 5 // 2))
                manager.check_invariants()
            opened += kv_caches
        assert plain.state_digest() == planned.state_digest()
        assert plain.describe() == planned.describe()
        assert plain.get_statistics() == planned.get_statistics()
        for kv_cache in opened:
            kv_cache.close()


def test_room_that_ends_midway_stops_there() -> None:
    """7 slots, 5 of them taken, 4 sequences with a full block each: 2 of them get another. What comes behind the refused one
    stays, small or not."""
    with manager_of(num_slots=7) as manager:
        kv_caches = [run_prompt(manager, [number] * 4) for number in range(4)]
        small = run_prompt(manager, [9] * 2)
        assert manager.resize_batch([*kv_caches, small], [5, 5, 5, 5, 3]) == 2
        assert [kv_cache.capacity for kv_cache in [*kv_caches, small]] == [5, 5, 4, 4, 2]
        assert manager.resize_batch([small, kv_caches[2]], [3, 5]) == 1
        assert (small.capacity, kv_caches[2].capacity) == (3, 4)
        manager.check_invariants()


def test_histories_move_too() -> None:
    with manager_of(WINDOWS) as manager:
        first, second = run_prompt(manager, [1] * 6), run_prompt(manager, [2] * 6)
        assert first.resize(8) and second.resize(8)
        assert manager.resize_batch([first, second], [8, 30], [7, 20]) == 2
        assert (first.history_length, second.history_length, second.capacity) == (7, 20, 30)
        manager.check_invariants()


def test_wrong_numbers_take_back_what_was_moved() -> None:
    """The first one's step is good and small, and it is taken before the second is looked at."""
    with manager_of() as manager:
        small, second = run_prompt(manager, [1] * 5), run_prompt(manager, [2] * 6)
        assert small.resize(6, 5)
        before = manager.describe()
        wrong: list[tuple[type[Exception], Any, Any]] = [
            (ValueError, [7, 5], None), (ValueError, [7, 8], [6, 5]), (ValueError, [7, -1], None), (ValueError, [7, 2**41], None),
            (ValueError, [7, 2**70], None), (TypeError, [7, 8.0], None), (TypeError, [7, "8"], None), (TypeError, [7, None], None),
            (ValueError, [7], None), (ValueError, [7, 8], [6]),
        ]  # fmt: skip
        for error, capacities, histories in wrong:
            with pytest.raises(error):
                manager.resize_batch([small, second], capacities, histories)
            assert manager.describe() == before
        second.suspend()
        before = manager.describe()
        with pytest.raises(LogicError):
            manager.resize_batch([small, second], [7, 8], [6, 6])
        assert manager.describe() == before


def test_a_callback_that_raises_stops_the_batch_where_it_stands() -> None:
    """The third asks for a block, and its user's callback raises: those before it have moved, small or not, the fourth has not."""
    is_asked = False

    def refuse(_ordinal: Any, _life_cycle: Any) -> int:
        if is_asked:
            raise KeyError("not now")
        return 50

    with manager_of() as manager:
        kv_caches = [run_prompt(manager, [1] * 5), run_prompt(manager, [2] * 4)]
        kv_caches += [run_prompt(manager, [3] * 4, custom_priority_callback=refuse), run_prompt(manager, [4] * 5)]
        is_asked = True
        with pytest.raises(KeyError):
            manager.resize_batch(kv_caches, [7, 5, 5, 7], [6, 5, 5, 6])
        assert [(kv_cache.capacity, kv_cache.history_length) for kv_cache in kv_caches] == [(7, 6), (5, 5), (4, 4), (5, 5)]
        manager.check_invariants()


@pytest.mark.parametrize(
    ("error", "tokens"),
    [
        (ValueError, [1]),
        (ValueError, [1, 2, 3]),
        (ValueError, [1, -2]),
        (ValueError, [1, 2**31]),
        (ValueError, [1, 2**70]),
        (ValueError, np.array([1, -2], np.int32)),
        (TypeError, [1, b"digest"]),
        (TypeError, [1, "x"]),
        (TypeError, 7),
    ],
)
def test_wrong_tokens_change_nothing(error: type[Exception], tokens: Any) -> None:
    with manager_of() as manager:
        kv_caches = [run_prompt(manager, [1] * 6), run_prompt(manager, [2] * 6)]
        assert manager.resize_batch(kv_caches, [8, 8]) == 2
        before = manager.describe()
        with pytest.raises(error):
            manager.commit_batch(kv_caches, tokens)
        assert manager.describe() == before


def test_wrong_sequences_change_nothing() -> None:
    with manager_of() as manager, manager_of() as other_manager:
        good, stopped, full, idle, wide = (run_prompt(manager, [number] * 6) for number in range(5))
        foreign = run_prompt(other_manager, [1] * 6)
        for kv_cache in (good, stopped, idle, wide, foreign):
            assert kv_cache.resize(8)
        stopped.stop_committing()
        idle.suspend()
        wide.beam_width = 2
        before = manager.describe()
        wrong: list[tuple[type[Exception], Any]] = [
            (LogicError, stopped), (ValueError, full), (LogicError, idle), (LogicError, wide), (ValueError, foreign),
            (ValueError, good), (TypeError, None),
        ]  # fmt: skip
        for error, kv_cache in wrong:
            with pytest.raises(error):
                manager.commit_batch([good, kv_cache], [1, 1])
            assert manager.describe() == before
        no_list: Any = 7
        with pytest.raises(TypeError):
            manager.commit_batch(no_list, [1])
        manager.commit_batch([], [])
        assert manager.describe() == before
        manager.check_invariants()
        for kv_cache in (good, stopped, full, idle, wide, foreign):
            kv_cache.close()


def test_forks_of_one_block_must_say_the_same() -> None:
    """Both have room for two drafts in a block that neither has written alone."""
    with manager_of() as manager:
        parent = run_prompt(manager, [1] * 5)
        assert parent.resize(8)
        with parent.fork() as child:
            before = manager.describe()
            with pytest.raises(ValueError, match="fork|share"):
                manager.commit_batch([parent, child], [6, 7])
            assert manager.describe() == before
            manager.commit_batch([parent, child], [6, 6])
            child.commit([7])
            with pytest.raises(ValueError, match="fork"):
                manager.commit_batch([parent], [8])
            manager.commit_batch([parent], [7])
            manager.commit_batch([parent, child], [8, 8])
            assert parent.committed_tokens == child.committed_tokens == [1] * 5 + [6, 7, 8]
            manager.check_invariants()


def test_a_batch_is_recorded_as_its_single_calls(tmp_path: Any) -> None:
    path = tmp_path / "calls.journal"
    with KVCacheManager(config_of(WINDOWS, num_slots=400), device=HostDevice(), journal=path) as manager:
        kv_caches = open_running(manager, 5)
        for step in range(10):
            assert manager.resize_batch(kv_caches, [kv_cache.capacity + 1 for kv_cache in kv_caches]) == 5
            manager.commit_batch(kv_caches, [step % 2] * 5)
        for kv_cache in kv_caches:
            kv_cache.close()
        digest = manager.state_digest()
    assert rerun(path, HostDevice(), check_invariants=True).digest == digest
