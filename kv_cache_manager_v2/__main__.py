"""``python -m kv_cache_manager_v2 COMMAND ...`` is ``kvcm COMMAND ...``."""

import sys

from .replay.cli import main

sys.exit(main())
