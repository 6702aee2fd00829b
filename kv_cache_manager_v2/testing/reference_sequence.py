"""An open sequence, as the reference model knows it."""

from typing import Final, final


from ..base.ids import TokenIdExt
from .reference_tree import GroupRule, Scope


@final
class ReferenceSequence:
    """One open sequence. Block ``i`` is node ``path[i]``, or ``shared_tail`` if that is the next one, or private.

    After a fork, further blocks may have been published by other sequences: ``adopted``, by ordinal. A private block that forks share
    has one number for all of them, in ``shared_private``.
    """

    __slots__ = (
        "name", "scope", "committed", "history", "capacity", "is_active", "is_committing", "path", "shared_tail",
        "is_matched_tail", "scratch", "adopted", "shared_private", "has_state", "snapshot_node",
        "peak_capacity", "num_matched", "uses_scratch", "beams", "commit_snapshots", "publishes_at_close",
        "planned", "passed_history", "is_void", "is_retired", "is_exact", "residency", "required",
    )  # fmt: skip

    def __init__(self, name: int, scope: Scope, num_groups: int) -> None:
        self.name: Final = name
        self.scope: Final = scope
        self.committed: list[TokenIdExt] = []
        self.history = 0
        self.capacity = 0
        self.is_active = False
        self.is_committing = True
        self.publishes_at_close = False  # it has stopped committing, and its partial last block is still to be published
        self.path: list[int] = []
        self.shared_tail: int | None = None
        self.is_matched_tail = False  # it was matched, so `resume` must copy it
        self.adopted: dict[int, int] = {}
        self.shared_private: dict[int, int] = {}
        self.has_state = False  # it was active once, and has had slots of recurrent state since
        self.snapshot_node: int | None = None  # the block whose snapshot its recurrent state starts from; None: zeros
        self.peak_capacity = 0  # the largest capacity so far
        self.num_matched = 0  # tokens that it started with
        self.commit_snapshots: Final[set[tuple[int, int]]] = set()
        """Pages of snapshots that its commits left where none was planned: it may replace them."""
        self.uses_scratch = False  # whether scratch blocks share slots
        self.beams: "Final[list[ReferenceSequence]]" = []  # beams 1 and up
        self.planned: Final[set[int]] = set()  # ordinals of the blocks that it has promised and not committed
        self.passed_history = 0  # the history that it had before it was void: its windows stay there
        self.is_void = False  # blocks that it was matched with were taken back
        self.is_retired = False  # its epoch has ended: it publishes nothing any more
        self.is_exact = False  # it matches only what was never packed with loss
        self.residency: Final[dict[int, GroupRule]] = {}  # by group, its residency window
        self.required: set[tuple[int, int]] = set()  # groups and ordinals of blocks behind these, locked until the next resize
        self.scratch: list[tuple[int, int]] = [(0, 0)] * num_groups  # by group, the scratch blocks of the present step; (0, 0) for none

    def node(self, ordinal: int) -> int | None:
        """The published block at that ordinal; None for a private one."""
        if ordinal < len(self.path):
            return self.path[ordinal]
        return self.shared_tail if ordinal == len(self.path) else self.adopted.get(ordinal)

    def private_name(self, ordinal: int) -> tuple[int, int]:
        """Equal for two sequences exactly if they share that private block."""
        number = self.shared_private.get(ordinal)
        return (self.name, ordinal) if number is None else (-1 - number, ordinal)

    def adopt(self, ordinal: int, node: int) -> None:
        """A fork has published the block, which was private so far."""
        self.shared_private.pop(ordinal, None)
        if ordinal == len(self.path):
            self.shared_tail = node
        else:
            self.adopted[ordinal] = node

    def grow_path(self, node: int) -> None:
        self.shared_private.pop(len(self.path), None)
        self.path.append(node)
        self.shared_tail = self.adopted.pop(len(self.path), None)

    def leave_shared(self, begin: int) -> None:
        """From that ordinal on, blocks are the sequence's own or cut off; the caller sets the shared tail. Planned
        blocks stay: their writer writes them in place."""
        for ordinal in [ordinal for ordinal in self.adopted if ordinal >= begin]:
            del self.adopted[ordinal]
        for ordinal in [ordinal for ordinal in self.shared_private if ordinal >= begin and ordinal not in self.planned]:
            del self.shared_private[ordinal]
