"""The page of a replay: everything in one file, a plot for each question, no error in a browser's console."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from unit.replay.serving import BYTES_PER_BLOCK, FULL, TOKENS_PER_BLOCK, SilentConsole, request_of

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.plan import ReplayPlan
from kv_cache_manager_v2.replay.other_sizes import MeasuredCurve, MeasuredRate
from kv_cache_manager_v2.replay.plots import choose_bars, plot_hit_rates
from kv_cache_manager_v2.replay.replayer import run_replay
from kv_cache_manager_v2.replay.report import ReplayReport
from kv_cache_manager_v2.replay.report_rows import format_bytes
from kv_cache_manager_v2.replay.report_summary import summarise
from kv_cache_manager_v2.replay.timeline import MAX_POINTS, Timeline
from kv_cache_manager_v2.replay.workload import ListedWorkload

PLOTS = ("plot-hits", "plot-curve")


def timeline_of(num_requests: int, num_blocks: int, num_output_tokens: int = 2) -> Timeline:
    timeline = Timeline()
    requests = [
        request_of(number, [(0, 8), (1 + number % 5, 13)], num_output_tokens) for number in range(num_requests)
    ]
    plan = ReplayPlan(
        workload=ListedWorkload("listed", requests), model=FULL, tokens_per_block=TOKENS_PER_BLOCK,
        memory_bytes=num_blocks * BYTES_PER_BLOCK,
    )  # fmt: skip
    run_replay(plan, SilentConsole(), timeline)
    return timeline


def test_a_timeline_adds_up_and_stays_small() -> None:
    timeline = timeline_of(60, 12, num_output_tokens=40)
    assert 2 <= len(timeline.points) <= MAX_POINTS + 1
    last = timeline.points[-1]
    assert last.prompt_tokens == sum(last.hit_tokens) + sum(last.missed_tokens.values())
    assert last.missed_tokens["evicted"] > 0
    for before, after in zip(timeline.points, timeline.points[1:], strict=False):
        assert before.step < after.step and before.prompt_tokens <= after.prompt_tokens


def test_bars_cover_the_run_without_gaps() -> None:
    timeline = timeline_of(60, 12)
    bars = choose_bars(timeline.points)
    assert all(before[1] is after[0] or before[1].prompt_tokens == after[0].prompt_tokens for before, after in zip(bars, bars[1:]))
    covered = sum(end.prompt_tokens - begin.prompt_tokens for begin, end in bars)
    # All of them: those that the first step admitted too.
    assert covered == timeline.points[-1].prompt_tokens == 60 * 21
    assert bars[0][0].prompt_tokens == 0
    assert choose_bars([]) == []


def write_page(folder: Path) -> Path:
    page = folder / "out.html"
    arguments = ["replay", "--workload", "mix", "--limit", "12", "--memory", "64MiB", "--shrink", "max"]
    assert main([*arguments, "--quiet", "--report", str(page)]) == 0
    return page


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = write_page(tmp_path).read_text(encoding="utf-8")
    for plot in PLOTS:
        assert f'id="{plot}"' in text
    assert re.findall(r"""<script|(?:src|href)=["'](?!data:)|@import""", text) == []
    assert 'name="viewport"' in text
    assert len(text) < 1_000_000 and "prefers-color-scheme: dark" in text
    # Three sentences, two pictures, tables.
    assert re.findall(r"<(?:p>|svg id|table)", text)[:6] == ["<p>", "<p>", "<p>", "<svg id", "<p>", "<svg id"]
    assert all(use in re.findall(r' id="([^"]+)"', text) for use in re.findall(r"url\(#([^)]+)\)", text))


def test_what_coincides_is_one_mark_with_names() -> None:
    rates = (MeasuredRate(1.0, 0.5004), MeasuredRate(2.0, 0.6))
    others = [MeasuredCurve(0, policy, (MeasuredRate(1.0, rate),)) for policy, rate in zip(EvictionPolicy, (0.5001, 0.3), strict=False)]
    figure = plot_hit_rates([MeasuredCurve(0, None, rates), *others], ["gpu"], [8 << 30])
    first, second = list(EvictionPolicy)[:2]
    assert [one.name for one in figure.series] == [
        "size of gpu", f"this run, eviction by {first.value}: 50.0%", f"eviction by {second.value}: 30.0%",
    ]  # fmt: skip
    assert ">8</text>" in figure.axes and ">16</text>" in figure.axes


def summary_of(missed: dict[str, int], curves: list[MeasuredCurve], num_groups: int = 2) -> str:
    report = replace(
        report_of_three_requests(), prompt_tokens=1000, hit_tokens=1000 - sum(missed.values()), reusable_tokens=800, missed_tokens=missed
    )
    return " ".join(summarise(replace(report, pool_groups=report.pool_groups[:1] * num_groups), curves))


def report_of_three_requests() -> ReplayReport:
    requests = [request_of(number, [(0, 8), (1 + number, 13)], 2) for number in range(3)]
    workload = ListedWorkload("listed", requests)
    plan = ReplayPlan(workload=workload, model=FULL, tokens_per_block=TOKENS_PER_BLOCK, memory_bytes=30 * BYTES_PER_BLOCK)
    return run_replay(plan, SilentConsole())


def test_three_sentences_say_what_helps() -> None:
    sizes = [MeasuredCurve(0, None, (MeasuredRate(1.0, 0.5), MeasuredRate(2.0, 0.7), MeasuredRate(4.0, 0.702)))]
    text = summary_of({"new": 200, "evicted": 300}, sizes)
    assert "50.0% of 1,000 prompt tokens were found in the cache, of 80.0%" in text
    assert "it computed 500 in place of 1,000 (2.0 times fewer)" in text
    # Twice the memory has nearly all that four times has.
    assert f"more memory: 70.0% would be found with {format_bytes(60 * BYTES_PER_BLOCK)} of gpu memory" in text
    policy = MeasuredCurve(0, EvictionPolicy.LRU, (MeasuredRate(1.0, 0.9),))
    assert "most: eviction by lru: 90.0% would be found" in summary_of({"new": 500}, [*sizes, policy])
    assert "most: another split" in summary_of({"new": 200, "window broken": 300}, sizes)
    assert "most: nothing that was measured" in summary_of({"new": 200, "window broken": 300}, [MeasuredCurve(0, None, (
        MeasuredRate(1.0, 0.5), MeasuredRate(2.0, 0.505)))], num_groups=1)  # fmt: skip
    assert "most: more memory, perhaps: 30.0%" in summary_of({"new": 200, "evicted": 300}, [])


WIDTHS = {"phone": 390, "desk": 1280}
PROBE = """<script>
window.addEventListener("load", () => setTimeout(() => {
  const plots = [...document.querySelectorAll("svg.plot")];
  const cut = plots.filter(plot => plot.getBoundingClientRect().right > window.innerWidth + 1).length;
  const page = document.documentElement;
  const drawn = plots.filter(plot => plot.querySelector("text") && plot.getBoundingClientRect().height > 100).length;
  parent.postMessage([window.name, drawn, cut, Math.max(page.scrollWidth - window.innerWidth, 0)].join(" "), "*");
}, 300));
</script></body>"""
FRAMES = """<body><script>
window.addEventListener("message", event => {
  const found = document.createElement("p");
  found.textContent = "found " + event.data;
  document.body.append(found);
});
</script>"""


def look_with_a_browser(page: Path, folder: Path) -> str:
    """What the browser has made of the page; skips without a browser. Nothing may be said on its console."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    found = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
            "--enable-logging=stderr", "--virtual-time-budget=20000", "--window-size=1600,1000", "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in found.stderr, found.stderr
    return found.stdout


@pytest.mark.slow
def test_every_plot_fits_a_phone_and_a_desk(tmp_path: Path) -> None:
    """In frames as wide as their screens: every plot is drawn, none is cut off, and nothing scrolls sideways."""
    text = write_page(tmp_path).read_text(encoding="utf-8")
    end = text.rindex("</body>")
    (tmp_path / "probe.html").write_text(text[:end] + PROBE + text[end + len("</body>") :], encoding="utf-8")
    frames = [f'<iframe name="{name}" src="probe.html" width={width} height=800></iframe>' for name, width in WIDTHS.items()]
    (tmp_path / "frames.html").write_text(FRAMES + "".join(frames), encoding="utf-8")
    found = re.findall(r"<p>found (\S+ \d+ \d+ \d+)</p>", look_with_a_browser(tmp_path / "frames.html", tmp_path))
    assert sorted(found) == sorted([f"{name} {len(PLOTS)} 0 0" for name in WIDTHS])
