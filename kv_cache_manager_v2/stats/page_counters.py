"""Counters of pages: copied from which level to which, and dropped from which level for which reason.

Storage counts what it has done, never what it plans. Conservation: each page made is later freed by its only user, dropped, or still
there; copies neither make nor end a page.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from .drop_reason import NUM_DROP_REASONS


@final
@mypyc_attr(native_class=True)
class PageCounters:
    __slots__ = ("num_levels", "num_pool_groups", "page_bytes", "copied_pages", "dropped_pages", "caller")

    num_levels: Final[i64]
    num_pool_groups: Final[i64]
    page_bytes: Final[vec[i64]]
    """Of each pool group."""
    copied_pages: Final[vec[i64]]
    """[source level][target level][pool group]"""
    dropped_pages: Final[vec[i64]]
    """[level][pool group][reason]"""
    caller: PageCounters | None
    """The counters of the sequence whose call is running; they count the same changes."""

    def __init__(self, num_levels: i64, page_bytes: vec[i64]) -> None:
        num_pool_groups: i64 = len(page_bytes)
        self.num_levels = num_levels
        self.num_pool_groups = num_pool_groups
        self.page_bytes = page_bytes
        self.copied_pages = vec[i64]([0] * (num_levels * num_levels * num_pool_groups))
        self.dropped_pages = vec[i64]([0] * (num_levels * num_pool_groups * NUM_DROP_REASONS))
        self.caller = None

    def record_copied(self, source_level: i64, target_level: i64, pool_group: i64, num_pages: i64) -> None:
        """Count a copy: "copied" on one level, "onboarded" to a warmer one, "offloaded" to a colder one."""
        at = (source_level * self.num_levels + target_level) * self.num_pool_groups + pool_group
        self.copied_pages[at] += num_pages
        if self.caller is not None:
            self.caller.record_copied(source_level, target_level, pool_group, num_pages)

    def record_dropped(self, level: i64, pool_group: i64, reason: i64, num_pages: i64) -> None:
        """Count dropped pages; ``reason`` is a `removal_cause`."""
        at = (level * self.num_pool_groups + pool_group) * NUM_DROP_REASONS + reason
        dropped = self.dropped_pages
        dropped[at] += num_pages
        if self.caller is not None:
            # A sequence's counters have the same shape, and no caller.
            dropped = self.caller.dropped_pages
            dropped[at] += num_pages
