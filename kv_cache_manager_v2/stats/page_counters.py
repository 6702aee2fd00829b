"""Counters of pages: copied from which level to which, and dropped from which level for which reason.

Storage counts what it has done, never what it plans. Conservation: each page made is later freed by its only user, dropped, or still
there; copies neither make nor end a page.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .drop_reason import NUM_DROP_REASONS


@final
class PageCounters:
    __slots__ = ("num_levels", "num_pool_groups", "page_bytes", "copied_pages", "dropped_pages")

    def __init__(self, num_levels: i64, page_bytes: vec[i64]) -> None:
        num_pool_groups = i64(len(page_bytes)) // num_levels
        self.num_levels: Final = num_levels
        self.num_pool_groups: Final[i64] = num_pool_groups
        self.page_bytes: Final = page_bytes
        """[level][pool group]"""
        self.copied_pages: Final = vec[i64]([0] * (num_levels * num_levels * num_pool_groups))
        """[source level][target level][pool group]"""
        self.dropped_pages: Final = vec[i64]([0] * (num_levels * num_pool_groups * NUM_DROP_REASONS))
        """[level][pool group][reason]"""

    def record_copied(
        self, source_level: i64, target_level: i64, pool_group: i64, num_pages: i64, account: PageCounters | None = None
    ) -> None:
        """Count a copy: "copied" on one level, "onboarded" to a warmer one, "offloaded" to a colder one.

        ``account``: counts the same once more, for the sequence whose call it is.
        """
        at = (source_level * self.num_levels + target_level) * self.num_pool_groups + pool_group
        self.copied_pages[at] += num_pages
        if account is not None:
            account.record_copied(source_level, target_level, pool_group, num_pages)

    def record_dropped(self, level: i64, pool_group: i64, reason: i64, num_pages: i64, account: PageCounters | None) -> None:
        """Count dropped pages. ``reason`` is a `removal_cause`; ``account``: as in `record_copied`."""
        at = (level * self.num_pool_groups + pool_group) * NUM_DROP_REASONS + reason
        self.dropped_pages[at] += num_pages
        if account is not None:
            # Of the same levels and groups.
            account.dropped_pages[at] += num_pages
