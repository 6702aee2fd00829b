"""The sequences of a batch, one per row, and the numbers of the step: lengths, inputs, what changed in their page
tables.

Owns a `ChangedBlocks` for each row and layer group that some output uses, registered with the sequence's page table
from `add` to `remove`. Holds the sequences' state, not their handles, so that a forgotten handle is still noticed.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..sequence.changed_blocks import ChangedBlocks
from ..sequence.sequence_state import SequenceState


@final
@mypyc_attr(native_class=True)
class BatchRows:
    __slots__ = ("states", "changed", "layer_groups", "histories", "num_inputs")

    states: Final[list[SequenceState]]
    changed: Final[list[list[ChangedBlocks]]]
    """By row, then in the order of `layer_groups`."""
    layer_groups: Final[list[int]]
    histories: Final[vec[i64]]
    num_inputs: Final[vec[i64]]

    def __init__(self, max_num_rows: i64) -> None:
        self.states = []
        self.changed = []
        self.layer_groups = []
        self.histories = vec[i64]([0] * max_num_rows)
        self.num_inputs = vec[i64]([0] * max_num_rows)

    def __len__(self) -> int:
        return len(self.states)

    def use_layer_group(self, layer_group: int) -> None:
        """An output reads that group from now on; what it has not seen counts as changed."""
        if layer_group not in self.layer_groups:
            self.layer_groups.append(layer_group)
            for row, state in enumerate(self.states):
                self.changed[row].append(_register(state, layer_group))
        for readers in self.changed:
            readers[self.layer_groups.index(layer_group)].note_all()

    def find(self, state: SequenceState) -> int:
        """The sequence's row, or -1."""
        for row, other in enumerate(self.states):
            if other is state:
                return row
        return -1

    def add(self, state: SequenceState) -> None:
        self.states.append(state)
        self.changed.append([_register(state, group) for group in self.layer_groups])

    def remove(self, row: int) -> None:
        """The last sequence takes the row over; all its entries count as changed."""
        state = self.states[row]
        for position, group in enumerate(self.layer_groups):
            state.tables[group].remove_reader(self.changed[row][position])
        last_state = self.states.pop()
        last_changed = self.changed.pop()
        if row < len(self.states):
            self.states[row] = last_state
            self.changed[row] = last_changed
            _note_all(last_changed)

    def swap(self, first: int, second: int) -> None:
        states = self.states
        changed = self.changed
        states[first], states[second] = states[second], states[first]
        changed[first], changed[second] = changed[second], changed[first]
        _note_all(changed[first])
        _note_all(changed[second])


def _register(state: SequenceState, layer_group: int) -> ChangedBlocks:
    reader = ChangedBlocks()
    reader.note_all()
    state.tables[layer_group].add_reader(reader)
    return reader


def _note_all(readers: list[ChangedBlocks]) -> None:
    for reader in readers:
        reader.note_all()
