"""A copy of the counters at one moment, and the difference between two moments as a value."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .drop_reason import NUM_DROP_REASONS, DropReason
from .miss_cause import NUM_MISS_CAUSES, MissCause
from .usage_counters import (
    ALLOCATED,
    GENERATED,
    MISSED,
    NUM_BLOCK_COUNTS,
    PLANNED_TOKENS,
    PROMPT_TOKENS,
    REQUESTS,
    RESUMES,
    REUSED_FULL,
    REUSED_PARTIAL,
    REUSED_PLANNED,
    SUSPENDS,
    UsageCounters,
)
from .usage_statistics import (
    BlockStatistics,
    DropStatistics,
    PromptStatistics,
    TransferStatistics,
    UsageStatistics,
)


@final
class UsageSnapshot:
    __slots__ = ("counts", "copied_pages", "dropped_pages")

    def __init__(self, counters: UsageCounters) -> None:
        self.counts: Final[vec[i64]] = counters.counts[:]
        self.copied_pages: Final[vec[i64]] = counters.pages.copied_pages[:]
        self.dropped_pages: Final[vec[i64]] = counters.pages.dropped_pages[:]


def compute_usage(
    counters: UsageCounters,
    since: UsageSnapshot | None,
    pool_group_of: vec[i64],
    peak_pages: vec[i64],
    peak_slots: tuple[tuple[int, ...], ...],
) -> UsageStatistics:
    """The counts since the snapshot; None: since the start."""
    counts = _subtract(counters.counts, None if since is None else since.counts)
    calls_at = int(counters.calls_at)
    groups: list[BlockStatistics] = []
    for group in range(counters.num_layer_groups):
        at = group * NUM_BLOCK_COUNTS
        groups.append(
            BlockStatistics(
                layer_group_id=group,
                pool_group=int(pool_group_of[group]),
                allocated=counts[at + ALLOCATED],
                reused_full=counts[at + REUSED_FULL],
                reused_partial=counts[at + REUSED_PARTIAL],
                missed=counts[at + MISSED],
                generated=counts[at + GENERATED],
                peak_pages=int(peak_pages[group]),
                reused_planned=counts[at + REUSED_PLANNED],
            )
        )
    return UsageStatistics(
        requests=counts[calls_at + REQUESTS],
        prompts=_compute_prompts(counters, counts),
        layer_groups=tuple(groups),
        transfers=_compute_transfers(counters, since),
        drops=_compute_drops(counters, since),
        suspends=counts[calls_at + SUSPENDS],
        resumes=counts[calls_at + RESUMES],
        peak_slots=peak_slots,
    )


def _subtract(now: vec[i64], before: vec[i64] | None) -> list[int]:
    if before is None:
        return [int(number) for number in now]
    return [int(now[position] - before[position]) for position in range(len(now))]


def _compute_prompts(counters: UsageCounters, counts: list[int]) -> PromptStatistics:
    hits_at = int(counters.hits_at)
    misses_at = int(counters.misses_at)
    missed: dict[MissCause, int] = {}
    for cause in MissCause:
        number = counts[misses_at + cause]
        if number > 0:
            missed[cause] = number
    assert len(MissCause) == NUM_MISS_CAUSES, "a cause has no name"
    return PromptStatistics(
        tokens=counts[int(counters.calls_at) + PROMPT_TOKENS],
        hit_tokens=tuple(counts[hits_at:misses_at]),
        missed_tokens=missed,
        planned_tokens=counts[int(counters.calls_at) + PLANNED_TOKENS],
    )


def _compute_transfers(counters: UsageCounters, since: UsageSnapshot | None) -> tuple[TransferStatistics, ...]:
    pages = counters.pages
    copied = _subtract(pages.copied_pages, None if since is None else since.copied_pages)
    transfers: list[TransferStatistics] = []
    position = 0
    for source in range(pages.num_levels):
        for target in range(pages.num_levels):
            for pool_group in range(pages.num_pool_groups):
                number = copied[position]
                position += 1
                if number > 0:
                    colder = max(source, target)
                    num_bytes = number * int(pages.page_bytes[colder * pages.num_pool_groups + pool_group])
                    transfers.append(TransferStatistics(source, target, pool_group, number, num_bytes))
    return tuple(transfers)


def _compute_drops(counters: UsageCounters, since: UsageSnapshot | None) -> tuple[DropStatistics, ...]:
    pages = counters.pages
    dropped = _subtract(pages.dropped_pages, None if since is None else since.dropped_pages)
    drops: list[DropStatistics] = []
    for level in range(pages.num_levels):
        for pool_group in range(pages.num_pool_groups):
            at = (level * int(pages.num_pool_groups) + pool_group) * NUM_DROP_REASONS
            for reason in DropReason:
                number = dropped[at + reason]
                if number > 0:
                    drops.append(DropStatistics(level, pool_group, reason, number))
    return tuple(drops)
