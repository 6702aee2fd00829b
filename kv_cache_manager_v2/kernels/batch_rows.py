"""The rows of a batch: one sequence or beam each, the step's numbers (lengths, inputs), and the one tracker of what its outputs lack.

What changed in page tables: a `ChangedBlocks` for each row and layer group that some output uses, registered with the sequence's page table
from `add` to `remove`, and a mark for each row. What the outputs know: how many blocks of each page table they have (`GroupRows`).
References the sequences' states, not their handles, so the leak of a handle is still noticed.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import LogicError
from ..sequence.changed_blocks import ChangedBlocks
from ..sequence.sequence_state import SequenceState


@final
class GroupRows:
    """One layer group, of all rows."""

    __slots__ = ("layer_group", "seen_blocks")

    def __init__(self, layer_group: i64, max_num_rows: i64) -> None:
        self.layer_group: Final = layer_group
        self.seen_blocks: Final = vec[i64]([0] * max_num_rows)
        """By row: blocks in the page table at the last update; all outputs have them, and nothing behind them."""


@final
class BatchMember:
    """Who is in a row."""

    __slots__ = ("owner", "beam", "readers")

    def __init__(self, owner: SequenceState, beam: int) -> None:
        self.owner: Final = owner
        """The state of the sequence's beam 0."""
        self.beam: Final = beam
        self.readers: Final[list[ChangedBlocks]] = []
        """In the order of `BatchRows.groups`."""


@final
class BatchRows:
    __slots__ = ("max_num_rows", "max_num_blocks", "states", "members", "groups", "marks", "histories", "num_inputs", "is_stepping")

    def __init__(self, max_num_rows: int, max_num_blocks: int) -> None:
        """``max_num_blocks``: of a row."""
        self.max_num_rows: Final[int] = max_num_rows
        self.max_num_blocks: Final[int] = max_num_blocks
        self.states: Final[list[SequenceState]] = []
        """By row: the state of the sequence or beam."""
        self.members: Final[list[BatchMember]] = []
        self.groups: Final[list[GroupRows]] = []
        self.marks: Final = vec[bool]([False] * max_num_rows)
        """By row: set if one of its readers may not be empty. Side by side: a step looks at each."""
        self.histories: Final = vec[i64]([0] * max_num_rows)
        self.num_inputs: Final = vec[i64]([0] * max_num_rows)
        self.is_stepping = False
        """Whether a step of a `DecodeBatch` is under way: rows stay where they are."""

    def __len__(self) -> int:
        return len(self.states)

    def use_layer_group(self, layer_group: i64) -> GroupRows:
        """Track that layer group for an output, which has nothing yet: everything in it counts as changed."""
        for position, group in enumerate(self.groups):
            if group.layer_group == layer_group:
                for member in self.members:
                    member.readers[position].record_all()
                return group
        group = GroupRows(layer_group, self.max_num_rows)
        self.groups.append(group)
        for row, state in enumerate(self.states):
            self._add_reader(row, state, layer_group)
        return group

    def require_idle(self, call: str) -> None:
        if self.is_stepping:
            raise LogicError(f"{call}() from inside a step of the batch, by a callback; members join and leave between steps")

    def find(self, owner: SequenceState, beam: int) -> int:
        """The row of that beam of a sequence, or -1."""
        for row, member in enumerate(self.members):
            if member.owner is owner and member.beam == beam:
                return row
        return -1

    def add(self, owner: SequenceState, beam: int) -> None:
        state = owner if beam == 0 else owner.sharing.beams[beam - 1]
        self.states.append(state)
        self.members.append(BatchMember(owner, beam))
        for group in self.groups:
            self._add_reader(len(self.states) - 1, state, group.layer_group)

    def remove(self, row: int) -> None:
        """Move the last sequence into the row; all its entries count as changed."""
        for group, reader in zip(self.groups, self.members[row].readers):
            self.states[row].tables[group.layer_group].remove_reader(reader)
        last_state, last_member = self.states.pop(), self.members.pop()
        if row < len(self.states):
            self._place(row, last_state, last_member)

    def swap(self, first: int, second: int) -> None:
        state, member = self.states[first], self.members[first]
        self._place(first, self.states[second], self.members[second])
        self._place(second, state, member)

    def forget(self, row: i64) -> None:
        """The row is vacant, and all outputs have cleared it."""
        for group in self.groups:
            group.seen_blocks[row] = 0

    def _place(self, row: i64, state: SequenceState, member: BatchMember) -> None:
        self.states[row] = state
        self.members[row] = member
        for reader in member.readers:
            reader.row = row
            reader.record_all()

    def _add_reader(self, row: i64, state: SequenceState, layer_group: i64) -> None:
        reader = ChangedBlocks(self.marks, row)
        reader.record_all()
        state.tables[layer_group].add_reader(reader)
        self.members[row].readers.append(reader)
