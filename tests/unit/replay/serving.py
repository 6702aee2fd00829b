"""Small plans for the tests of the replay: a model of two layers, requests written as lists of segments."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kv_cache_manager_v2.replay.console import Console
from kv_cache_manager_v2.replay.plan import ReplayPlan
from kv_cache_manager_v2.replay.presets import LayerShape, ModelPreset
from kv_cache_manager_v2.replay.replayer import run_replay
from kv_cache_manager_v2.replay.report import ReplayReport
from kv_cache_manager_v2.replay.tally import Tally
from kv_cache_manager_v2.replay.workload import ListedWorkload, Request, Workload

TOKENS_PER_BLOCK = 4
# Two layers with keys and values of one head of 4 elements of 2 bytes: 8 bytes per buffer and token.
FULL = ModelPreset("full", "", (LayerShape(1, 4), LayerShape(1, 4)))
WINDOWED = ModelPreset("windowed", "", (LayerShape(1, 4, 10), LayerShape(1, 4)))
SINKS = ModelPreset("sinks", "", (LayerShape(1, 4, 6, 1), LayerShape(1, 4)))
MODELS = (FULL, WINDOWED, SINKS)
BYTES_PER_BLOCK = 2 * 2 * 8 * TOKENS_PER_BLOCK


class SilentConsole(Console):
    """Counts the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, num_requests: int) -> None:
        self.calls.append("start")

    def update(self, tally: Tally, used_shares: list[float]) -> None:
        self.calls.append("update")

    def stop(self) -> None:
        self.calls.append("stop")

    def show(self, report: ReplayReport) -> None:
        self.calls.append("show")


def request_of(
    id: int, segments: Sequence[tuple[int, int]], num_output_tokens: int = 1, after: int | None = None,
    pause_steps: int = 0,
) -> Request:  # fmt: skip
    codes = np.array([code for code, _ in segments], dtype=np.int64)
    lengths = np.array([length for _, length in segments], dtype=np.int64)
    return Request(id, float(id), codes, lengths, num_output_tokens, after, pause_steps)


def replay(workload: Workload | Sequence[Request], **settings: Any) -> ReplayReport:
    """A replay of the small full-attention model, invariants checked, without a word."""
    if not isinstance(workload, Workload):
        workload = ListedWorkload("listed", workload)
    settings = {"model": FULL, "tokens_per_block": TOKENS_PER_BLOCK, "check_invariants": True, **settings}
    report = run_replay(ReplayPlan(workload=workload, **settings), SilentConsole())
    assert report.failure is None, report.failure
    return report
