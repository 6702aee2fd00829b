"""What a manager must do, in plain dictionaries: it keeps every token and every sequence, and gives no slot a meaning.

The model is told each call that passed, with the `describe()` picture after it, in the order of the calls. It works out
what the rules of the design allow, and raises `ModelDisagreement` where the picture shows something else. Where the
library may choose (which victim, which of several blocks that begin alike) the choice is read from the picture, and
must be a legal one:

    a page of the tree    must have been published, with the text that it stands under
    comes                 when it is published, and must come then
    goes                  when a call makes room or clears, or a fuller block replaces it; never while it is needed
    is LOCKED, HELD       exactly if an active one, or else a suspended one, needs it
    a refused call        is not told: a picture after it must show that nothing has changed

What the public properties of a sequence must say can be asked of the model; so can what a call that makes room takes.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, final

from mypy_extensions import mypyc_attr

from ..base.ids import TokenIdExt
from ..config.manager_config import KVCacheManagerConfig
from .reference_forks import list_sharers, make_fork, num_first_written
from .reference_scratch import ScratchRule
from .reference_sequence import ReferenceSequence
from .reference_state import StateRule, group_layers, make_rules
from .reference_tree import GroupRule, Page, ReferenceMatch, ReferenceTree, Scope, Text

Picture: TypeAlias = dict[str, Any]

DROPPABLE: Final = "droppable"
HELD: Final = "held"
LOCKED: Final = "locked"
NO_SNAPSHOT: Final = "no snapshot"
MAY_SNAPSHOT: Final = "may leave a snapshot"
MUST_SNAPSHOT: Final = "must leave a snapshot"


@mypyc_attr(native_class=False)
class ModelDisagreement(Exception):
    """The manager did what the rules do not allow."""


@final
@mypyc_attr(native_class=True)
class SlotNeed:
    """Pages that a call takes and gives back, per layer group. Between ``least`` and ``most`` the library may
    choose."""

    __slots__ = ("least", "most", "given_back", "newly_locked")

    least: Final[list[int]]
    most: Final[list[int]]
    given_back: Final[list[int]]
    newly_locked: Final[list[int]]  # pages that exist and that no active sequence needed so far

    def __init__(self, num_groups: int) -> None:
        self.least = [0] * num_groups
        self.most = [0] * num_groups
        self.given_back = [0] * num_groups
        self.newly_locked = [0] * num_groups

    def add(self, group: int, num_slots: int) -> None:
        self.least[group] += num_slots
        self.most[group] += num_slots


@final
@mypyc_attr(native_class=True)
class ReferenceModel:
    """See the module's docstring. ``statuses`` and ``places`` are what was seen last of each page in the tree."""

    __slots__ = (
        "tokens_per_block", "rules", "tree", "sequences", "statuses", "places", "_with_partial_blocks", "_must_come",
        "_may_come", "_may_go", "_may_all_go", "_scratch_rules", "_maybe_published", "_next_private",
        "state", "lost", "_snapshots_due",
    )  # fmt: skip

    tokens_per_block: Final[int]
    rules: Final[list[GroupRule]]
    tree: Final[ReferenceTree]
    sequences: Final[dict[int, ReferenceSequence]]
    statuses: dict[Page, str]
    places: dict[Page, tuple[int, int]]  # level and slot
    _with_partial_blocks: Final[bool]
    _must_come: Final[set[Page]]
    _may_come: Final[set[Page]]
    _may_go: Final[set[Page]]
    _may_all_go: bool
    _scratch_rules: Final[list[ScratchRule]]  # by group; none at all where scratch slots are not configured
    _maybe_published: Final[dict[int, int]]  # by the number of a shared private block, the node that it may be by now
    _next_private: int
    state: Final[StateRule]
    lost: set[Page]  # of those that are there: their bytes could not be read
    _snapshots_due: Final[set[Page]]  # made last in their call: nothing can have made them go

    def __init__(self, config: KVCacheManagerConfig, layer_grouping: Sequence[Sequence[int]]) -> None:
        size = config.tokens_per_block
        self.tokens_per_block = size
        layers = group_layers(config)
        expected = [[layer.layer_id for layer in members] for members in layers]
        if [list(group) for group in layer_grouping] != expected:
            raise ModelDisagreement(f"the layer groups are {layer_grouping}, must be {expected}")
        self.rules = make_rules(config)
        self._scratch_rules = []
        if config.swa_scratch_reuse is not None:
            max_rewind_len = config.swa_scratch_reuse.max_rewind_len
            for rule, members in zip(self.rules, layers):
                self._scratch_rules.append(ScratchRule(rule, members, size, max_rewind_len))
        self.tree = ReferenceTree(size, self.rules)
        self.state = StateRule(config, self.rules, self.tree)
        self.sequences = {}
        self.statuses = {}
        self.places = {}
        self._with_partial_blocks = config.enable_partial_reuse
        self._must_come = set()
        self._may_come = set()
        self._may_go = set()
        self._may_all_go = False
        self._maybe_published = {}
        self._next_private = 0
        self.lost = set()
        self._snapshots_due = set()

    # -- what is there ------------------------------------------------------------------------------------------------

    def see(self, picture: Picture) -> None:
        """Compare the tree in a picture with what was seen last and what has been told since."""
        old = self.statuses
        self._may_all_go = self._may_all_go or len(self.lost) > 0  # lost ones go with their last holder, others with them
        self._read_tree(picture)
        self._adopt_published(picture)
        needed = self._needed_pages()
        for page, status in self.statuses.items():
            if page not in self.tree.ever_published:
                raise ModelDisagreement(f"{self.name(page)} is in the tree and was never published")
            if page not in old and page not in self._must_come and page not in self._may_come:
                raise ModelDisagreement(f"{self.name(page)} came, and no call has published it")
            if status != needed.get(page, DROPPABLE):
                raise ModelDisagreement(f"{self.name(page)} is {status}, must be {needed.get(page, DROPPABLE)}")
        for page in needed:
            if page not in self.statuses:
                raise ModelDisagreement(f"{self.name(page)} is gone, but an open sequence needs it")
        for page in self._snapshots_due:
            if page not in self.statuses:
                raise ModelDisagreement(f"{self.name(page)} is not there, a snapshot that had to be left")
        self._snapshots_due.clear()
        if not self._may_all_go:
            for page in {*old, *self._must_come}:
                if page not in self.statuses and page not in self._may_go:
                    raise ModelDisagreement(f"{self.name(page)} is not there; nothing made room, nothing replaced it")
        self._check_reachable()
        self._must_come.clear()
        self._may_come.clear()
        self._may_go.clear()
        self._may_all_go = False

    def _read_tree(self, picture: Picture) -> None:
        self.statuses = {}
        self.places = {}
        self.lost = set()
        for scope_picture in picture["tree"]:
            path = [self.tree.root((scope_picture["lora_id"], scope_picture["salt"]))]
            for block in scope_picture["blocks"]:
                del path[block["depth"] + 1 :]
                tokens = tuple([bytes.fromhex(token) if isinstance(token, str) else token for token in block["tokens"]])
                node = self.tree.child(path[-1], tokens)
                path.append(node)
                for group, page in enumerate(block["pages"]):
                    if page is not None:
                        self.statuses[(node, group)] = page["status"]
                        self.places[(node, group)] = (page["level"], page["slot"])
                        if page.get("is_lost", False):
                            self.lost.add((node, group))

    def _adopt_published(self, picture: Picture) -> None:
        """What became of private last blocks whose owner ended, and that forks share: published for all of them, or not."""
        for sequence in self.sequences.values():
            forked: list[str | int] = _picture_of(picture, sequence.name)["forked_blocks"]
            for position, what in enumerate(forked):
                ordinal = len(sequence.path) + position
                node = self._maybe_published.get(sequence.shared_private.get(ordinal, -1))
                if what == "published" and sequence.node(ordinal) is None and node is not None:
                    sequence.adopt(ordinal, node)
                if what == "published" and sequence.node(ordinal) is None:
                    raise ModelDisagreement(f"block {ordinal} of sequence {sequence.name} is published, and nobody did that")
        self._maybe_published.clear()

    def _needed_pages(self) -> dict[Page, str]:
        """LOCKED or HELD for each published page that an open sequence needs."""
        statuses: dict[Page, str] = {}
        for sequence in self.sequences.values():
            for page in self._published_pages(sequence):
                if sequence.is_active:
                    statuses[page] = LOCKED
                elif page not in statuses:
                    statuses[page] = HELD
            snapshot = self.state.held_snapshot(sequence)
            if snapshot is not None:
                statuses[snapshot] = HELD
        return statuses

    def _published_pages(self, sequence: ReferenceSequence) -> list[Page]:
        pages: list[Page] = []
        for ordinal in range(self.num_blocks(sequence)):
            node = sequence.node(ordinal)
            if node is not None:
                for group in range(len(self.rules)):
                    if self.is_needed(sequence, group, ordinal):
                        pages.append((node, group))
        return pages

    def _check_reachable(self) -> None:
        """Below a block that lacks the page of a group without a window nothing can ever be matched."""
        unbounded = [group for group, rule in enumerate(self.rules) if rule.window is None and not rule.is_state]
        for page in self.statuses:
            parent = self.tree.parent(page[0])
            if self.tree.parent(parent) >= 0:
                for group in unbounded:
                    if (parent, group) not in self.statuses:
                        raise ModelDisagreement(f"{self.name(page)} is kept, but {self.name((parent, group))} is gone")

    def name(self, page: Page) -> str:
        node, group = page
        return f"the page of group {group} of block {self.tree.depth(node)} with tokens {self.tree.tokens(node)}"

    # -- facts --------------------------------------------------------------------------------------------------------

    def num_blocks(self, sequence: ReferenceSequence) -> int:
        return -(-sequence.capacity // self.tokens_per_block)

    def is_needed(self, sequence: ReferenceSequence, group: int, ordinal: int) -> bool:
        """Whether the block has a page for that group: while active, its base page index is valid."""
        beg, end = sequence.scratch[group]
        is_scratch = beg <= ordinal < end
        return not is_scratch and not self.rules[group].is_stale(ordinal, sequence.history, self.tokens_per_block)

    def num_scratch_slots(self, sequence: ReferenceSequence, group: int) -> int:
        """What the sequence's scratch blocks share while it is active."""
        if not sequence.is_active or not self._scratch_rules:
            return 0
        return self._scratch_rules[group].compute_num_slots(sequence.scratch[group])

    def num_used_slots(self, group: int) -> int:
        """All pages of that group, in the tree or private to open sequences, and scratch slots."""
        published = [page for page in self.statuses if page[1] == group]
        return len(published) + self._num_private_slots(group, False)

    def num_needed_slots(self, group: int) -> int:
        """Those that open sequences need, and that cannot make room."""
        needed = [page for page in self._needed_pages() if page[1] == group]
        return len(needed) + self._num_private_slots(group, False)

    def num_locked_slots(self, group: int) -> int:
        """Those that active sequences need."""
        locked = [page for page, status in self._needed_pages().items() if page[1] == group and status == LOCKED]
        return len(locked) + self._num_private_slots(group, True)

    def _num_private_slots(self, group: int, active_only: bool) -> int:
        count = 0
        private: set[tuple[int, int]] = set()
        for sequence in self.sequences.values():
            if sequence.is_active or not active_only:
                count += self.num_scratch_slots(sequence, group)
                for ordinal in range(self.num_blocks(sequence)):
                    if sequence.node(ordinal) is None and self.is_needed(sequence, group, ordinal):
                        private.add(sequence.private_name(ordinal))
        return count + len(private) + self.state.num_private_slots(list(self.sequences.values()), group, active_only)

    def expect_match(self, scope: Scope, text: Text) -> ReferenceMatch:
        """What `create_kv_cache` and `probe_reuse` may answer now."""
        present = self.statuses.keys() - self.lost
        match = self.tree.match(scope, text, present, self._with_partial_blocks, self.lost)
        return self.state.narrow(match, scope, text, present)

    def slots_to_resume(self, sequence: ReferenceSequence) -> SlotNeed:
        need = SlotNeed(len(self.rules))
        locked = {page for page, status in self._needed_pages().items() if status == LOCKED}
        for group in range(len(self.rules)):
            for ordinal in range(self.num_blocks(sequence)):
                node = sequence.node(ordinal)
                if not self.is_needed(sequence, group, ordinal):
                    continue
                sharers = list_sharers(self.sequences.values(), sequence, ordinal) if node is None else []
                is_locked = any([other.is_active and self.is_needed(other, group, ordinal) for other in sharers])
                if not is_locked and (node is None or (node, group) not in locked):
                    need.newly_locked[group] += 1
        self._count_tail_copy(sequence, sequence.history, sequence.is_matched_tail, need)
        for group in range(len(self._scratch_rules)):
            need.add(group, self._scratch_rules[group].compute_num_slots(sequence.scratch[group]))
        if self.state.group >= 0:
            self.state.count_resume(sequence, need.newly_locked, need.least, need.most)
        return need

    def slots_to_resize(self, sequence: ReferenceSequence, capacity: int, history: int) -> SlotNeed:
        """What `resize` takes, and what it gives back that no other open sequence needs."""
        need = SlotNeed(len(self.rules))
        old_num_blocks = self.num_blocks(sequence)
        num_blocks = -(-capacity // self.tokens_per_block)
        others: set[Page] = set()
        for other in self.sequences.values():
            if other is not sequence:
                others.update(self._published_pages(other))
        scratch = self._scratch_after_resize(sequence, capacity, history)
        first_written = max(num_first_written(sequence, capacity, history, self.tokens_per_block), len(sequence.path))
        for group, rule in enumerate(self.rules):
            beg, end = scratch[group]
            for ordinal in range(max(old_num_blocks, num_blocks)):
                will_need = ordinal < num_blocks and not rule.is_stale(ordinal, history, self.tokens_per_block)
                will_need = will_need and not beg <= ordinal < end
                did_need = ordinal < old_num_blocks and self.is_needed(sequence, group, ordinal)
                node = sequence.node(ordinal)
                if will_need and not did_need:
                    need.add(group, 1)
                elif did_need and not will_need and not self._is_needed_by_others(sequence, group, ordinal, others):
                    need.given_back[group] += 1
                elif did_need and will_need and ordinal >= first_written and self._must_copy(sequence, ordinal):
                    need.add(group, 1)
            if self._scratch_rules:
                need.add(group, self._scratch_rules[group].compute_num_slots(scratch[group]))
                need.given_back[group] += self.num_scratch_slots(sequence, group)
        self._count_tail_copy(sequence, history, history < capacity, need)
        return need

    def _is_needed_by_others(self, sequence: ReferenceSequence, group: int, ordinal: int, others: set[Page]) -> bool:
        node = sequence.node(ordinal)
        if node is not None:
            return (node, group) in others
        sharers = list_sharers(self.sequences.values(), sequence, ordinal)
        return any([self.is_needed(other, group, ordinal) for other in sharers])

    def _must_copy(self, sequence: ReferenceSequence, ordinal: int) -> bool:
        """A block that forks share, or have published, is copied before it is written; the shared tail is counted elsewhere."""
        if ordinal == len(sequence.path) and sequence.shared_tail is not None:
            return False
        return sequence.node(ordinal) is not None or len(list_sharers(self.sequences.values(), sequence, ordinal)) > 0

    def _scratch_after_resize(self, sequence: ReferenceSequence, capacity: int, history: int) -> list[tuple[int, int]]:
        """A resize that changes the capacity begins a step."""
        if capacity == sequence.capacity or not self._scratch_rules:
            return sequence.scratch
        return [rule.compute_range(history, capacity) for rule in self._scratch_rules]

    def _count_tail_copy(self, sequence: ReferenceSequence, history: int, is_certain: bool, need: SlotNeed) -> None:
        """A shared last block is replaced by a private one before the tokens after ``history`` are written into it.

        Where there is no room for a copy the library may take the block out of the tree, if no other sequence needs it.
        """
        size = self.tokens_per_block
        ordinal = len(sequence.path)
        tail = sequence.shared_tail
        if tail is None or history >= (ordinal + 1) * size:
            return
        is_alone = all([other is sequence or other.shared_tail != tail for other in self.sequences.values()])
        is_alone = is_alone and all([tail not in other.path for other in self.sequences.values()])
        is_alone = is_alone and all([tail not in other.adopted.values() for other in self.sequences.values()])
        for group, rule in enumerate(self.rules):
            if not rule.is_stale(ordinal, history, size):
                need.most[group] += 1
                if is_certain and not is_alone:
                    need.least[group] += 1

    # -- calls --------------------------------------------------------------------------------------------------------

    def create(
        self, name: int, scope: Scope, text: Text, num_matched: int, picture: Picture, state_tokens: int = 0
    ) -> ReferenceSequence:
        """``state_tokens``: what its recurrent state is said to begin with."""
        size = self.tokens_per_block
        match = self.expect_match(scope, text)
        if not match.allows(num_matched):
            raise ModelDisagreement(
                f"{num_matched} of {len(text)} tokens were matched; the longest reusable prefix has {match.best}, "
                f"possible are {sorted(match.lengths)}"
            )
        sequence = ReferenceSequence(name, scope, len(self.rules))
        node = self.tree.root(scope)
        for ordinal in range(num_matched // size):
            node = self.tree.child(node, text[ordinal * size : (ordinal + 1) * size])
            sequence.path.append(node)
        if self.state.group >= 0:
            self._begin_state(sequence, text, num_matched, state_tokens)
        sequence.num_matched = num_matched
        sequence.committed = list(text[:num_matched])
        sequence.history = num_matched
        sequence.capacity = num_matched
        if num_matched % size != 0:
            candidates = self.tree.partial_matches(scope, text, num_matched, self.statuses.keys() - self.lost)
            sequence.shared_tail = self._find_tail(candidates, _picture_of(picture, name))
            sequence.is_matched_tail = True
        self.sequences[name] = sequence
        return sequence

    def _begin_state(self, sequence: ReferenceSequence, text: Text, num_matched: int, state_tokens: int) -> None:
        present = self.statuses.keys() - self.lost
        start = self.state.find_replay_start(sequence.scope, text, num_matched, present)
        if state_tokens != (num_matched if start is None else start):
            raise ModelDisagreement(f"the state of {num_matched} matched tokens begins at {state_tokens}, must at {start}")
        if not self.state.has_snapshot(sequence.scope, text, state_tokens, present):
            raise ModelDisagreement(f"the state of sequence {sequence.name} begins at {state_tokens}, where no snapshot is")
        if state_tokens > 0:
            sequence.snapshot_node = self.tree.find_exact(sequence.scope, text[:state_tokens])

    def _find_tail(self, candidates: list[int], sequence_picture: Picture) -> int:
        """Which of the blocks that begin alike was taken: the one whose slots the sequence names."""
        slots = [slots[-1] for slots in sequence_picture["page_slots"]]
        levels = [levels[-1] for levels in sequence_picture["page_levels"]]
        last = list(zip(levels, slots))
        for node in candidates:
            groups = [group for group in range(len(self.rules)) if slots[group] is not None]
            if all([self.places.get((node, group)) == last[group] for group in groups]):
                return node
        raise ModelDisagreement(f"sequence {sequence_picture['id']}: its partial last block is none that could serve")

    def resume(self, sequence: ReferenceSequence, picture: Picture) -> None:
        tail_is_shared = bool(_picture_of(picture, sequence.name)["shares_last_block"])
        if tail_is_shared and (sequence.shared_tail is None or sequence.is_matched_tail):
            raise ModelDisagreement(f"sequence {sequence.name} was resumed and shares its last block")
        if not tail_is_shared:
            sequence.shared_tail = None
        sequence.is_matched_tail = False
        sequence.is_active = True
        sequence.has_state = self.state.group >= 0
        self._may_all_go = True

    def make_room(self) -> None:
        """A call that changes nothing else has made room."""
        self._may_all_go = True

    def note_failure(self) -> None:
        """The device has failed: room was made for nothing, and a snapshot may have been left out."""
        self._may_all_go = True
        self._snapshots_due.clear()

    def suspend(self, sequence: ReferenceSequence) -> None:
        sequence.is_active = False

    def resize(self, sequence: ReferenceSequence, capacity: int, history: int, picture: Picture) -> None:
        tail_is_shared = bool(_picture_of(picture, sequence.name)["shares_last_block"])
        end_of_tail = (len(sequence.path) + 1) * self.tokens_per_block
        if tail_is_shared and (sequence.shared_tail is None or (history < capacity and history < end_of_tail)):
            raise ModelDisagreement(f"sequence {sequence.name} may write its last block, which is shared")
        if not tail_is_shared:
            sequence.shared_tail = None
        sequence.leave_shared(num_first_written(sequence, capacity, history, self.tokens_per_block))
        sequence.leave_shared(-(-capacity // self.tokens_per_block))
        sequence.scratch = self._scratch_after_resize(sequence, capacity, history)
        sequence.capacity = capacity
        sequence.peak_capacity = max(sequence.peak_capacity, capacity)
        sequence.history = history
        self._may_all_go = True

    def fork(self, sequence: ReferenceSequence, name: int) -> ReferenceSequence:
        num_blocks = self.num_blocks(sequence)
        child = make_fork(sequence, name, num_blocks, self._next_private)
        self._next_private += num_blocks
        self.sequences[name] = child
        return child

    def has_history_in_scratch(self, sequence: ReferenceSequence) -> bool:
        """Whether the next token would read a block that has scratch slots: then it cannot be forked."""
        size = self.tokens_per_block
        for rule, (beg, end) in zip(self.rules, sequence.scratch):
            if beg < end and not rule.is_stale(end - 1, sequence.history, size):
                return True
        return False

    def commit(self, sequence: ReferenceSequence, tokens: Sequence[TokenIdExt], snapshot: str = NO_SNAPSHOT) -> None:
        """Blocks that become full are published with the pages that they have before the window moves.

        ``snapshot``: whether one of the recurrent state has to come at the new end, may come, or must not.
        """
        size = self.tokens_per_block
        sequence.committed.extend(tokens)
        while (len(sequence.path) + 1) * size <= len(sequence.committed):
            ordinal = len(sequence.path)
            node = self._publish(sequence, ordinal, (ordinal + 1) * size, True)
            self._share_node(sequence, ordinal, node)
            sequence.grow_path(node)
        sequence.history = max(sequence.history, len(sequence.committed))
        if snapshot != NO_SNAPSHOT:
            self._expect_snapshot(sequence, snapshot == MUST_SNAPSHOT, True)

    def _expect_snapshot(self, sequence: ReferenceSequence, must_come: bool, makes_room: bool) -> None:
        """A page of the recurrent group on the block where the committed tokens end; it may make room first."""
        tail = tuple(sequence.committed[len(sequence.path) * self.tokens_per_block :])
        node = self.tree.child(self._path_end(sequence), tail) if tail else self._path_end(sequence)
        self.tree.ever_published.add((node, self.state.group))
        self._may_come.add((node, self.state.group))
        if must_come:
            self._snapshots_due.add((node, self.state.group))
        self._may_all_go = self._may_all_go or makes_room

    def stop_committing(self, sequence: ReferenceSequence, picture: Picture) -> None:
        """The partial last block is published, unless a longer one with its text and all its pages is there already.

        Once: what was written into the block since the first time must stay.
        """
        was_committing = sequence.is_committing
        sequence.is_committing = False
        ordinal = len(sequence.path)
        tail_is_shared = bool(_picture_of(picture, sequence.name)["shares_last_block"])
        has_tail = len(sequence.committed) > ordinal * self.tokens_per_block
        if was_committing and sequence.shared_tail is None and has_tail:
            if tail_is_shared:
                node = self._publish(sequence, ordinal, len(sequence.committed), True)
                self._share_node(sequence, ordinal, node)
                sequence.adopt(ordinal, node)
            elif not self.may_stay_private(sequence):
                raise ModelDisagreement(f"sequence {sequence.name}: its partial last block was not published")
        elif tail_is_shared != (sequence.shared_tail is not None):
            raise ModelDisagreement(f"sequence {sequence.name}: stop_committing changed who owns the last block")

    def close(self, sequence: ReferenceSequence) -> None:
        """The partial last block is published as by `stop_committing`."""
        self._end(sequence, sequence.is_committing and not self.may_stay_private(sequence))

    def abandon(self, sequence: ReferenceSequence) -> None:
        """The handle was dropped without `close`: everything goes back. Whether the last block is published is open."""
        self._end(sequence, False)

    def _end(self, sequence: ReferenceSequence, must_publish: bool) -> None:
        if self.state.leaves_state_at_close(sequence):
            self._expect_snapshot(sequence, True, self.state.thins_paths)
        has_tail = len(sequence.committed) > len(sequence.path) * self.tokens_per_block
        if sequence.shared_tail is None and has_tail:
            ordinal = len(sequence.path)
            node = self._publish(sequence, ordinal, len(sequence.committed), must_publish)
            if ordinal in sequence.shared_private:
                self._maybe_published[sequence.shared_private[ordinal]] = node
        del self.sequences[sequence.name]

    def clear(self) -> None:
        if len(self.sequences) > 0:
            raise ModelDisagreement(f"clear_reusable_blocks passed with {len(self.sequences)} open sequences")
        self._may_all_go = True

    # -- publishing ---------------------------------------------------------------------------------------------------

    def may_stay_private(self, sequence: ReferenceSequence) -> bool:
        """Whether the partial last block need not be published: its text can be had without it.

        Either a longer published block has that text and a page for each of its pages; or one with just that text is
        published, and ours may hold tokens that are not committed and must not be given up for it; or forks have that block
        too, and will publish it when they end.
        """
        ordinal = len(sequence.path)
        if len(list_sharers(self.sequences.values(), sequence, ordinal)) > 0:
            return True
        tail = tuple(sequence.committed[ordinal * self.tokens_per_block :])
        groups = [group for group in range(len(self.rules)) if self.is_needed(sequence, group, ordinal)]
        for sibling in self.tree.children(self._path_end(sequence)):
            tokens = self.tree.tokens(sibling)
            present = [group for group in range(len(self.rules)) if (sibling, group) in self.statuses]
            if tokens == tail and len(present) > 0 and sequence.capacity > len(sequence.committed):
                return True
            if len(tokens) > len(tail) and tokens[: len(tail)] == tail and all([group in present for group in groups]):
                return True
        return False

    def _share_node(self, sequence: ReferenceSequence, ordinal: int, node: int) -> None:
        """A private block is published for all its owners at once, with the pages that any of them needs."""
        for other in list_sharers(self.sequences.values(), sequence, ordinal):
            for group in range(len(self.rules)):
                if self.is_needed(other, group, ordinal):
                    self.tree.ever_published.add((node, group))
                    self._must_come.add((node, group))
            other.adopt(ordinal, node)

    def _path_end(self, sequence: ReferenceSequence) -> int:
        return sequence.path[-1] if len(sequence.path) > 0 else self.tree.root(sequence.scope)

    def _publish(self, sequence: ReferenceSequence, ordinal: int, end: int, must_come: bool) -> int:
        """The block behind the path, up to token ``end``, joins the tree with the pages it has; returns its node."""
        tokens = tuple(sequence.committed[ordinal * self.tokens_per_block : end])
        parent = self._path_end(sequence)
        node = self.tree.child(parent, tokens)
        for group in range(len(self.rules)):
            if self.is_needed(sequence, group, ordinal):
                self.tree.ever_published.add((node, group))
                if must_come:
                    self._must_come.add((node, group))
                else:
                    self._may_come.add((node, group))
        # A fuller block makes the partial ones with the same beginning superfluous.
        for sibling in self.tree.children(parent):
            beginning = self.tree.tokens(sibling)
            if len(beginning) < len(tokens) and tokens[: len(beginning)] == beginning:
                for group, rule in enumerate(self.rules):
                    if not rule.is_state:
                        self._may_go.add((sibling, group))
        return node


def _picture_of(picture: Picture, name: int) -> Picture:
    found: list[Picture] = [one for one in picture["sequences"] if one["id"] == name]
    if len(found) == 0:
        raise ModelDisagreement(f"sequence {name} is open, but describe() does not show it")
    return found[0]
