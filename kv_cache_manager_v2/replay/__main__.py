"""``python -m kv_cache_manager_v2.replay COMMAND ...`` is ``kvcm COMMAND ...``; without a command it is ``kvcm replay ...``."""

import sys

from .cli import replay_main

sys.exit(replay_main())
