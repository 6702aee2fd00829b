"""The open sequences of one manager. Owns their states; only observes the users' handles.

Conservation: a state is here from `add` until `remove`, which its close calls. A handle that dies first queues its state at
the call guard, and the state stays here until the next call closes it. A destructor that could not even do that (interrupted
before its first line, no memory) leaves a state without a handle, which `forgotten` lists.
"""

from typing import Final, final

import rawref
from mypy_extensions import mypyc_attr

from ..sequence.sequence_state import SequenceState


@final
@mypyc_attr(native_class=True)
class OpenSequences:
    __slots__ = ("_states", "_handles", "_next_serial")

    _states: Final[dict[int, SequenceState]]
    _handles: Final[dict[int, rawref.ref[object]]]
    _next_serial: int

    def __init__(self) -> None:
        self._states = {}
        self._handles = {}
        self._next_serial = 0

    def __len__(self) -> int:
        return len(self._states)

    @property
    def next_serial(self) -> int:
        """The number that the next sequence gets: how many there were before it."""
        return self._next_serial

    def add(self, state: SequenceState, handle: object) -> None:
        self._next_serial = state.serial + 1
        self._states[state.serial] = state
        self._handles[state.serial] = rawref.ref(handle)

    def remove(self, state: SequenceState) -> None:
        self._states.pop(state.serial, None)
        self._handles.pop(state.serial, None)

    def states(self) -> list[SequenceState]:
        """In the order of creation."""
        return list(self._states.values())

    def forgotten(self) -> list[SequenceState]:
        """Those whose handle is gone, in the order of creation."""
        states: list[SequenceState] = []
        for serial, state in self._states.items():
            reference = self._handles.get(serial)
            if reference is None or not reference.is_valid:
                states.append(state)
        return states

    def handles(self) -> list[object]:
        """The handles that are still alive, in the order of creation."""
        handles: list[object] = []
        for reference in self._handles.values():
            handle = reference()
            if handle is not None:
                handles.append(handle)
        return handles
