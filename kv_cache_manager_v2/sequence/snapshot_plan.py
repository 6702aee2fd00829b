"""At which lengths a sequence leaves snapshots of its recurrent state, and when its state is certain to be that of a length.

The library sees no kernels. The state at a length ``P`` is certain when `commit` ends at ``P`` and nothing beyond can have been
computed: all room is committed, or what is beyond is so little that the checkpoints still hold ``P``. Within the prompt a commit
that ends at a planned length is believed as well, so that an engine may take the room for a whole prompt at once; but not if it
has shown that it computes ahead of its commits, by asking for more room, or for a longer history, before it had committed all.
A commit of the prompt that ends elsewhere leaves a snapshot too, where there is a slot, but is never believed.
"""

from bisect import bisect_right
from typing import Final, final

from mypy_extensions import i64

from ..reuse.block import Block


@final
class SnapshotPlan:
    __slots__ = (
        "_positions", "_interval", "_prompt_length", "_num_checkpoints", "_ahead_until", "_num_matched", "_last_in_prompt",
        "has_stopped", "peak_capacity", "commit_block",
    )  # fmt: skip

    def __init__(self, positions: set[int], interval: int, prompt_length: int, num_checkpoints: int, num_matched: int) -> None:
        self._positions: Final[list[int]] = sorted(positions)
        """In order, each once."""
        self._interval: Final[i64] = interval
        """A snapshot at each multiple of so many tokens; 0: at none."""
        self._prompt_length: Final[i64] = prompt_length
        self._num_checkpoints: Final[i64] = num_checkpoints
        self._num_matched: Final[i64] = num_matched
        """The sequence began with so many tokens, whose state may have been behind."""
        self._ahead_until: i64 = 0
        """A commit that ends before this length says nothing of the state."""
        self._last_in_prompt: i64 = self._find_last_in_prompt()
        """The last planned length of the prompt that the match does not cover; 0: there is none."""
        self.has_stopped = False
        """Whether a commit of the prompt has ended where a snapshot is planned, or has left one."""
        self.commit_block: Block | None = None
        """The block of the last snapshot that a commit left where none was planned; who has it by now:
        `RecurrentRules.commit_snapshots`."""
        self.peak_capacity: i64 = 0
        """The most room that there ever was: so far the state may have gone, and overwritten what is older than its checkpoints."""

    def _find_last_in_prompt(self) -> int:
        at = bisect_right(self._positions, self._prompt_length)
        last = self._positions[at - 1] if at > 0 else 0
        if self._interval > 0:
            last = max(last, int(self._prompt_length // self._interval * self._interval))
        return last if last > self._num_matched else 0

    def list_positions(self) -> list[int]:
        """The planned lengths, without those of the grid."""
        return list(self._positions)

    def copy(self) -> "SnapshotPlan":
        plan = SnapshotPlan(
            set(self._positions), int(self._interval), int(self._prompt_length), int(self._num_checkpoints), int(self._num_matched)
        )
        plan._ahead_until = self._ahead_until
        plan.has_stopped = self.has_stopped
        plan.peak_capacity = self.peak_capacity
        return plan

    def find_next(self, num_tokens: i64) -> int | None:
        """The first planned length after ``num_tokens``."""
        at = bisect_right(self._positions, num_tokens)
        listed = self._positions[at] if at < len(self._positions) else None
        if self._interval == 0:
            return listed
        on_grid = int((num_tokens // self._interval + 1) * self._interval)
        return on_grid if listed is None or on_grid < listed else listed

    def record_room(self, num_committed: i64, old_capacity: i64, capacity: i64, history: i64) -> None:
        """A resize has reserved pages up to ``capacity``."""
        if history > num_committed or (capacity > old_capacity and old_capacity > num_committed):
            self._ahead_until = capacity
        if capacity > self.peak_capacity:
            self.peak_capacity = capacity

    def is_due(self, position: i64) -> bool:
        """Whether a commit that ends at ``position`` leaves a snapshot: it is planned there, and the state is certain."""
        if position == 0 or self.find_next(position - 1) != position:
            return False
        if self.peak_capacity - position <= self._num_checkpoints:
            return True
        return position <= self._prompt_length and position >= self._ahead_until

    def may_leave_at(self, begin: i64, end: i64, is_end: bool) -> bool:
        """Whether a commit from ``begin`` to ``end`` leaves a snapshot although none is planned, if there is a slot for it."""
        if end == 0 or not (is_end or begin < self._prompt_length):
            return False
        return self.peak_capacity - end <= self._num_checkpoints

    def find_passed(self, begin: i64, end: i64) -> int | None:
        """The last planned length of the prompt, if a commit goes past it and none has left a snapshot before."""
        if begin < self._last_in_prompt < end and not self.has_stopped:
            return int(self._last_in_prompt)
        return None

    def is_certain_at_end(self, num_committed: i64) -> bool:
        """Whether a sequence that is closed has the state of just its committed tokens."""
        return num_committed > self._num_matched and self.peak_capacity - num_committed <= self._num_checkpoints
