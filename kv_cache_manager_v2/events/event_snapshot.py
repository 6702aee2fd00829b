"""A snapshot: the whole present state as events, from which a consumer that missed some starts anew."""

from typing import Final, final


from ..base.value import Value
from .kv_cache_event import KVCacheEvent


@final
class KVCacheEventSnapshot(Value):
    """``events``: created and stored ones, parents first, equal to all events up to ``event_id``; -1: there was none."""

    __slots__ = ("event_id", "events")

    event_id: Final[int]
    events: Final[list[KVCacheEvent]]

    def __init__(self, event_id: int, events: list[KVCacheEvent]) -> None:
        self.event_id = event_id
        self.events = events

    def _arguments(self) -> tuple[object, ...]:
        return (self.event_id, self.events)

    def __repr__(self) -> str:
        return f"KVCacheEventSnapshot({self.event_id}, {len(self.events)} events)"
