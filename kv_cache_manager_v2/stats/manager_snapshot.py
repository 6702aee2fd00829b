"""A manager's statistics at one moment, as a value that any thread may read."""

from dataclasses import dataclass

from .storage_statistics import StorageStatistics
from .usage_statistics import UsageStatistics


@dataclass(frozen=True)
class ManagerSnapshot:
    usage: UsageStatistics | None
    """None with ``enable_stats=False``."""
    levels: list[list[StorageStatistics]]
    """By cache level, one for each pool group."""
    num_active: int
    num_suspended: int
