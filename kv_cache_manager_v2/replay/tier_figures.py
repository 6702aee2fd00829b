"""Figures of each level in a replay's report: hits, and transfers between levels."""

from collections.abc import Sequence
from dataclasses import dataclass

from .. import KVCacheManager
from ..base.value import Value
from .timeline import TIER_NAMES

TIER_HEADER = ("level", "quota", "slots", "peak slots", "hit tokens", "pages in", "pages out", "pages dropped", "clean copies")
TRANSFER_HEADER = ("from", "to", "pool group", "pages", "bytes")


@dataclass(frozen=True)
class TierFigures(Value):
    """One level, all its pool groups together. ``hit_tokens``: of prompts, by the level that they were found on.

    Each request's first admission counts. Pages in and out: copied from and to other levels. Clean copies: free
    slots that at the end have a clean copy of a page on a warmer level, whose offloading needs no write.
    """

    tier: str
    quota_bytes: int
    total_slots: int
    peak_slots: int
    hit_tokens: int
    pages_in: int
    pages_out: int
    dropped_pages: int
    clean_copies: int


@dataclass(frozen=True)
class TransferFigures(Value):
    """Pages of one pool group that were copied from one level to another."""

    source_level: int
    target_level: int
    pool_group: int
    pages: int
    bytes: int


def tier_figures(manager: KVCacheManager, hit_tokens: Sequence[int]) -> tuple[TierFigures, ...]:
    usage = manager.get_statistics()
    figures: list[TierFigures] = []
    for level, tier in enumerate(manager.cache_tier_list):
        groups = manager.get_storage_statistics(level)
        moved = [one for one in usage.transfers if one.source_level != one.target_level]
        figures.append(
            TierFigures(
                tier=TIER_NAMES[tier.name],
                quota_bytes=manager.get_quota(level),
                total_slots=sum([group.total for group in groups]),
                peak_slots=sum([group.peak_used for group in groups]),
                hit_tokens=hit_tokens[level],
                pages_in=sum([one.blocks for one in moved if one.target_level == level]),
                pages_out=sum([one.blocks for one in moved if one.source_level == level]),
                dropped_pages=sum([drop.blocks for drop in usage.drops if drop.level == level]),
                clean_copies=sum([group.clean_copies for group in groups]),
            )
        )
    return tuple(figures)


def transfer_figures(manager: KVCacheManager) -> tuple[TransferFigures, ...]:
    """Transfers that occurred; copies within a level are private copies, recurrent states, and pages that moved as it shrank."""
    return tuple([
        TransferFigures(one.source_level, one.target_level, one.pool_group, one.blocks, one.bytes)
        for one in manager.get_statistics().transfers
    ])


def tier_rows(tiers: tuple[TierFigures, ...]) -> list[tuple[str, ...]]:
    return [
        (
            f"{level} {tier.tier}", f"{tier.quota_bytes:,}", f"{tier.total_slots:,}", f"{tier.peak_slots:,}",
            f"{tier.hit_tokens:,}", f"{tier.pages_in:,}", f"{tier.pages_out:,}", f"{tier.dropped_pages:,}",
            f"{tier.clean_copies:,}",
        )
        for level, tier in enumerate(tiers)
    ]  # fmt: skip


def transfer_rows(
    tiers: tuple[TierFigures, ...], transfers: tuple[TransferFigures, ...]
) -> list[tuple[str, ...]]:
    return [
        (
            f"{one.source_level} {tiers[one.source_level].tier}", f"{one.target_level} {tiers[one.target_level].tier}",
            str(one.pool_group), f"{one.pages:,}", f"{one.bytes:,}",
        )
        for one in transfers
    ]  # fmt: skip
