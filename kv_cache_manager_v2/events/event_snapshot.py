"""A snapshot: the whole present state as events, from which a consumer that missed some starts anew."""

from dataclasses import dataclass

from ..base.value import Value
from .kv_cache_event import KVCacheEvent


@dataclass(frozen=True)
class KVCacheEventSnapshot(Value):
    """``events``: created and stored ones, parents first, equal to all events up to ``event_id``; -1: there was none."""

    event_id: int
    events: list[KVCacheEvent]

    def __repr__(self) -> str:
        return f"KVCacheEventSnapshot({self.event_id}, {len(self.events)} events)"
