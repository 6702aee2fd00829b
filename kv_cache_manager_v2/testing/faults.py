"""Planned faults: the n-th call of a kind fails, before it has changed anything.

A `FaultPlan` belongs to one simulated device, which consults it at the start of each call that can fail. A fault fires
once. Calls are counted from the moment the fault is planned. ``disk_read`` and ``disk_write`` count batches of copies from
and to a disk, which fail when they run.
"""

from typing import ClassVar, Final, final


from ..base.handle import Handle

FAULT_KINDS: Final = (
    "reserve",
    "map",
    "unmap",
    "copy",
    "fill",
    "launch",
    "record",
    "wait",
    "create_stream",
    "synchronize",
    "disk_read",
    "disk_write",
)


@final
class FaultPlan(Handle):
    """The planned faults. Conservation: each one is pending, or has fired, or was cleared."""

    __slots__ = ("_pending", "num_fired")

    _NAMES: ClassVar[str] = "calls of a device of this process"

    def __init__(self) -> None:
        self._pending: Final[dict[str, list["_Fault"]]] = {}
        self.num_fired = 0

    def fail(self, kind: str, nth: int, error: BaseException) -> None:
        """Make the ``nth`` call of that kind from now on (1 is the next one) raise ``error`` and change nothing."""
        if kind not in FAULT_KINDS:
            raise ValueError(f"there is no fault kind {kind!r}; the kinds are {', '.join(FAULT_KINDS)}")
        if nth < 1:
            raise ValueError(f"nth is {nth}: calls are counted from 1, the next one")
        self._pending.setdefault(kind, []).append(_Fault(nth, error))

    def clear(self) -> None:
        """Forget the faults that have not fired."""
        self._pending.clear()

    def take_failure(self, kind: str) -> BaseException | None:
        """`count_call` for work that fails later: the error with which it will fail, or None."""
        try:
            self.count_call(kind)
        except BaseException as error:
            return error
        return None

    @property
    def num_pending(self) -> int:
        return sum([len(faults) for faults in self._pending.values()])

    def count_call(self, kind: str) -> None:
        """Count a call of that kind; raises if it was planned to fail."""
        if not self._pending:
            return
        faults = self._pending.get(kind)
        if faults is None:
            return
        fired: _Fault | None = None
        for fault in faults:
            fault.calls_left -= 1
            if fault.calls_left == 0 and fired is None:
                fired = fault
        # Two faults planned for one call: the first is raised, and both are removed.
        still_pending = [fault for fault in faults if fault.calls_left > 0]
        if still_pending:
            self._pending[kind] = still_pending
        else:
            del self._pending[kind]
        self.num_fired += len(faults) - len(still_pending)
        if fired is not None:
            raise fired.error


@final
class _Fault:
    __slots__ = ("calls_left", "error")

    def __init__(self, calls_left: int, error: BaseException) -> None:
        self.calls_left = calls_left
        self.error: Final = error
