"""The statistics of an iteration as one `logging` record: a line for people, fields for machines."""

import logging
from typing import Any, ClassVar, Final, SupportsIndex, final


from ..base.checks import to_instance, to_int, type_name
from ..base.given import Given
from ..base.handle import Handle
from ..manager.kv_cache_manager import KVCacheManager
from ..stats.usage_statistics import UsageStatistics

LOGGER_NAME: Final = "kv_cache_manager_v2.statistics"


@final
class StatisticsLog(Handle):
    """A log of iterations: `write` logs what happened since its last call. The record's attribute ``kvcm`` is a dict of the figures.

    It takes the manager's iteration statistics, so no other code should take them. ``logger`` None:
    ``kv_cache_manager_v2.statistics``.
    """

    __slots__ = ("_manager", "_logger", "_level")

    _NAMES: ClassVar[str] = "a manager of this process"

    def __init__(
        self, manager: Given[KVCacheManager], logger: Given[logging.Logger | None] = None, level: SupportsIndex = logging.INFO
    ) -> None:
        manager = to_instance(manager, KVCacheManager, "manager")
        if logger is not None and not isinstance(logger, (logging.Logger, logging.LoggerAdapter)):
            raise TypeError(f"logger must be a logging.Logger or None, not {type_name(logger)}; make one: logging.getLogger(name)")
        number = to_int(level, "level")
        self._manager: Final = manager
        chosen_logger: Any = logging.getLogger(LOGGER_NAME) if logger is None else logger
        self._logger: Final[Any] = chosen_logger
        self._level: Final[int] = number

    def write(self) -> None:
        """Log the iteration. If the log level is disabled, do almost nothing, and let the iteration continue."""
        self._manager._require_idle()
        if not self._logger.isEnabledFor(self._level):
            return
        fields = flatten(self._manager.get_iteration_statistics())
        line = " ".join([f"{name}={value}" for name, value in fields.items() if value != 0])
        self._logger.log(self._level, "%s", line or "nothing happened", extra={"kvcm": fields})


def flatten(usage: UsageStatistics) -> dict[str, Any]:
    """All figures, one name each, summed over layer groups and pool groups."""
    fields: dict[str, Any] = {
        "requests": usage.requests,
        "prompt_tokens": usage.prompts.tokens,
        "hit_tokens": usage.prompts.num_hit,
        "allocated_blocks": usage.allocated,
        "reused_blocks": usage.reused,
        "missed_blocks": usage.missed,
        "generated_blocks": usage.generated,
        "suspends": usage.suspends,
        "resumes": usage.resumes,
    }
    for cause, tokens in usage.prompts.missed_tokens.items():
        fields[f"missed_{cause.name.lower()}"] = tokens
    for kind in ("onboarded", "offloaded", "copied"):
        fields[f"{kind}_blocks"] = usage.count_transfers(kind)
    for drop in usage.drops:
        name = f"dropped_{drop.reason.name.lower()}"
        fields[name] = fields.get(name, 0) + drop.blocks
    return fields
