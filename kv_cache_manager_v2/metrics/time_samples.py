"""Durations as Prometheus histograms."""

from typing import Final, final


from ..stats.block_times import BlockTimes
from ..stats.time_histogram import TimeHistogram
from ..storage.transfer_times import TransferTimes
from .metric_samples import PREFIX


@final
class HistogramSamples:
    """One histogram at one moment, for each combination of its labels."""

    __slots__ = ("name", "text", "label_names", "samples")

    def __init__(self, name: str, text: str, label_names: tuple[str, ...] = ()) -> None:
        self.name: Final[str] = PREFIX + name
        self.text: Final = text
        self.label_names: Final = label_names
        self.samples: Final[list[tuple[tuple[str, ...], list[tuple[str, float]], float]]] = []
        """(labels; upper bounds in Prometheus' notation, with the number of durations up to each; the sum in seconds)."""

    def add(self, labels: tuple[str, ...], histogram: TimeHistogram) -> None:
        bounds = [str(bound) for bound in histogram.bounds] + ["+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, histogram.cumulative(), strict=True)]
        self.samples.append((labels, buckets, histogram.total_seconds))


def sample_times(times: BlockTimes | None) -> list[HistogramSamples]:
    """Histograms of sampled blocks; without samples if no times are measured."""
    lifetime = HistogramSamples("block_lifetime_seconds", "From the publishing of a sampled block to its removal")
    gap = HistogramSamples("block_reuse_gap_seconds", "From the last use of a sampled block to the next hit")
    idle = HistogramSamples("block_idle_before_evict_seconds", "From the last use of a sampled block to its removal")
    if times is not None:
        lifetime.add((), times.lifetimes)
        gap.add((), times.reuse_gaps)
        idle.add((), times.idle_times)
    return [lifetime, gap, idle]


def sample_transfers(times: TransferTimes | None, tiers: list[str]) -> HistogramSamples:
    """The histogram of copies between tiers; without samples if no times are measured."""
    transfers = HistogramSamples(
        "transfer_seconds", "Duration of a batch of page copies between two tiers, on the device's clock", ("src", "dst")
    )
    if times is not None:
        for source, source_name in enumerate(tiers):
            for target, target_name in enumerate(tiers):
                if source != target:
                    transfers.add((source_name, target_name), times.histogram(source, target))
    return transfers
