"""The rows of a batch: one sequence or beam each, and the step's numbers: lengths, inputs, changes of the page tables.

Owns a `ChangedBlocks` for each row and layer group that some output uses, registered with the sequence's page table
from `add` to `remove`. References the sequences' states, not their handles, so the leak of a handle is still noticed.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.errors import LogicError
from ..sequence.changed_blocks import ChangedBlocks, ChangeMark
from ..sequence.sequence_state import SequenceState


@final
@mypyc_attr(native_class=True)
class BatchRows:
    __slots__ = ("states", "owners", "beams", "changed", "marks", "layer_groups", "histories", "num_inputs", "is_stepping")

    states: Final[list[SequenceState]]
    """By row: the state of the sequence or beam."""
    owners: Final[list[SequenceState]]
    """By row: the state of the sequence's beam 0."""
    beams: Final[list[int]]
    changed: Final[list[list[ChangedBlocks]]]
    """By row, then in the order of `layer_groups`."""
    marks: Final[list[ChangeMark]]
    """By row: set if one of its `ChangedBlocks` may not be empty."""
    layer_groups: Final[list[int]]
    histories: Final[vec[i64]]
    num_inputs: Final[vec[i64]]
    is_stepping: bool
    """Whether a step of a `DecodeBatch` is under way: rows stay where they are."""

    def __init__(self, max_num_rows: i64) -> None:
        self.states = []
        self.owners = []
        self.beams = []
        self.changed = []
        self.marks = []
        self.layer_groups = []
        self.histories = vec[i64]([0] * max_num_rows)
        self.num_inputs = vec[i64]([0] * max_num_rows)
        self.is_stepping = False

    def __len__(self) -> int:
        return len(self.states)

    def use_layer_group(self, layer_group: int) -> None:
        """Track that layer group for an output; everything in it counts as changed at first."""
        if layer_group not in self.layer_groups:
            self.layer_groups.append(layer_group)
            for row, state in enumerate(self.states):
                self.changed[row].append(_register(state, layer_group, self.marks[row]))
        for readers in self.changed:
            readers[self.layer_groups.index(layer_group)].record_all()

    def require_idle(self, call: str) -> None:
        if self.is_stepping:
            raise LogicError(f"{call}() from inside a step of the batch, by a callback; members join and leave between steps")

    def find(self, owner: SequenceState, beam: int) -> int:
        """The row of that beam of a sequence, or -1."""
        for row, other in enumerate(self.owners):
            if other is owner and self.beams[row] == beam:
                return row
        return -1

    def add(self, owner: SequenceState, beam: int) -> None:
        state = owner if beam == 0 else owner.sharing.beams[beam - 1]
        self.states.append(state)
        self.owners.append(owner)
        self.beams.append(beam)
        mark = ChangeMark()
        self.marks.append(mark)
        self.changed.append([_register(state, group, mark) for group in self.layer_groups])

    def remove(self, row: int) -> None:
        """Move the last sequence into the row; all its entries count as changed."""
        state = self.states[row]
        for position, group in enumerate(self.layer_groups):
            state.tables[group].remove_reader(self.changed[row][position])
        last_state = self.states.pop()
        last_owner = self.owners.pop()
        last_beam = self.beams.pop()
        last_changed = self.changed.pop()
        last_mark = self.marks.pop()
        if row < len(self.states):
            self.states[row] = last_state
            self.owners[row] = last_owner
            self.beams[row] = last_beam
            self.changed[row] = last_changed
            self.marks[row] = last_mark
            _record_all(last_changed)

    def swap(self, first: int, second: int) -> None:
        states = self.states
        changed = self.changed
        states[first], states[second] = states[second], states[first]
        self.owners[first], self.owners[second] = self.owners[second], self.owners[first]
        self.beams[first], self.beams[second] = self.beams[second], self.beams[first]
        changed[first], changed[second] = changed[second], changed[first]
        self.marks[first], self.marks[second] = self.marks[second], self.marks[first]
        _record_all(changed[first])
        _record_all(changed[second])


def _register(state: SequenceState, layer_group: int, mark: ChangeMark) -> ChangedBlocks:
    reader = ChangedBlocks(mark)
    reader.record_all()
    state.tables[layer_group].add_reader(reader)
    return reader


def _record_all(readers: list[ChangedBlocks]) -> None:
    for reader in readers:
        reader.record_all()
