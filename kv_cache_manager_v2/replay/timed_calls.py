"""The manager's calls, each timed by its kind.

The replay makes every serving call through this class; the calls' behaviour is the manager's.
One reading of the clock before and one after, so a histogram shows the call and little else.
"""

from time import perf_counter_ns
from typing import Final, final

from mypy_extensions import i64

from .. import FinishPlan, KVCache, KVCacheManager
from .recorder import (
    ADJUST,
    CAN_FINISH,
    CLOSE,
    COMMIT,
    CREATE,
    PREFETCH,
    PUBLISH_PLANNED,
    RESIZE,
    RESIZE_BATCH,
    RESUME,
    SUSPEND,
    CallRecorder,
)
from .tokens import Tokens


@final
class TimedCalls:
    """One manager and the recorder of its calls."""

    __slots__ = ("manager", "recorder")

    def __init__(self, manager: KVCacheManager, recorder: CallRecorder) -> None:
        self.manager: Final = manager
        self.recorder: Final = recorder

    def create(self, input_tokens: Tokens, id: int) -> KVCache:
        begin: i64 = perf_counter_ns()
        kv_cache = self.manager.create_kv_cache(None, input_tokens, id)
        self._record(CREATE, begin)
        return kv_cache

    def resume(self, kv_cache: KVCache, wait: bool = True) -> bool:
        begin: i64 = perf_counter_ns()
        is_resumed = kv_cache.resume(None, wait)
        self._record(RESUME, begin)
        return is_resumed

    def prefetch(self, kv_cache: KVCache) -> bool:
        begin: i64 = perf_counter_ns()
        is_on_its_way = kv_cache.prefetch()
        self._record(PREFETCH, begin)
        return is_on_its_way

    def suspend(self, kv_cache: KVCache) -> None:
        begin: i64 = perf_counter_ns()
        kv_cache.suspend()
        self._record(SUSPEND, begin)

    def resize(self, kv_cache: KVCache, capacity: int) -> bool:
        begin: i64 = perf_counter_ns()
        is_resized = kv_cache.resize(capacity)
        self._record(RESIZE, begin)
        return is_resized

    def resize_batch(self, kv_caches: list[KVCache], capacities: list[int], histories: list[int] | None = None) -> int:
        begin: i64 = perf_counter_ns()
        num_resized = self.manager.resize_batch(kv_caches, capacities, histories)
        self._record(RESIZE_BATCH, begin)
        return num_resized

    def commit(self, kv_cache: KVCache, tokens: Tokens | list[int]) -> None:
        begin: i64 = perf_counter_ns()
        kv_cache.commit(tokens)
        self._record(COMMIT, begin)

    def publish_planned(self, kv_cache: KVCache, tokens: Tokens | list[int]) -> None:
        begin: i64 = perf_counter_ns()
        kv_cache.publish_planned(tokens)
        self._record(PUBLISH_PLANNED, begin)

    def can_finish(self, kv_caches: list[KVCache], remaining: list[int], max_step: int) -> FinishPlan:
        begin: i64 = perf_counter_ns()
        plan = self.manager.can_finish(kv_caches, remaining, max_step)
        self._record(CAN_FINISH, begin)
        return plan

    def adjust_if_needed(self) -> bool:
        """Whether a pool group has changed."""
        begin: i64 = perf_counter_ns()
        has_changed = self.manager.need_adjustment and self.manager.adjust()
        self._record(ADJUST, begin)
        return has_changed

    def close(self, kv_cache: KVCache) -> None:
        begin: i64 = perf_counter_ns()
        kv_cache.close()
        self._record(CLOSE, begin)

    def _record(self, kind: int, begin: i64) -> None:
        end: i64 = perf_counter_ns()
        self.recorder.add(kind, end - begin)
