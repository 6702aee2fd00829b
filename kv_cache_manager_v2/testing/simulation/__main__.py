"""``python -m kv_cache_manager_v2.testing.simulation --seeds 0:100``; see `command_line`."""

import sys

from .command_line import main

sys.exit(main(sys.argv[1:]))
