"""`KVCacheEventManager`: gathers a manager's events and hands them to whichever thread drains them.

    state     guaranteed                                        ways out
    UNBOUND   has no events                                     bind -> BOUND, by the one KVCacheManager that it is given to
    BOUND     every change of a published page is logged        none: its last events can be drained after a shutdown
    OFF       logs nothing, costs nothing (no entries)          none

A manager's calls only append to a log (`EventLog`). `flush_iteration_events` hands the log over; the draining thread turns it into
events, hashes included.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, SupportsFloat, SupportsIndex, final

from mypy_extensions import i64

from ..base.call_door import CallDoor
from ..base.checks import to_bool, to_count, to_int, to_number
from ..base.errors import LogicError
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import CacheTier
from .block_digest import SHA256, to_hash_algorithm
from .event_assembler import EventAssembler
from .event_backlog import EVENT_TYPES, EventBacklog
from .event_log import EventLog
from .event_snapshot import KVCacheEventSnapshot
from .kv_cache_event import KVCacheEvent
from .layer_group_facts import LayerGroupFacts

_MAX_TIMEOUT_MS: Final = 86_400_000


@final
class KVCacheEventManager(Handle):
    """The events of one `KVCacheManager`: pass it to the manager, call `flush_iteration_events` once a step, drain from any thread.

    ``max_kv_event_entries``: undrained events kept; beyond it the oldest are dropped, and the next event has their number. 0: off.
    ``hash_algo``: "sha256" names blocks by 64 hex digits, "sha256_64" by the integer of the first 8 bytes; "v2_sha256", "v2_sha256_64"
    and "v1_block_key" name them as TensorRT-LLM does. ``attention_dp_rank``: copied into each event. ``partial_blocks``: the published
    last blocks of sequences are announced too, though they are not full.
    """

    __slots__ = (
        "_max_events", "_hash_algo", "_attention_dp_rank", "_log", "_backlog", "_groups", "_tokens_per_block", "_cache_tiers",
        "_partial_blocks", "_door", "_is_published", "_inheritance",
    )  # fmt: skip

    _NAMES: ClassVar[str] = "the events of a manager of this process"

    def __init__(
        self,
        max_kv_event_entries: SupportsIndex,
        *,
        hash_algo: Given[str] = SHA256,
        attention_dp_rank: SupportsIndex | None = None,
        partial_blocks: Given[bool] = False,
    ) -> None:
        self._max_events: Final[int] = to_count(max_kv_event_entries, "max_kv_event_entries")
        self._hash_algo: Final[str] = to_hash_algorithm(hash_algo, "hash_algo")
        self._attention_dp_rank: Final[int | None] = None if attention_dp_rank is None else to_int(attention_dp_rank, "attention_dp_rank")
        self._partial_blocks: Final[bool] = to_bool(partial_blocks, "partial_blocks")
        self._log: EventLog | None = None
        self._backlog: EventBacklog | None = None
        self._groups: list[LayerGroupFacts] | None = None
        """None while UNBOUND."""
        self._tokens_per_block = 0
        self._cache_tiers: tuple[CacheTier, ...] = ()
        self._door: CallDoor | None = None
        """The manager's door; None while UNBOUND."""
        self._is_published = False
        """A publisher drains it."""
        self._inheritance: object = None
        """The state that each publisher leaves to the next; None before the first."""

    # -- for the manager ----------------------------------------------------------------------------------------------

    def require_unbound(self) -> None:
        """`LogicError` if a manager uses this event manager already."""
        if self._groups is not None:
            raise LogicError("this event_manager follows another KVCacheManager already; make a new one for each")

    def bind(
        self, groups: Sequence[LayerGroupFacts], first_page: i64, tokens_per_block: int, cache_tiers: Sequence[CacheTier], door: CallDoor
    ) -> EventLog | None:
        """Not for users: `KVCacheManager` calls it. The sink for its page storage; None if events are off."""
        self.require_unbound()
        self._groups = list(groups)
        self._tokens_per_block = tokens_per_block
        self._cache_tiers = tuple(cache_tiers)
        self._door = door
        if self._max_events == 0:
            return None
        assembler = EventAssembler(groups, first_page, self._hash_algo, self._attention_dp_rank, self._max_events)
        self._backlog = backlog = EventBacklog(assembler, self._max_events)
        self._log = log = EventLog(backlog, first_page, len(groups), self._partial_blocks)
        return log

    # -- for a publisher ----------------------------------------------------------------------------------------------

    def _begin_publishing(self, inheritance: object) -> object:
        """What the first publisher left, which is ``inheritance`` for that one. `LogicError` while there is one: each would lack the
        events of the other."""
        if self._is_published:
            raise LogicError("event_manager has a publisher already, which drains its events; close that one first")
        self._is_published = True
        if self._inheritance is None:
            self._inheritance = inheritance
        return self._inheritance

    def _end_publishing(self) -> None:
        """Another publisher may begin."""
        self._is_published = False

    # -- for the user -------------------------------------------------------------------------------------------------

    @property
    def max_kv_event_entries(self) -> int:
        """The most undrained events that are kept; 0: events are off."""
        return self._max_events

    @property
    def hash_algo(self) -> str:
        """The algorithm of the hashes in events."""
        return self._hash_algo

    @property
    def attention_dp_rank(self) -> int | None:
        """The rank in each event; None: it has none."""
        return self._attention_dp_rank

    @property
    def num_dropped(self) -> int:
        """Events dropped so far because they were not drained in time."""
        backlog = self._backlog
        return 0 if backlog is None else backlog.num_dropped

    @property
    def num_published(self) -> dict[str, int]:
        """Events drained so far, by type: created, stored, removed, updated."""
        backlog = self._backlog
        if backlog is None:
            return dict.fromkeys(EVENT_TYPES, 0)
        return {name: int(backlog.num_drained[position]) for position, name in enumerate(EVENT_TYPES)}

    @property
    def layer_group_kinds(self) -> tuple[str, ...]:
        """The kind of each layer group, in routers' terms: "full_attention", "sliding_window", "mamba"; empty while unbound."""
        groups = self._groups
        return () if groups is None else tuple([group.kind for group in groups])

    @property
    def tokens_per_block(self) -> int:
        """Tokens per block of the bound manager; 0 while unbound."""
        return self._tokens_per_block

    @property
    def cache_tiers(self) -> tuple[CacheTier, ...]:
        """The kind of memory of each cache level; empty while unbound."""
        return self._cache_tiers

    def flush_iteration_events(self) -> None:
        """Make the changes of all calls so far visible to drainers. Call it from the thread that calls the manager, in no callback."""
        if self._door is not None:
            self._door.require_idle()
        self._hand_over()

    def _hand_over(self) -> None:
        """A flush from inside a manager's call."""
        log = self._log
        if log is not None:
            log.hand_over()

    def get_latest_events(self, timeout_ms: SupportsFloat | None = None) -> list[KVCacheEvent]:
        """Drain: all events that were flushed and not drained yet, oldest first; from any thread.

        ``timeout_ms``: how long to wait for an event if there is none; None or 0: no waiting.
        """
        timeout_s = _to_seconds(timeout_ms)
        if self._door is not None:
            self._door.require_own_process()
        backlog = self._backlog
        if backlog is None:
            return []
        if timeout_s > 0:
            backlog.wait(timeout_s)
        return backlog.drain()

    def snapshot(self, flush: Given[bool] = True) -> KVCacheEventSnapshot:
        """The whole present state, and the id of the last event that is part of it. Flushes first, so the rules of a flush apply.

        With ``flush=False`` it is the state at the last flush, and any thread may ask for it. Events that are drained later and
        have an id up to that one are part of it. `LogicError` if events are off, or while no manager uses this event manager.
        """
        flushes = to_bool(flush, "flush")
        backlog = self._backlog
        if backlog is None:
            raise LogicError(
                "snapshot: events are off, as max_kv_event_entries is 0"
                if self._max_events == 0
                else "snapshot: give this event manager to a KVCacheManager first"
            )
        if self._door is not None:
            self._door.require_own_process()
        if flushes:
            self.flush_iteration_events()
        return backlog.snapshot()


def _to_seconds(timeout_ms: SupportsFloat | None) -> float:
    if timeout_ms is None:
        return 0.0
    milliseconds = to_number(timeout_ms, "timeout_ms")
    if not 0.0 <= milliseconds <= _MAX_TIMEOUT_MS:
        raise ValueError(f"timeout_ms is {timeout_ms}: it must be from 0 to {_MAX_TIMEOUT_MS} (a day), or None")
    return milliseconds / 1000
