"""Sessions that run at the same time: the order of their turns by hand, its rules over random sessions, and `kvcm compare-policies`."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.interleaved_sessions import interleave
from kv_cache_manager_v2.replay.workload import Request

ONE = np.array([1], np.int64)


def turn(number: int, after: int | None = None, num_output_tokens: int = 60, delay_ms: float = 0.0) -> Request:
    return Request(number, 0.0, ONE, ONE, num_output_tokens, after, 0, delay_ms)


def order_of(requests: list[Request], num_sessions: int) -> list[int]:
    return [request.id for request in interleave(requests, num_sessions)]


SESSIONS = [
    # A second for each answer of 60 tokens.
    turn(0), turn(1, 0, delay_ms=500.0), turn(2, 1),
    turn(3), turn(4, 3, delay_ms=2000.0),
    turn(5), turn(6, 5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("num_sessions", "expected"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6]),
        # Turn 1 at 1.5 s, 2 at 2.5 and 4 at 3 s; the first session ends at 3.5 s, and 5 and 6 come then and at 4.5 s.
        (2, [0, 3, 1, 2, 4, 5, 6]),
        # 5 at once, 6 at 1 s.
        (3, [0, 3, 5, 6, 1, 2, 4]),
        (9, [0, 3, 5, 6, 1, 2, 4]),
    ],
)
def test_by_hand(num_sessions: int, expected: list[int]) -> None:
    assert order_of(SESSIONS, num_sessions) == expected


def test_a_session_that_branches_ends_with_its_last_turn() -> None:
    branches = [turn(0), turn(1, 0), turn(2, 0, delay_ms=5000.0), turn(3)]
    assert order_of(branches, 1) == [0, 1, 2, 3]


def test_of_nothing() -> None:
    assert order_of([], 3) == []


@pytest.mark.parametrize("seed", range(20))
def test_random_sessions(seed: int) -> None:
    random = Random(seed)
    requests: list[Request] = []
    session_of: dict[int, int] = {}
    for session in range(random.randrange(1, 12)):
        turns: list[int] = []
        for _ in range(random.randrange(1, 6)):
            number = len(requests)
            after = random.choice(turns) if turns else None
            requests.append(turn(number, after, random.randrange(200), random.choice([0.0, 700.0, 9000.0])))
            turns.append(number)
            session_of[number] = session
    num_sessions = random.randrange(1, 8)
    order = order_of(requests, num_sessions)
    assert sorted(order) == list(range(len(requests)))
    place = {number: position for position, number in enumerate(order)}
    assert all(request.after is None or place[request.after] < place[request.id] for request in requests)
    first_turns = [number for number in order if requests[number].after is None]
    assert first_turns == sorted(first_turns)
    left = {session: list(session_of.values()).count(session) for session in session_of.values()}
    running: set[int] = set()
    for number in order:
        session = session_of[number]
        running.add(session)
        assert len(running) <= num_sessions
        left[session] -= 1
        if left[session] == 0:
            running.remove(session)


def write_log(folder: Path, num_sessions: int, with_sessions: bool = True) -> str:
    """Each session asks twice for its 1 block and an answer's; AIPerf's form."""
    lines: list[str] = []
    for session in range(num_sessions):
        for row in range(2):
            fields = {"input_length": 64, "output_length": 64, "hash_ids": [1000 * session + row]}
            if with_sessions:
                fields |= {"session_id": f"s{session}", "delay": 1000.0}
            else:
                fields["timestamp"] = session
            lines.append(json.dumps(fields))
    path = folder / "log.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def hit_rate(path: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[float, str]:
    command = ["compare-policies", path, "--trace-block", "64", "--blocks", "3", "--policies", "lru", "--json", "-", *options]
    assert main(command) == 0
    output = capsys.readouterr()
    (source,) = json.loads(output.out)["sources"]
    assert source["requests"] == 8
    return source["rows"][0]["hit_rates"]["lru"], output.err


def test_the_command_takes_as_many_sessions_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_log(tmp_path, 4)
    # A second turn has the first one's block, its answer's, and a new one: of 16 blocks 4 are hits, unless 3 sessions more come between.
    alone, said = hit_rate(path, [], capsys)
    assert alone == 4 / 16
    assert f"{path}: no time stamps, so sessions come as the lines stand; --sessions N takes N at a time\n" in said
    one, said = hit_rate(path, ["--sessions", "1", "--quiet"], capsys)
    assert (one, said) == (alone, "")
    assert hit_rate(path, ["--sessions", "4", "--quiet"], capsys)[0] == 0.0
    assert hit_rate(path, ["--quiet"], capsys) == (alone, "")


def test_a_log_without_sessions_has_none_to_take_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_log(tmp_path, 2, with_sessions=False)
    assert main(["compare-policies", str(path), "--sessions", "3"]) == 2
    assert f"--sessions 3: no request of {path} is a later turn of a session" in capsys.readouterr().err
