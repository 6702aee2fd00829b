"""The simulated device reports exactly the accesses that a brute-force search for a path calls unordered."""

from random import Random

import pytest

from kv_cache_manager_v2.testing.race_error import RaceKind

from .race_program import Action, Oracle, Runner, draw_action, draw_legal_program

REASON_OF_KIND = {
    RaceKind.WRITE_AFTER_WRITE: "race",
    RaceKind.WRITE_AFTER_READ: "race",
    RaceKind.READ_AFTER_WRITE: "race",
    RaceKind.UNMAP_IN_USE: "race",
    RaceKind.UNWRITTEN: "unwritten",
    RaceKind.UNMAPPED: "unmapped",
    RaceKind.BATCH_OVERLAP: "overlap",
}


def run_both(program, seed, num_streams, eager=None):
    """The number of the first action that is refused, or None; the device and the oracle must agree on it."""
    oracle = Oracle(num_streams)
    runner = Runner(seed, num_streams, eager)
    for number, action in enumerate(program):
        reasons = oracle.apply(action)
        race = runner.apply(action)
        if race is None:
            assert not reasons, f"seed {seed}: {action} at {number} was let pass; {reasons}"
        else:
            assert REASON_OF_KIND[race.kind] in reasons, f"seed {seed}: {action} at {number}: {race}; {reasons}"
            assert list(runner.device.races) == [race]
            runner.close()
            return number
    runner.finish()
    return None


@pytest.mark.parametrize("num_streams", [1, 2, 4])
def test_any_program(num_streams):
    refused = 0
    for seed in range(150):
        random = Random(seed)
        oracle = Oracle(num_streams)
        mapped = set()
        program = []
        for _ in range(60):
            action = draw_action(random, oracle, num_streams, mapped)
            program.append(action)
            if oracle.apply(action):
                break
            if action.kind == "map":
                mapped.add(action.numbers[0])
            elif action.kind == "unmap":
                mapped.remove(action.numbers[0])
        refused += run_both(program, seed, num_streams) is not None
    assert refused > 0


@pytest.mark.parametrize("num_streams", [1, 2, 5])
def test_legal_programs_are_never_reported(num_streams):
    for seed in range(60):
        program = draw_legal_program(seed, 80, num_streams)
        for device_seed in range(3):
            assert run_both(program, device_seed, num_streams) is None


def test_legal_programs_with_fixed_pace():
    for seed in range(20):
        program = draw_legal_program(1000 + seed, 60, 3)
        assert run_both(program, seed, 3, eager=True) is None
        assert run_both(program, seed, 3, eager=False) is None


def test_one_forgotten_wait():
    """Drop one wait of a legal program: what then races is found, in every order of running."""
    racy = 0
    for seed in range(150):
        program = draw_legal_program(seed, 60, 3)
        kinds = ("wait", "sync_event", "sync_stream")
        waits = [number for number, action in enumerate(program) if action.kind in kinds]
        if not waits:
            continue
        dropped = Random(seed).choice(waits)
        without = program[:dropped] + program[dropped + 1 :]
        answers = {run_both(without, device_seed, 3) for device_seed in range(3)}
        assert len(answers) == 1
        racy += answers != {None}
    # Most waits that the generator adds are needed, since it adds one only for an access that races without.
    assert racy > 50


def test_oracle_and_device_see_the_smallest_race():
    """Guards the oracle itself: two writes on two streams race, with a record and a wait between them they do not."""
    start = [Action("map", 0), Action("write", 0, 0, 4)]
    assert run_both([*start, Action("write", 1, 3, 5)], 0, 2) == 2
    assert run_both([*start, Action("record", 0), Action("wait", 1, 0), Action("write", 1, 3, 5)], 0, 2) is None
    assert run_both([*start, Action("write", 1, 4, 5)], 0, 2) is None
