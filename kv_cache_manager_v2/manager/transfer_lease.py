"""`TransferLease`: pages that another machine reads or writes, unseen by the manager.

    state      ways out
    OPEN       settle() -> SETTLED. A handle that is dropped is reported; its lease stays open, `open_leases` has it
    SETTLED    none
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, SupportsIndex, final

from mypy_extensions import i64
from rawref import invalidate

from ..base.checks import to_index
from ..base.errors import LogicError
from ..base.finalizers import report_failure, warn_of_leak
from ..base.handle import Handle
from ..base.package_log import PackageLog
from ..journal.journal_format import SETTLE
from ..sequence.sequence_state import NO_TIMELINE
from ..sequence.shared_state import SharedState
from ..sequence.stream_handle import to_stream
from ..sequence.transfer_leases import TransferLeaseState

_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class TransferLease(Handle):
    """Made by `KVCache.reserve_transfer`, and listed by `KVCacheManager.open_leases`. Leaving a ``with`` settles it."""

    __slots__ = ("_shared", "_lease", "_is_looked_at")

    def __init__(self, shared: SharedState, lease: TransferLeaseState, is_looked_at: bool = False) -> None:
        """Not for users."""
        self._lease: Final = lease
        self._is_looked_at: Final = is_looked_at
        """Made by `open_leases`: dropping it says nothing, since the owner may hold the handle that `reserve_transfer` made."""
        self._shared: Final = shared

    def __del__(self) -> None:
        invalidate(self)
        # Compiled, `__new__` may have been refused before there was a lease, and only `getattr` notices.
        shared = getattr(self, "_shared", None)
        if not isinstance(shared, SharedState):
            return
        lease = self._lease
        try:
            if not self._is_looked_at and shared.claims.leases.is_open(lease.number) and not shared.guard.is_foreign:
                text = (
                    f"lease {lease.number} on pages of sequence {lease.sequence_id} was dropped without settle(); its pages stay "
                    f"reserved: settle it through open_leases once the other side is done"
                )
                _logger.warning("%s", text)
                warn_of_leak(text)
        except BaseException as error:
            report_failure(error, TransferLease)

    def __enter__(self) -> TransferLease:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        # After an error the other side may still be writing.
        if error is None and self.is_open:
            self.settle()

    @property
    def number(self) -> int:
        """Counts the manager's leases, from 0 on."""
        return self._lease.number

    @property
    def is_open(self) -> bool:
        """Whether the pages are still lent: `settle` ends it."""
        return self._shared.claims.leases.is_open(self._lease.number)

    @property
    def sequence_id(self) -> int:
        """The `id` of the sequence that the pages were taken from; it may be closed."""
        return self._lease.sequence_id

    def get_page_indices(self, layer_group_id: SupportsIndex) -> list[int]:
        """Slot ids of the leased blocks of that group in order, without those that it needs no page for."""
        return list(self._lease.slots[to_index(layer_group_id, "layer_group_id", len(self._lease.slots), "layer groups")])

    def settle(self, cuda_stream: object = None) -> None:
        """The other side is done: the pages are the manager's again. `LogicError` the second time.

        ``cuda_stream``: it is done after what is enqueued on that stream so far; None: by now.
        """
        shared = self._shared
        with shared.guard as journal:
            if not self.is_open:
                raise LogicError(f"settle() of lease {self._lease.number}, which was settled before")
            stream = None if cuda_stream is None else to_stream(cuda_stream, shared.device)
            timeline: i64 = NO_TIMELINE if stream is None else shared.order.enter(stream)
            with shared.storage.changes:
                shared.claims.leases.settle(self._lease, timeline)
            journal.record(SETTLE, self._lease.number, 0 if stream is None else stream + 1)
