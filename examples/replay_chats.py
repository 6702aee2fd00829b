"""Serve made chats through the manager, every byte checked, and see how much of their prompts was reused.

Run it with ``python examples/replay_chats.py``; it needs no GPU. ``kvcm replay --help`` has the same as a command.
"""

import sys

from kv_cache_manager_v2.replay.console import PlainConsole
from kv_cache_manager_v2.replay.generators import make_workload
from kv_cache_manager_v2.replay.plan import ReplayPlan
from kv_cache_manager_v2.replay.presets import PRESETS
from kv_cache_manager_v2.replay.replayer import run_replay

model = PRESETS["gpt-oss-20b"]
plan = ReplayPlan(
    workload=make_workload("chat", seed=1, num_requests=30),
    model=model,
    shrink=model.max_shrink,  # 8 bytes per token and buffer instead of 1,024: fits everywhere, behaves the same
    memory_bytes=2 << 20,
    verify=True,
)
report = run_replay(plan, PlainConsole(sys.stdout, sys.stderr, is_quiet=True))

print(f"{report.requests} requests on {report.device}: {report.hit_rate:.1%} of the prompt tokens were reused")
print(f"an unlimited cache would have reused {report.reusable_rate:.1%}; {report.evicted_pages} pages were evicted")
print(f"{report.mismatches} wrong bytes")
assert report.mismatches == 0
