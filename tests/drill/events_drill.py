"""`make drill-events`: routers in processes of their own follow one engine over random traffic and faults, and are compared with it.

    python -P tests/drill/events_drill.py [--requests 3000] [--seed 1]

The engine has two layer groups, one with a window, over a GPU, a host and a durable disk level, all too small for its prompts. Three
routers (`event_subscriber`, written without the library) follow it: one asks for replays, one for snapshots, one is frozen most of the
time. Between requests the publisher is closed and made anew on the manager that goes on, the manager is shut down and made anew on its
folder, messages are lost, the event manager's buffer overflows, scopes are invalidated, all is cleared, and routers end and come late.
After each request one router must come to know exactly the blocks, by layer group and medium, that the manager's state dump has.

Exit code 1 if a router knows a block too many or too few, or has seen a store or a removal twice.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from durable_models import Process, durable_config
from router_process import TOPIC, Router

from kv_cache_manager_v2 import KVCacheEventManager, KVCacheEventPublisher, ReuseScope
from kv_cache_manager_v2.testing.event_follower import find_published

MEDIA = ("GPU", "CPU", "DISK")
SCOPES = (None, ReuseScope(), ReuseScope(salt="a tenant"), ReuseScope(salt=7), ReuseScope(lora_id=3))
FAULTS = (
    "publisher made anew", "manager made anew", "messages lost", "buffer overflows", "router frozen", "router comes late",
    "scope invalidated", "all cleared",
)  # fmt: skip
KINDS = ("replays", "snapshots", "slow")


class EventsDrill:
    """The engine, its publisher and the routers. ``comparisons``: that were made; ``faults``: by name."""

    def __init__(self, folder: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.config = durable_config(folder, gpu_slots=24, host_slots=24, disk_slots=60, windows=(None, 8))
        self.place = {name: f"ipc://{folder}/{name}" for name in ("bind", "replay_endpoint", "snapshot_endpoint")}
        self.process = self.start()
        self.publisher = self.publish()
        self.routers = {kind: self.follow(kind) for kind in KINDS}
        self.frozen: set[str] = set()
        self.comparisons = 0
        self.faults: Counter[str] = Counter()
        self.facts: Counter[str] = Counter()
        self.next_token = 10_000

    def start(self) -> Process:
        return Process(self.config, event_manager=KVCacheEventManager(200))

    def publish(self) -> Any:
        return KVCacheEventPublisher(
            self.events, topic=TOPIC, first_sequence="epoch", heartbeat_seconds=0.02, buffer_batches=8, lora_names={3: "an adapter"},
            **self.place
        )

    @property
    def events(self) -> Any:
        return self.process.manager.event_manager

    def follow(self, kind: str) -> Router:
        return Router(self.publisher, snapshots=kind == "snapshots")

    # -- traffic ------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """A prompt that begins as one of a few, for some of its length, and goes on with new tokens."""
        shared = self.random.randrange(8) * 1000
        tokens = list(range(shared, shared + self.random.randrange(28)))
        for _token in range(self.random.randrange(1, 20)):
            tokens.append(self.next_token)
            self.next_token += 1
        assert self.process.run(tokens, self.random.choice(SCOPES)) >= 0

    def run(self, num_requests: int) -> None:
        for _request in range(num_requests):
            self.serve()
            self.events.flush_iteration_events()
            if self.random.random() < 0.2:
                self.break_something()
            awake = [kind for kind in KINDS if kind not in self.frozen]
            self.compare(self.random.choice(awake))
        for kind in KINDS:
            self.wake(kind)
            self.compare(kind)

    def compare(self, kind: str) -> None:
        expected: dict[str, list[int]] = {}
        for (name, group), place in find_published(self.process.manager.describe(), "sha256_64").items():
            assert isinstance(name, int)
            expected.setdefault(f"{group}/{MEDIA[place[0]]}", []).append(name)
        self.routers[kind].expect(expected)
        self.comparisons += 1

    # -- faults -------------------------------------------------------------------------------------------------------

    def break_something(self) -> None:
        fault = self.random.choice(FAULTS)
        self.faults[fault] += 1
        kind = self.random.choice(KINDS)
        if fault == "publisher made anew":
            self.publisher.close()
            self.publisher = self.publish()
        elif fault == "manager made anew":
            self.publisher.close()
            self.process.end(self.random.choice((0.0, 60.0)))
            self.process = self.start()
            self.publisher = self.publish()
        elif fault == "messages lost":
            if kind not in self.frozen:
                self.routers[kind].ask(f"miss {self.random.randrange(1, 12)}")
        elif fault == "buffer overflows":
            for _prompt in range(40):
                self.serve()
            self.events.flush_iteration_events()
        elif fault == "router frozen":
            self.wake("slow") if "slow" in self.frozen else self.freeze("slow")
        elif fault == "router comes late":
            self.end_router(kind)
            self.routers[kind] = self.follow(kind)
        elif fault == "scope invalidated":
            self.process.manager.invalidate_reuse_scope(self.random.choice(SCOPES[1:]))
        else:
            self.process.manager.clear_reusable_blocks()
        self.events.flush_iteration_events()

    def freeze(self, kind: str) -> None:
        self.routers[kind].process.send_signal(signal.SIGSTOP)
        self.frozen.add(kind)

    def wake(self, kind: str) -> None:
        self.routers[kind].process.send_signal(signal.SIGCONT)
        self.frozen.discard(kind)

    def end_router(self, kind: str) -> None:
        self.wake(kind)
        facts = self.routers[kind].facts()
        assert facts["errors"] == [], facts["errors"]
        self.facts.update({name: facts[name] for name in ("live", "replays", "snapshots", "restarts")})
        self.routers[kind].stop()

    def end(self) -> None:
        for kind in KINDS:
            self.end_router(kind)
        self.publisher.close()
        assert self.publisher.error is None
        self.process.end()


def drill_events(num_requests: int, seed: int) -> EventsDrill:
    """`AssertionError` where a router and the manager do not agree."""
    with tempfile.TemporaryDirectory() as folder:
        drill = EventsDrill(folder, seed)
        drill.run(num_requests)
        drill.end()
        return drill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begun = time.monotonic()
    drill = drill_events(arguments.requests, arguments.seed)
    print(f"{arguments.requests} requests, seed {arguments.seed}, {time.monotonic() - begun:.0f} s: {drill.comparisons} comparisons agree")
    print("  faults: " + ", ".join(f"{fault} {drill.faults[fault]}" for fault in FAULTS))
    print("  routers: " + ", ".join(f"{name} {count}" for name, count in sorted(drill.facts.items())))


if __name__ == "__main__":
    main()
