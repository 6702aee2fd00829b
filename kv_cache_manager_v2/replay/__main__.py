"""``python -m kv_cache_manager_v2.replay ARGS`` is ``kvcm replay ARGS``."""

import sys

from .cli import replay_main

sys.exit(replay_main())
