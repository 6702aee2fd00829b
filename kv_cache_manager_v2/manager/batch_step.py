"""One call for a step of many sequences: what the caller listed, all of it checked before anything changes."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_counts, to_list
from ..sequence.disk_arrivals import wait_for_reads
from ..sequence.page_arrivals import settle_arrivals
from ..sequence.resize import try_resize
from ..sequence.sequence_state import SequenceState
from ..sequence.shared_state import SharedState
from ..sequence.step_validation import validate_resize
from .kv_cache import KVCache


@final
@mypyc_attr(native_class=True)
class BatchStep:
    """The sequences of one batch call, each listed once; ``number`` is that of the call, unique within the manager."""

    __slots__ = ("_shared", "_call", "_states")

    _shared: Final[SharedState]
    _call: Final[str]
    _states: Final[list[SequenceState]]

    def __init__(self, shared: SharedState, call: str, number: i64, kv_caches: object) -> None:
        self._shared = shared
        self._call = call
        self._states = []
        states = self._states
        for kv_cache in to_list(kv_caches, "kv_caches"):
            if not isinstance(kv_cache, KVCache):
                raise TypeError(f"{call}: item {len(states)} is a {type(kv_cache).__name__}, not a KVCache")
            state = kv_cache._state_for_batch()
            if state.shared is not shared:
                raise ValueError(f"{call}: sequence {state.id} belongs to another manager")
            if state.batch_number == number:
                raise ValueError(f"{call}: sequence {state.id} is listed twice")
            state.batch_number = number
            states.append(state)

    def resize(self, capacities: object, history_lengths: object) -> int:
        """How many from the front succeeded."""
        states = self._states
        new_capacities = to_counts(capacities, "capacity")
        if history_lengths is None:
            new_histories = vec[i64]([state.history for state in states])
        else:
            new_histories = to_counts(history_lengths, "history_length")
        count: i64 = len(states)
        if len(new_capacities) != count or len(new_histories) != count:
            raise ValueError(
                f"{self._call}: {count} sequences, {len(new_capacities)} capacities"
                + ("" if history_lengths is None else f", {len(new_histories)} history lengths")
            )
        position: i64 = 0
        for state in states:
            validate_resize(state, new_capacities[position], new_histories[position])
            position += 1
        for state in states:
            if state.awaits_reads:
                wait_for_reads(state)
        journal = self._shared.journal
        position = 0
        for state in states:
            capacity = new_capacities[position]
            history = new_histories[position]
            if journal is not None:
                journal.begin()
            if len(state.arrivals) > 0:
                settle_arrivals(state)
            result = try_resize(state, capacity, history)
            if journal is not None:
                journal.resize(state.serial, capacity, history, result, self._shared.storage.digest.value)
            if not result:
                break
            position += 1
        return position
