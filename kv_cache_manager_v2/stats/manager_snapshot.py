"""A manager's statistics at one moment, as a value that any thread may read."""

from typing import Final, final


from .storage_statistics import StorageStatistics
from .usage_statistics import UsageStatistics


@final
class ManagerSnapshot:
    __slots__ = ("usage", "levels", "num_active", "num_suspended")

    def __init__(self, usage: UsageStatistics | None, levels: list[list[StorageStatistics]], num_active: int, num_suspended: int) -> None:
        self.usage: Final = usage
        """None with ``enable_stats=False``."""
        self.levels: Final = levels
        """By cache level, one for each pool group."""
        self.num_active: Final = num_active
        self.num_suspended: Final = num_suspended
