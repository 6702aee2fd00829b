"""The drills of durable levels run, and their table says what came out; `make drill-disk` runs all of them in earnest."""

import subprocess
import sys
from pathlib import Path


def test_the_load_drill_finds_a_made_index() -> None:
    drills = Path(__file__).with_name("disk_drills.py")
    done = subprocess.run([sys.executable, "-P", str(drills), "--small", "--only", "load"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| load of 2,000 blocks")]
    assert row.endswith("| ok |")
