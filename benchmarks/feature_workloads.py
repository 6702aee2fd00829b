"""What the features cost that can be switched off: cold prompts and a full pool, with nothing and with one of them."""

import os
import tempfile
from typing import Any

from kv_cache_manager_v2 import KVCacheEventManager, KVCacheManager
from models import PROMPT, Prompts, make_manager
from prompts_workloads import time_cold
from workload import Row, Size, Workload

_EVENTS_KEPT = 1 << 20


def _time_both(manager: KVCacheManager, num_prompts: int, events: KVCacheEventManager | None) -> tuple[float, float]:
    """ns per block: in a pool whose blocks are all there and empty, and where each block evicts another."""
    prompts = Prompts()
    time_cold(manager, prompts.make_many(num_prompts))
    manager.clear_reusable_blocks()
    _drain(events)
    cold, _ = time_cold(manager, list(prompts.make_many(num_prompts)))
    time_cold(manager, prompts.make_many(num_prompts))
    _drain(events)
    full, _ = time_cold(manager, list(prompts.make_many(num_prompts)))
    return cold, full


def _drain(events: KVCacheEventManager | None) -> None:
    if events is not None:
        events.flush_iteration_events()
        events.get_latest_events()


def features(size: Size) -> dict[str, float]:
    """With events, what the manager's calls take; making them readable is the drainer's time."""
    num_prompts = size.of(32, 4)
    num_blocks = num_prompts * PROMPT // 32
    figures: dict[str, float] = {}
    for name in ("nothing", "statistics", "events", "journal"):
        settings: dict[str, Any] = {"enable_stats": name == "statistics"}
        events = KVCacheEventManager(_EVENTS_KEPT) if name == "events" else None
        with tempfile.TemporaryDirectory() as folder:
            journal = os.path.join(folder, "calls.journal") if name == "journal" else None
            with make_manager(num_blocks, event_manager=events, journal=journal, **settings) as manager:
                figures[f"cold_{name}"], figures[f"full_{name}"] = _time_both(manager, num_prompts, events)
    return figures


WORKLOADS = [
    Workload(
        "features",
        features,
        {
            f"{kind}_{name}": Row(f"{title} with {name}", "ns/block")
            for kind, title in (("cold", "W1"), ("full", "W4"))
            for name in ("nothing", "statistics", "events", "journal")
        },
        interpreted=False,
    )
]
