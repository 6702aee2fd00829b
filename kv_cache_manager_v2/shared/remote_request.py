"""`RemoteRequest`: what a shared level has for one sequence, and what it gets from it.

    state      `remote_tokens`                 ways out
    LOOKING    None: not known yet             an admitted answer -> KNOWN
    KNOWN      so many more than committed     fetch -> FETCHING
    FETCHING   the same                        an admitted answer -> ARRIVED
    ARRIVED    the same                        take -> KNOWN, with those that are left
    ENDED      0                               none; `cancel_remote` leads here at any time

In every state the sequence is an ordinary one: it may compute its tokens itself, be suspended, or be closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..base.errors import LogicError
from ..base.handle import Handle
from ..manager.kv_cache import KVCache, SequenceStatus
from .block_names import BlockName, NameChain
from .remote_operation import RemoteOperation
from .remote_report import largest_at_most

if TYPE_CHECKING:
    from .shared_level import SharedLevel

LOOKING: Final = 0
KNOWN: Final = 1
FETCHING: Final = 2
ARRIVED: Final = 3
ENDED: Final = 4


class RemoteRequest(Handle):
    """Made by `SharedLevel.look_up`. Calls are the manager's thread's, like the sequence's own."""

    def __init__(self, level: SharedLevel, number: int, kv_cache: KVCache) -> None:
        """Not for users."""
        self._level: Final = level
        self._kv_cache: Final = kv_cache
        self._number: Final = number
        self._state = LOOKING
        self._committed = kv_cache.num_committed_tokens
        self._num_hits: Final = self._committed // kv_cache.tokens_per_block
        self._names: list[BlockName] = []
        self._places: dict[bytes, str] = {}
        self._lengths: tuple[tuple[int, int], ...] = ()
        self._operation: RemoteOperation | None = None
        self._step = 0
        self._num_offered = 0
        self._chain: NameChain | None = None

    @property
    def kv_cache(self) -> KVCache:
        return self._kv_cache

    @property
    def number(self) -> int:
        """Counts the level's requests, from 0 on; alike on ranks that make the same calls."""
        return self._number

    @property
    def remote_tokens(self) -> int | None:
        """How many tokens behind the committed ones the shared level has; None until an answer was admitted."""
        if self._state == LOOKING:
            return None
        if self._state == ENDED:
            return 0
        last = self._lengths[-1][1] if len(self._lengths) > 0 else 0
        return max(0, last * self._level.block_tokens - self._committed)

    @property
    def arrived_tokens(self) -> int | None:
        """How many tokens behind the committed ones `take` would add; None until the answer to a `fetch` was admitted."""
        if self._state != ARRIVED:
            return None
        return max(0, self._arrived_length() * self._level.block_tokens - self._committed)

    def _arrived_length(self) -> int:
        operation = self._operation
        if operation is None or operation.answer is None:
            return 0
        return largest_at_most(self._arrived, operation.num_blocks)

    def fetch(self) -> bool:
        """Begin to load what the level has, as far as all staging slots together can have it: all of that, or nothing.

        False, and nothing has changed, if too few staging slots are free, or there is nothing to load; ask again when other loads have
        ended. `LogicError` while another load of this request is under way, or has arrived and was not taken, and once the sequence
        is closed.
        """
        level = self._level
        level.require_usable()
        require_open(self._kv_cache, "fetch")
        if self._state in (FETCHING, ARRIVED):
            raise LogicError("fetch() while another load is under way or not taken; admit its answer, then take() or cancel_remote()")
        if self._state != KNOWN or self.remote_tokens == 0:
            return False
        operation = level.begin_load(
            self._number, self._step + 1, self._names, self._committed // level.block_tokens, self._lengths, self._places
        )
        if operation is None:
            return False
        self._step += 1
        self._operation = operation
        self._state = FETCHING
        return True

    def take(self) -> bool:
        """Put what has arrived into the sequence's pages, and commit its tokens: the model goes on behind them.

        The sequence must be ACTIVE, with nothing committed but what it began with and what earlier calls took, and without room for more.
        False, and nothing has changed, if the manager has no pages for it (`KVCacheManager.last_refusal`): again later, or
        `cancel_remote`. If the device refuses the copy, the sequence is closed, and its error passed on. `LogicError` otherwise.
        """
        level = self._level
        level.require_usable()
        if self._state != ARRIVED or self._operation is None:
            raise LogicError("take() before the answer to a fetch() was admitted; see arrived_tokens")
        kv_cache = self._kv_cache
        require_open(kv_cache, "take")
        if kv_cache.num_committed_tokens != self._committed:
            raise LogicError(
                f"take() for a sequence that has committed {kv_cache.num_committed_tokens} tokens, and had {self._committed}: it computes "
                f"them itself now; cancel_remote()"
            )
        if kv_cache.capacity != self._committed:
            raise LogicError(
                f"take() for a sequence that has room for {kv_cache.capacity} tokens, and {self._committed} are committed: take() first, "
                f"then resize()"
            )
        operation = self._operation
        length = self._arrived_length()
        begin = self._committed // level.block_tokens
        end = length * level.block_tokens
        if end > self._committed:
            kv_cache._require_input("take", end - self._committed, end)
            if not kv_cache.resize(end, end):
                return False
            level.fill_pages(kv_cache, operation, begin, length)
            level.note_taken(kv_cache, operation, begin, length)
            self._committed = end
        else:
            level.end_load(operation, None)
        self._operation = None
        self._state = KNOWN
        # A page that was found and did not arrive is not asked for again.
        self._lengths = self._lengths if length == operation.num_blocks else ()
        return True

    def cancel_remote(self) -> None:
        """Want nothing more from the shared level. Staging slots that a thread may still write into are quarantined. Twice is fine."""
        if self._state != ENDED:
            self._state = ENDED
            operation = self._operation
            self._operation = None
            if operation is not None:
                self._level.abandon(operation)
            self._level.forget(self._number)

    def store(self) -> int:
        """Offer the sequence's whole committed blocks to the store, as the write policy says; how many pages were accepted.

        Never waits, and never fails because of the store: pages are dropped where staging slots are short, or a store is full or does
        not answer. Call it after commits, while the sequence is ACTIVE; a block that was accepted is not offered again.
        """
        level = self._level
        level.require_usable()
        if not self._kv_cache.is_active:
            raise LogicError("store() for a sequence that is not ACTIVE: its pages may be anywhere; call it before suspend() or close()")
        num_blocks = self._kv_cache.num_committed_tokens // level.block_tokens
        limit = level.count_due(num_blocks, self._num_hits)
        if limit <= self._num_offered:
            return 0
        chain = self._chain
        if chain is None:
            chain = level._space.begin_chain(self._kv_cache.reuse_scope)
            self._chain = chain
        accepted, self._num_offered = level.begin_store(self._kv_cache, chain, self._num_offered, limit)
        return accepted

    # -- the level's --------------------------------------------------------------------------------------------------

    _arrived: tuple[tuple[int, int], ...] = ()

    def begin(self, operation: RemoteOperation | None) -> None:
        """The look-up has begun; None: there is nothing to look up."""
        self._operation = operation
        if operation is None:
            self._state = KNOWN

    def receive(
        self, operation: RemoteOperation, lengths: tuple[tuple[int, int], ...], names: list[BlockName], places: dict[bytes, str]
    ) -> None:
        """An answer was admitted."""
        if len(names) > 0 and len(self._names) == 0:
            self._names = names
            self._places = places
        if operation is not self._operation:
            return
        if self._state == LOOKING:
            self._lengths = lengths
            self._operation = None
            self._state = KNOWN
        elif self._state == FETCHING:
            self._arrived = lengths
            self._state = ARRIVED


def require_open(kv_cache: KVCache, call: str) -> None:
    """`LogicError` for a closed sequence."""
    if kv_cache.status is SequenceStatus.CLOSED:
        raise LogicError(f"{call}() for a sequence that is closed; make a new one with create_kv_cache(), and look it up")
