"""`kvcm replay --live`: the numbers of the report while it runs."""

import pytest
from unit.replay.serving import BYTES_PER_BLOCK, FULL, TOKENS_PER_BLOCK, request_of

from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.console import Console
from kv_cache_manager_v2.replay.live_rows import live_rows
from kv_cache_manager_v2.replay.plan import ReplayPlan
from kv_cache_manager_v2.replay.replayer import run_replay
from kv_cache_manager_v2.replay.report import ReplayReport
from kv_cache_manager_v2.replay.tally import Tally
from kv_cache_manager_v2.replay.timeline import Timeline, TimelinePoint
from kv_cache_manager_v2.replay.workload import ListedWorkload


class RowConsole(Console):
    """Keeps the rows of the first look."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[str, str]] = {}

    def start(self, num_requests: int) -> None:
        pass

    def update(self, tally: Tally, used_shares: list[float]) -> None:
        pass

    @property
    def wants_points(self) -> bool:
        return True

    def look(self, point: TimelinePoint, tally: Tally, tiers: list[str]) -> None:
        if not self.first:
            live_rows(self.first, point, tally, tiers, 2, 1.0)

    def stop(self) -> None:
        pass

    def show(self, report: ReplayReport) -> None:
        pass


def test_the_first_step_of_a_request() -> None:
    console = RowConsole()
    plan = ReplayPlan(
        workload=ListedWorkload("listed", [request_of(0, [(0, 17)], 3), request_of(1, [(1, 5)], 3)]), model=FULL,
        tokens_per_block=TOKENS_PER_BLOCK, memory_bytes=20 * BYTES_PER_BLOCK,
    )  # fmt: skip
    run_replay(plan, console)
    rows = console.first
    assert rows["requests"] == ("0 of 2, 2 running", "." * 24)
    assert rows["missed, new"] == ("100.0%", "#" * 24)
    # 5 blocks and 2 blocks of 20: 35 %, 8 of 24 characters.
    assert rows["gpu, pool group 0"] == ("35% needed, 0% kept of 20", "#" * 8 + "." * 16)


def test_rows_keep_their_places() -> None:
    """Whatever else is missed or dropped, a row stays where it was: new ones come below."""
    requests = [request_of(number, [(0, 8), (1 + number % 5, 13)], 12) for number in range(40)]
    plan = ReplayPlan(
        workload=ListedWorkload("listed", requests), model=FULL, tokens_per_block=TOKENS_PER_BLOCK, memory_bytes=12 * BYTES_PER_BLOCK
    )
    timeline = Timeline()
    run_replay(plan, RowConsole(), timeline)
    rows: dict[str, tuple[str, str]] = {}
    names: list[list[str]] = []
    for point in timeline.points:
        live_rows(rows, point, Tally(len(timeline.tiers)), timeline.tiers, len(requests), 1.0)
        names.append(list(rows))
    assert len(names[-1]) > len(names[0])
    assert all(after[: len(before)] == before for before, after in zip(names, names[1:], strict=False))


def test_the_command_shows_the_last_table_and_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich", reason="the extra cli is not installed")
    assert main(["replay", "--workload", "mix", "--limit", "3", "--live", "--shrink", "max"]) == 0
    captured = capsys.readouterr()
    assert "missed, new" in captured.err and "prompt tokens" in captured.out
