"""A replay's report: a value that can be compared, written as JSON and shown as a table.

Every figure is of the whole run, up to its end. Times are wall-clock seconds; everything else depends on the
requests and the configuration alone.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ..base.value import Value
from .recorder import CALL_NAMES, CallRecorder
from .tier_figures import TierFigures, TransferFigures

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True)
class CallFigures(Value):
    """One kind of call on the manager."""

    name: str
    count: int
    total_seconds: float
    mean_us: float
    p50_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True)
class PoolGroupFigures(Value):
    """One pool group of level 0."""

    slot_bytes: tuple[int, ...]
    """Of each of its pools."""
    total_slots: int
    peak_slots: int
    evicted_pages: int


@dataclass(frozen=True)
class LayerGroupFigures(Value):
    """One layer group. ``peak_slots``: the most that running sequences used at once, scratch slots included."""

    window_size: int | None
    """None: full attention."""
    num_layers: int
    peak_slots: int


@dataclass(frozen=True)
class ReplayReport(Value):
    """See the module. ``reusable_tokens`` is what an unlimited cache that begins empty would have hit, by the requests' own ids."""

    workload: str
    model: str
    shrink: int
    tokens_per_block: int
    memory_bytes: int
    max_running: int
    token_budget: int
    chunk_tokens: int
    scratch: bool
    seed: int | None
    device: str
    compiled: bool
    version: str

    requests: int
    requests_refused: int
    skipped_lines: int
    prompt_tokens: int
    hit_tokens: int
    reusable_tokens: int
    generated_tokens: int
    computed_tokens: int
    steps: int
    verified: bool
    mismatches: int
    first_mismatches: tuple[str, ...]
    invariants_checked: bool
    failure: str | None
    """An invariant that did not hold, if any."""
    interrupted: bool
    preemptions: int
    """Sequences suspended for lack of slots."""
    forced_preemptions: int
    """Sequences suspended because the plan said so."""
    restarts: int
    refusals: int
    """Calls that the manager refused for lack of slots."""
    pool_groups: tuple[PoolGroupFigures, ...]
    layer_groups: tuple[LayerGroupFigures, ...]
    tiers: tuple[TierFigures, ...]
    transfers: tuple[TransferFigures, ...]

    wall_seconds: float
    manager_seconds: float
    calls: tuple[CallFigures, ...]

    missed_tokens: dict[str, int] = field(default_factory=dict)
    """By the words of `prompt_misses`; with the hits they add up to the prompt tokens."""
    checked_bytes: int = 0
    """That the fake engine read back and compared; of `computed_tokens` and of those before them."""
    pool_ratio: tuple[float, ...] | None = None
    """Shares of the bytes by pool group that were asked for; None: the manager's default."""
    adjustments: int | None = None
    """How often the quota was divided between the pool groups anew; None: that was disabled."""
    arrivals: str = "as-fast"
    """When requests came: at their time stamps in simulated time (recorded), or as soon as there was room."""
    service: dict[str, Any] | None = None
    """With recorded arrivals: simulated seconds, and how long requests waited, by `ServiceClock.figures`."""
    notes: tuple[str, ...] = ()
    """Of the workload: what was made up, assumed, left out."""
    last_refusal: str | None = None
    """The last refusal's reason."""
    restored_pages: int = 0
    """Of a durable level, as the run began. With some, hits may exceed ``reusable_tokens``, which knows this run alone."""

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens > 0 else 0.0

    @property
    def reusable_rate(self) -> float:
        return self.reusable_tokens / self.prompt_tokens if self.prompt_tokens > 0 else 0.0

    @property
    def evicted_pages(self) -> int:
        return sum([group.evicted_pages for group in self.pool_groups])

    @property
    def tokens_per_second(self) -> float:
        """Computed ones: what was reused took no time."""
        return self.computed_tokens / self.wall_seconds if self.wall_seconds > 0.0 else 0.0

    @property
    def verdict(self) -> str:
        """Whether every byte was right, in words."""
        if not self.verified:
            return "no bytes were read back (--verify does)"
        begin = f"{self.checked_bytes:,} bytes of {self.computed_tokens:,} tokens read back"
        if self.mismatches > 0:
            return f"WRONG: {begin}, {self.mismatches:,} tokens had wrong bytes"
        if self.failure is not None:
            return f"WRONG: {begin}, and then the run failed: {self.failure}"
        return f"{begin}, all right"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the derived figures."""
        values: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        values.update(asdict(self))
        values["hit_rate"] = self.hit_rate
        values["reusable_rate"] = self.reusable_rate
        values["evicted_pages"] = self.evicted_pages
        values["tokens_per_second"] = self.tokens_per_second
        return values

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"


def call_figures(recorder: CallRecorder) -> tuple[CallFigures, ...]:
    """Of every kind of call that was made, the longest total first."""
    figures: list[CallFigures] = []
    for name, histogram in zip(CALL_NAMES, recorder.histograms, strict=True):
        if histogram.count > 0:
            figures.append(
                CallFigures(
                    name=name,
                    count=int(histogram.count),
                    total_seconds=float(histogram.total_ns) / 1e9,
                    mean_us=histogram.mean_ns / 1e3,
                    p50_us=histogram.quantile_ns(0.50) / 1e3,
                    p99_us=histogram.quantile_ns(0.99) / 1e3,
                    max_us=float(histogram.max_ns) / 1e3,
                )
            )
    figures.sort(key=_negative_total)
    return tuple(figures)


def _negative_total(figures: CallFigures) -> float:
    return -figures.total_seconds
