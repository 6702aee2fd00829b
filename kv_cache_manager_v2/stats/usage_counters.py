"""Counters of what sequences asked for and got: blocks, prompt tokens, suspends and resumes. They only grow.

One `UsageCounters` for the manager, one for each open sequence. All counts are in one vector, so that they can be copied and
subtracted at once:

    [0, 6 * groups)        blocks of each layer group, by kind of count (ALLOCATED ..)
    [hits_at, ..)          hit tokens by the level that they were found on
    [misses_at, ..)        missed tokens by `miss_cause`
    [calls_at, ..)         REQUESTS ..
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .miss_cause import LOAD_FAILED, NUM_MISS_CAUSES
from .page_counters import PageCounters

ALLOCATED: Final = 0
REUSED_FULL: Final = 1
REUSED_PARTIAL: Final = 2
MISSED: Final = 3
GENERATED: Final = 4
REUSED_PLANNED: Final = 5
NUM_BLOCK_COUNTS: Final = 6

REQUESTS: Final = 0
PROMPT_TOKENS: Final = 1
SUSPENDS: Final = 2
RESUMES: Final = 3
PLANNED_TOKENS: Final = 4
NUM_CALL_COUNTS: Final = 5


@final
class UsageCounters:
    __slots__ = ("num_layer_groups", "num_levels", "hits_at", "misses_at", "calls_at", "counts", "peak_pages", "recent_peaks", "pages")

    def __init__(self, num_layer_groups: i64, pages: PageCounters) -> None:
        self.num_layer_groups: Final = num_layer_groups
        self.num_levels: Final[i64] = pages.num_levels
        self.hits_at: Final[i64] = num_layer_groups * NUM_BLOCK_COUNTS
        self.misses_at: Final[i64] = self.hits_at + pages.num_levels
        self.calls_at: Final[i64] = self.misses_at + NUM_MISS_CAUSES
        self.counts: Final = vec[i64]([0] * (self.calls_at + NUM_CALL_COUNTS))
        self.peak_pages: Final = vec[i64]([0] * num_layer_groups)
        """Per layer group the most pages that one sequence had at one time."""
        self.recent_peaks = vec[i64]([0] * num_layer_groups)
        """The peaks since `take_recent_peaks`."""
        self.pages: Final = pages

    def add_blocks(self, layer_group: i64, kind: i64, number: i64) -> None:
        at = layer_group * NUM_BLOCK_COUNTS + kind
        self.counts[at] += number

    def add_call(self, kind: i64) -> None:
        at = self.calls_at + kind
        self.counts[at] += 1

    def add_all_of(self, other: UsageCounters) -> None:
        """Add all counts but the peaks and the pages."""
        counts = self.counts
        others = other.counts
        for position in range(len(counts)):
            counts[position] += others[position]

    def record_peak(self, layer_group: i64, num_pages: i64) -> None:
        if num_pages > self.recent_peaks[layer_group]:
            self.recent_peaks[layer_group] = num_pages
        if num_pages > self.peak_pages[layer_group]:
            self.peak_pages[layer_group] = num_pages

    def take_recent_peaks(self) -> vec[i64]:
        recent = self.recent_peaks
        self.recent_peaks = vec[i64]([0] * self.num_layer_groups)
        return recent


@final
class SequenceCounters:
    """One sequence's own counters, and the manager's, which they are part of.

    A sequence's match is added to the manager's counters when its first tokens are given room: an engine under pressure looks its queue's
    head up at every step, and what it cannot admit is no request. By then what a disk reads is there: counters only grow, so what turns
    out to be lost must not be in there as hits.
    """

    __slots__ = ("usage", "total", "prompt_length", "is_in_total", "num_counted_blocks", "num_lost")

    def __init__(self, num_layer_groups: i64, pages: PageCounters, total: UsageCounters | None, prompt_length: i64) -> None:
        self.usage: Final = UsageCounters(num_layer_groups, PageCounters(pages.num_levels, pages.page_bytes))
        self.total: Final = total
        """The manager's counters; None if the sequence is excluded."""
        self.prompt_length: Final = prompt_length
        """Blocks that begin at this token or later are generated."""
        self.is_in_total = False
        self.num_counted_blocks: i64 = 0
        """The most blocks that were ever counted: those of a step that is taken back and done again count once."""
        self.num_lost: i64 = 0
        """Committed tokens that a disk could not read when the sequence needed them last."""

    def make_fork(self) -> SequenceCounters:
        """The counters of a fork: not a request of its own, and everything it has so far is its parent's."""
        counters = SequenceCounters(self.usage.num_layer_groups, self.usage.pages, self.total, self.prompt_length)
        counters.is_in_total = self.is_in_total
        return counters

    def add_blocks(self, layer_group: i64, kind: i64, number: i64) -> None:
        self.usage.add_blocks(layer_group, kind, number)
        if self.is_in_total and self.total is not None:
            self.total.add_blocks(layer_group, kind, number)

    def record_peak(self, layer_group: i64, num_pages: i64) -> None:
        self.usage.record_peak(layer_group, num_pages)
        if self.is_in_total and self.total is not None:
            self.total.record_peak(layer_group, num_pages)

    def record_resumed(self) -> None:
        self.num_lost = 0
        self._add_call(RESUMES)

    def record_suspended(self) -> None:
        self._add_call(SUSPENDS)

    def _add_call(self, kind: i64) -> None:
        self.usage.add_call(kind)
        if self.is_in_total and self.total is not None:
            self.total.add_call(kind)

    def enter_total(self) -> None:
        """The sequence is a request from now on, with what it has found."""
        total = self.total
        if total is None or self.is_in_total:
            return
        self.take_lost_hits()
        self.is_in_total = True
        total.add_all_of(self.usage)
        for layer_group in range(total.num_layer_groups):
            total.record_peak(layer_group, self.usage.peak_pages[layer_group])

    def take_lost_hits(self) -> bool:
        """Tokens that were found and could not be read are missed, while the total does not have them yet; whether there were any.

        Those of the coldest level go first: it is a disk.
        """
        usage = self.usage
        counts = usage.counts
        left = self.num_lost
        self.num_lost = 0
        if left == 0 or self.is_in_total:
            return False
        at = usage.misses_at - 1
        while at >= usage.hits_at and left > 0:
            number = counts[at] if counts[at] < left else left
            counts[at] -= number
            counts[usage.misses_at + LOAD_FAILED] += number
            left -= number
            at -= 1
        return True


def find_page_counters(counters: SequenceCounters | None) -> PageCounters | None:
    """The sequence's own page counters for its call's copies and drops; None without statistics."""
    return None if counters is None else counters.usage.pages
