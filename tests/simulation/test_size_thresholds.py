"""Each threshold that depends on a size is crossed by a large world among the seeds that CI runs, or by another test."""

import re
from pathlib import Path

from kv_cache_manager_v2.testing.simulation.large_worlds import is_large
from kv_cache_manager_v2.testing.simulation.scenario import Scenario
from kv_cache_manager_v2.testing.simulation.simulated_run import SimulatedRun

from .run_canaries import PACKAGE
from .size_thresholds import CROSSED, ELSEWHERE, cross

FOLDERS = ("storage", "reuse", "sequence", "pools", "stats")
CONSTANT = re.compile(r"^(_?[A-Z][A-Z0-9_]*): Final(?:\[[^\]]*\])? = [-(0-9A-Z_]", re.MULTILINE)
SIZE = re.compile(
    r"MOST|MAX|LEAST|MIN|NUM_|FEW|SIZE|SMALLEST|PIECE|RUN_|PARTS?$|PART_|KEPT|RESERVED|FROM|WAYS|SHARE|SLACK|TRIED|BRANCH|SPARE|PENDING"
    r"|ENTRIES|AT_ONCE|PER_|TICKS|WORDS"
)


def list_constants() -> set[str]:
    """Those whose name sounds like a size, by file."""
    found: set[str] = set()
    for folder in FOLDERS:
        for path in sorted(Path(PACKAGE, folder).rglob("*.py")):
            for name in CONSTANT.findall(path.read_text(encoding="utf-8")):
                if SIZE.search(name):
                    found.add(f"{path.relative_to(PACKAGE).as_posix()} {name}")
    return found


def test_no_threshold_is_forgotten() -> None:
    listed = CROSSED.keys() | ELSEWHERE.keys()
    assert not CROSSED.keys() & ELSEWHERE.keys()
    assert list_constants() == listed, (list_constants() - listed, listed - list_constants())


def test_tests_that_hold_a_threshold_exist() -> None:
    for reason in ELSEWHERE.values():
        for path in re.findall(r"tests/[\w/]+\.py", reason):
            assert Path(PACKAGE.parent, path).exists(), path


def test_large_worlds_of_ci_cross_every_threshold() -> None:
    reached: dict[str, int] = {}
    for seed in [seed for seed in range(200) if is_large(seed)]:
        scenario = Scenario(seed, 200)
        run = SimulatedRun(scenario)
        for action in scenario.actions:
            run.perform(action)
            cross(run, reached)
        run.finish()
        if all(reached[name] > limit for name, (_probe, limit) in CROSSED.items()):
            return
    assert not {name: reached[name] for name, (_probe, limit) in CROSSED.items() if reached[name] <= limit}
