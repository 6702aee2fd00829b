"""Spans of OpenTelemetry for calls that bring pages up: one for each, from its beginning to its return."""

from time import time_ns
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..manager.kv_cache_manager import KVCacheManager
from ..sequence.move_watch import ONBOARD, MoveWatch
from ..stats.usage_statistics import TransferStatistics
from .metric_samples import name_tiers

SPAN_NAMES: Final = {ONBOARD: "kvcm.onboard"}
_PREFETCH_NAME: Final = "kvcm.prefetch"


@final
@mypyc_attr(native_class=True)
class MoveTracer(MoveWatch):
    """``trace``: the module `opentelemetry.trace`. A span is a child of the one that is current where the engine makes the call."""

    __slots__ = ("_manager", "_tracer", "_trace", "_attributes", "_tiers", "_before", "_began_at")

    def __init__(self, manager: KVCacheManager, tracer: Any, trace: Any, attributes: dict[str, Any]) -> None:
        self._manager: Final = manager
        self._tracer: Final[Any] = tracer
        self._trace: Final[Any] = trace
        self._attributes: Final[dict[str, Any]] = attributes
        self._tiers: Final = name_tiers(manager)
        self._before: tuple[TransferStatistics, ...] = ()
        self._began_at = 0

    def begin(self) -> None:
        self._before = self._manager.get_statistics().transfers
        self._began_at = time_ns()

    def end(self, kind: str, sequence_id: int | None, is_done: bool, error: BaseException | None) -> None:
        """An onboarding that moved nothing and did not fail has no span."""
        ended_at = time_ns()
        num_pages, num_bytes, sources = self._count_moved()
        if kind == ONBOARD and num_pages == 0 and is_done and error is None:
            return
        attributes: dict[str, Any] = {
            **self._attributes, "kvcm.pages": num_pages, "kvcm.bytes": num_bytes, "kvcm.source_tiers": sources,
            "kvcm.is_refused": not is_done and error is None,
        }  # fmt: skip
        if sequence_id is not None:
            attributes["kvcm.sequence.id"] = sequence_id
        span = self._tracer.start_span(SPAN_NAMES.get(kind, _PREFETCH_NAME), start_time=self._began_at, attributes=attributes)
        if error is not None:
            span.record_exception(error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.end(ended_at)

    def _count_moved(self) -> tuple[int, int, list[str]]:
        """Pages and bytes onboarded since `begin`, and the tiers that they came from."""
        num_pages, num_bytes = 0, 0
        sources: list[str] = []
        before = {(one.source_level, one.target_level, one.pool_group): one for one in self._before}
        for now in self._manager.get_statistics().transfers:
            if now.kind != "onboarded":
                continue
            earlier = before.get((now.source_level, now.target_level, now.pool_group))
            moved = now.blocks - (0 if earlier is None else earlier.blocks)
            if moved > 0:
                num_pages += moved
                num_bytes += now.bytes - (0 if earlier is None else earlier.bytes)
                if self._tiers[now.source_level] not in sources:
                    sources.append(self._tiers[now.source_level])
        return num_pages, num_bytes, sources
