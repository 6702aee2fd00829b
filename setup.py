"""Where pip looks. The build itself is described in setup_mypyc.py."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).with_name("setup_mypyc.py")), run_name="__main__")
