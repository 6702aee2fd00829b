"""A short run of the drill of events; `make drill-events` runs it in earnest."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zmq", reason="the extra `events` is not installed")
pytest.importorskip("msgspec", reason="the extra `events` is not installed")


def test_routers_agree_with_the_manager() -> None:
    drill = Path(__file__).with_name("events_drill.py")
    done = subprocess.run(
        [sys.executable, "-P", str(drill), "--requests", "25", "--seed", "5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{25 + 3} comparisons agree" in done.stdout
