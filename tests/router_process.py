"""The process of `event_subscriber`, and what ends those of a test."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOPIC = "kv@pod@model"


class Router:
    """One that asks the publisher's replay socket; with ``snapshots`` it asks for snapshots and never for replays."""

    def __init__(self, publisher: Any, snapshots: bool = False) -> None:
        script = Path(__file__).parent / "event_subscriber.py"
        sockets = ["", TOPIC, publisher.snapshot_endpoint] if snapshots else [publisher.replay_endpoint, TOPIC]
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script), publisher.endpoint, *sockets], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def expect(self, state: dict[str, list[int]]) -> None:
        assert self.ask(f"expect {json.dumps({place: sorted(hashes) for place, hashes in state.items()})}") == "ok"

    def facts(self) -> Any:
        return json.loads(self.ask("facts"))

    def stop(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(timeout=30)


def wait_for_first(publisher: Any) -> None:
    """Until the state at its start is published: what comes later is in later batches."""
    while publisher.num_batches_published == 0 and publisher.error is None:
        time.sleep(0.001)


def stopped_at_the_end() -> Iterator[list[Router]]:
    """The body of a fixture: a list for the routers of a test."""
    started: list[Router] = []
    yield started
    for router in started:
        router.stop()
