"""The page of a replay: everything in one file, a plot for each question, no error in a browser's console."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from unit.replay.serving import BYTES_PER_BLOCK, request_of

pytest.importorskip("plotly", reason="the extra report is not installed")

from kv_cache_manager_v2.replay.cli import main  # noqa: E402
from kv_cache_manager_v2.replay.plan import ReplayPlan  # noqa: E402
from kv_cache_manager_v2.replay.plots import choose_bars  # noqa: E402
from kv_cache_manager_v2.replay.replayer import run_replay  # noqa: E402
from kv_cache_manager_v2.replay.timeline import MAX_POINTS, Timeline  # noqa: E402
from kv_cache_manager_v2.replay.workload import ListedWorkload  # noqa: E402
from unit.replay.serving import FULL, TOKENS_PER_BLOCK, SilentConsole  # noqa: E402

PLOTS = ("plot-hits", "plot-curve", "plot-memory", "plot-drops", "plot-calls")


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
    for point in timeline.points:
        assert all(use.needed + use.kept <= use.total for use in point.slots)


def test_bars_cover_the_run_without_gaps() -> None:
    timeline = timeline_of(60, 12)
    bars = choose_bars(timeline.points)
    assert all(before[1] is after[0] or before[1].prompt_tokens == after[0].prompt_tokens for before, after in zip(bars, bars[1:]))
    covered = sum(end.prompt_tokens - begin.prompt_tokens for begin, end in bars)
    assert covered == timeline.points[-1].prompt_tokens - timeline.points[0].prompt_tokens
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
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", markup) == []
    assert 'name="viewport"' in markup


def test_a_folder_that_is_not_there_is_said_before_anything_is_served(tmp_path: Path) -> None:
    assert main(["replay", "--limit", "1", "--report", str(tmp_path / "nowhere" / "out.html")]) == 2


WIDTHS = {"phone": 390, "desk": 1280}
PROBE = """<script>
window.addEventListener("load", () => setTimeout(() => {
  const plots = [...document.querySelectorAll(".js-plotly-plot")];
  const cut = plots.filter(plot => plot.getBoundingClientRect().right > window.innerWidth + 1).length;
  const page = document.documentElement;
  const drawn = plots.filter(plot => plot.querySelector(".main-svg") && plot.getBoundingClientRect().height > 100).length;
  parent.postMessage([window.name, drawn, cut, Math.max(page.scrollWidth - window.innerWidth, 0)].join(" "), "*");
}, 3000));
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
def test_a_browser_draws_every_plot_and_finds_no_error(tmp_path: Path) -> None:
    drawn = look_with_a_browser(write_page(tmp_path), tmp_path)
    for plot in PLOTS:
        # plotly has filled the division with drawings of its own.
        assert re.search(rf'id="{plot}"[^>]*class="[^"]*js-plotly-plot', drawn), plot
    assert drawn.count('class="main-svg"') >= 2 * len(PLOTS)


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
