"""The report: derived figures, JSON that can be read back, tables."""

import io
import json

import pytest
from unit.replay.serving import BYTES_PER_BLOCK, replay, request_of

from kv_cache_manager_v2.replay.console import PlainConsole
from kv_cache_manager_v2.replay.recorder import COMMIT, CREATE, CallRecorder
from kv_cache_manager_v2.replay.report import ReplayReport, call_figures
from kv_cache_manager_v2.replay.report_rows import format_bytes, plain_report
from kv_cache_manager_v2.replay.tally import Tally

EVERY_FIGURE = {
    "requests", "prompt_tokens", "hit_tokens", "hit_rate", "generated_tokens", "mismatches", "preemptions", "refusals",
    "pool_groups", "evicted_pages", "wall_seconds", "manager_seconds", "calls", "device", "compiled", "version",
}  # fmt: skip


def small_report() -> ReplayReport:
    requests = [request_of(0, [(0, 12)], 2), request_of(1, [(0, 12)], 2)]
    return replay(requests, memory_bytes=20 * BYTES_PER_BLOCK, verify=True, device="host")


def test_json_holds_every_figure() -> None:
    report = small_report()
    values = json.loads(report.to_json())
    assert EVERY_FIGURE <= set(values)
    assert values["prompt_tokens"] == 24
    assert values["generated_tokens"] == 4
    assert values["hit_rate"] == report.hit_tokens / 24
    assert values["mismatches"] == 0
    calls = {call["name"]: call for call in values["calls"]}
    assert set(calls) == {"create_kv_cache", "resume", "resize", "resize_batch", "commit", "close", "can_finish", "publish_planned"}
    assert values["manager_seconds"] == pytest.approx(sum(call["total_seconds"] for call in calls.values()))
    assert 0 < values["manager_seconds"] < values["wall_seconds"]
    assert all(call["count"] > 0 and call["mean_us"] > 0 for call in calls.values())
    assert all(call["p99_us"] >= call["p50_us"] for call in calls.values())


def test_the_plain_table_names_every_call_and_pool_group() -> None:
    report = small_report()
    text = plain_report(report)
    for call in report.calls:
        assert call.name in text
    assert "tokens read back, all right" in text
    assert f"{report.prompt_tokens:,}" in text


def test_figures_of_calls_come_longest_first() -> None:
    recorder = CallRecorder()
    recorder.add(CREATE, 1_000)
    recorder.add(COMMIT, 3_000)
    recorder.add(COMMIT, 5_000)
    figures = call_figures(recorder)
    assert [(one.name, one.count) for one in figures] == [("commit", 2), ("create_kv_cache", 1)]
    assert figures[0].mean_us == 4.0
    assert figures[0].total_seconds == 8e-6


def test_a_plain_console_shows_the_report_and_is_quiet_about_progress() -> None:
    output, errors = io.StringIO(), io.StringIO()
    console = PlainConsole(output, errors)
    console.start(3)
    console.update(Tally(), [0.5])
    console.stop()
    console.show(small_report())
    # Nothing within the first seconds.
    assert errors.getvalue() == ""
    assert "hit rate" in output.getvalue()


def test_bytes_for_people() -> None:
    shown = [format_bytes(value) for value in (0, 1023, 1024, 3 << 20, 5 << 30)]
    assert shown == ["0 B", "1023 B", "1.0 KiB", "3.0 MiB", "5.0 GiB"]
