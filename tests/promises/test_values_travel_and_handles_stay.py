"""Values can be copied, compared, and pickled from one build to the other; handles refuse it. No Python one-liner ends the process.

Done to every public class: copy, pickle, `__new__` without `__init__`, `__init__` twice, deleting and setting attributes,
subclassing, comparing, looking. Either it works, or it is a TypeError or AttributeError that says why.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from public_classes import ROOT, find_public_classes, load_class

import rawref
from kv_cache_manager_v2 import is_compiled

PROGRAM = Path(__file__).resolve().parents[1] / "special_methods.py"
PUBLIC = find_public_classes()


def run_program(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = path
        environment.pop("KV_CACHE_MANAGER_V2_EXPECT_BUILD", None)
    command = [sys.executable, "-P", "-X", "faulthandler", str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)


def test_every_public_class_has_a_rule() -> None:
    """It is a value, a handle, an exception, an enumeration or a named tuple; so what may be done to it is known."""
    known = {"Value", "ConfigValue", "Handle", "BaseException", "Enum", "tuple", "Protocol"}
    plain_dataclasses = {"ReuseScope", "ReplayPlan"}  # not compiled; and as good as the workload in it
    without = []
    for name, module in PUBLIC.items():
        lineage = {base.__name__ for base in load_class(name, module).__mro__}
        if not lineage & known and name not in plain_dataclasses:
            without.append(f"{module}.{name}: give it the base Value (base/value.py) or Handle (base/handle.py)")
    assert without == []
    assert len(PUBLIC) > 150
    for name in ("KVCache", "KVCacheEvent", "UsageStatistics", "HostDevice", "OffsetTable", "FakeEngine", "MatchedTokens", "PageRun"):
        assert name in PUBLIC


def test_no_case_ends_the_process_or_passes_unseen() -> None:
    wrong: list[str] = []
    first, num_passed, is_at_end = 0, 0, False
    while not is_at_end:
        result = run_program("cases", str(first))
        lines = result.stdout.splitlines()
        is_at_end = bool(lines) and lines[-1] == "end"
        cases = [index for index, line in enumerate(lines) if "\t" in line and line.split("\t")[0].isdecimal()]
        if not is_at_end:
            if not cases:
                pytest.fail(f"exit status {result.returncode}, and no case: {result.stderr[-3000:]}")
            number, name = lines[cases[-1]].split("\t")
            crash = [line for line in result.stderr.splitlines() if "Fatal" in line or "Error" in line]
            wrong.append(f"{name}: exit status {result.returncode} at {lines[-1]!r}: {crash[-1:]}")
            first = int(number) + 1
            cases.pop()
        for case in cases:
            outcome = next(line for line in lines[case + 1 :] if not line.startswith("- "))
            num_passed += outcome == "passed"
            if outcome != "passed":
                wrong.append(f"{lines[case].split(chr(9))[1]}: {outcome}")
        assert len(wrong) < 100, "\n".join(wrong)
    assert not wrong, "\n" + "\n".join(wrong)
    assert num_passed > 4000


def test_values_are_read_by_another_process(tmp_path: Path) -> None:
    saved = str(tmp_path / "values")
    assert run_program("save", saved).returncode == 0
    check_read(run_program("load", saved))


@pytest.mark.skipif(not is_compiled(), reason="the compiled run has both builds: it reads the sources beside its own")
def test_values_travel_between_builds(tmp_path: Path) -> None:
    """Both ways."""
    assert rawref.__file__ is not None
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "kv_cache_manager_v2").symlink_to(ROOT / "kv_cache_manager_v2")
    (sources / "rawref").symlink_to(Path(rawref.__file__).parent)
    for name, writer, reader in (("compiled", None, str(sources)), ("interpreted", str(sources), None)):
        saved = str(tmp_path / name)
        result = run_program("save", saved, path=writer)
        assert result.returncode == 0, result.stderr
        check_read(run_program("load", saved, path=reader))


def check_read(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 1 and int(lines[0].split()[0]) > 80, result.stdout
