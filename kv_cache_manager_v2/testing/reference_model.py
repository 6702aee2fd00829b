"""The reference model: a manager's rules in plain dictionaries. It keeps every token and every sequence, and gives no slot a meaning.

The model is told each call that passed, with the state dump (`describe()`) after it, in the order of the calls. It computes
what the rules of the design allow, and raises `ModelDisagreement` if the dump shows something else. Where the
library may choose (the victim, one of several blocks that begin alike) the choice is read from the dump, and
must be a legal one:

    a page of the tree    must have been published, with the tokens of its node
    appears               when it is published, and must appear then
    disappears            when a call evicts or clears, or a fuller block replaces it; never while it is needed
    is LOCKED, HELD       exactly if an active sequence, or else a suspended one, needs it
    a refused call        is not told: a dump after it must show that nothing has changed

The model also answers what a sequence's public properties must be, and what an evicting call takes.
"""

from collections.abc import Sequence
from typing import Final, final


from ..base.ids import TokenIdExt
from ..config.manager_config import KVCacheManagerConfig
from .reference_beams import list_beams, may_gather, name_beam, reorder_blocks
from .reference_forks import list_sharers, make_fork, num_first_written
from .reference_lease import LeasedPage, ReferenceLease
from .reference_pages import ModelDisagreement, StateDump, state_dump_of
from .reference_plans import ReferencePlans
from .reference_room import ReferenceRoom
from .reference_sequence import ReferenceSequence
from .reference_tree import GroupRule, Page, Scope, Text
from .reference_twins import ReferenceTwin

NO_SNAPSHOT: Final = "no snapshot"
MAY_SNAPSHOT: Final = "may leave a snapshot"
MUST_SNAPSHOT: Final = "must leave a snapshot"
MAY_REPLACE: Final = "may leave a snapshot in place of its own last one"
TAKES_FREE: Final = "must leave a snapshot in a free slot"


@final
class ReferenceModel(ReferenceRoom):
    """See the module's docstring."""

    __slots__ = ("plans", "_num_epochs")

    def __init__(self, config: KVCacheManagerConfig, layer_grouping: Sequence[Sequence[int]]) -> None:
        super().__init__(config, layer_grouping)
        self.plans: Final = ReferencePlans(self)
        self._num_epochs = 0  # that have ended

    def find_planned(self, scope: Scope, text: Text, is_exact: bool = False) -> int:
        """The longest reusable prefix that ends with a planned block; 0 if there is none."""
        if len(self.plans) == 0:
            return 0
        content = self.tree.count_content(scope, text, self.in_tree, self._with_partial_blocks, self._backoff)
        return self.plans.find_longest(scope, text, self.statuses.keys() - self.unusable(is_exact), self.in_tree, content, self._backoff)

    # -- calls --------------------------------------------------------------------------------------------------------

    def create(
        self,
        name: int,
        scope: Scope,
        text: Text,
        num_matched: int,
        dump: StateDump,
        state_tokens: int = 0,
        is_rewound: bool = False,
        is_exact: bool = False,
    ) -> ReferenceSequence:
        """A sequence was created, or rewound. ``state_tokens``: the tokens that its recurrent state is said to cover. ``is_exact``: it
        refuses what was packed with loss."""
        size = self.tokens_per_block
        match = self.expect_match(scope, text, not is_rewound, is_exact)
        num_planned = 0 if is_rewound else self.find_planned(scope, text, is_exact)
        is_planned = num_matched == num_planned > match.least and num_planned >= match.best
        if (num_planned > match.best or not match.allows(num_matched)) and not is_planned:
            raise ModelDisagreement(
                f"{num_matched} of {len(text)} tokens were matched; the longest reusable prefix has {match.best}, "
                f"with planned blocks {num_planned}, "
                f"possible are {sorted(match.lengths)}"
            )
        sequence = ReferenceSequence(name, scope, len(self.rules))
        sequence.is_exact = is_exact
        sequence.uses_scratch = len(self._scratch_rules) > 0
        node = self.tree.root(scope)
        for ordinal in range(num_matched // size):
            node = self.tree.child(node, text[ordinal * size : (ordinal + 1) * size])
            sequence.path.append(node)
        if num_planned == num_matched:
            planned = [node for node in sequence.path if node not in self.in_tree]
            del sequence.path[len(sequence.path) - len(planned) :]
            self.plans.read(sequence, planned)
        if self.state.group >= 0:
            self._begin_state(sequence, text, num_matched, state_tokens)
        sequence.num_matched = num_matched
        sequence.committed = list(text[:num_matched])
        sequence.history = num_matched
        sequence.capacity = num_matched
        if num_matched % size != 0:
            candidates = self.tree.partial_matches(scope, text, num_matched, self.statuses.keys() - self.unusable(is_exact))
            sequence.shared_tail = self._find_tail(candidates, state_dump_of(dump, name))
            sequence.is_matched_tail = True
        self.sequences[name] = sequence
        return sequence

    def _begin_state(self, sequence: ReferenceSequence, text: Text, num_matched: int, state_tokens: int) -> None:
        present = self.statuses.keys() - self.unusable(sequence.is_exact)
        start = self.state.find_replay_start(sequence.scope, text, num_matched, present)
        if state_tokens != (num_matched if start is None else start):
            raise ModelDisagreement(f"the state of {num_matched} matched tokens begins at {state_tokens}, must at {start}")
        if not self.state.has_snapshot(sequence.scope, text, state_tokens, present):
            raise ModelDisagreement(f"the state of sequence {sequence.name} begins at {state_tokens}, where no snapshot is")
        if state_tokens > 0:
            sequence.snapshot_node = self.tree.find_exact(sequence.scope, text[:state_tokens])

    def _find_tail(self, candidates: list[int], sequence_dump: StateDump) -> int:
        """The block that was taken of those that begin alike: its slots are the sequence's."""
        slots = [slots[-1] for slots in sequence_dump["page_slots"]]
        levels = [levels[-1] for levels in sequence_dump["page_levels"]]
        last = list(zip(levels, slots))
        for node in candidates:
            groups = [group for group in range(len(self.rules)) if slots[group] is not None]
            if all([self.places.get((node, group)) == last[group] for group in groups]):
                return node
        raise ModelDisagreement(f"sequence {sequence_dump['id']}: its partial last block is not one that could be used")

    def resume(self, sequence: ReferenceSequence, dump: StateDump) -> None:
        tail_is_shared = bool(state_dump_of(dump, sequence.name)["shares_last_block"])
        if tail_is_shared and (sequence.shared_tail is None or sequence.is_matched_tail):
            raise ModelDisagreement(f"sequence {sequence.name} was resumed and shares its last block")
        if not tail_is_shared:
            sequence.shared_tail = None
        sequence.is_matched_tail = False
        sequence.is_active = True
        sequence.has_state = self.state.group >= 0
        self._may_all_go = True
        for beam in sequence.beams:
            self.resume(beam, dump)

    def set_window(self, sequence: ReferenceSequence, group: int, window: int | None, num_sink_tokens: int) -> None:
        """A residency window was set, or taken away."""
        if window is None:
            sequence.residency.pop(group, None)
        else:
            sequence.residency[group] = GroupRule(window, -(-num_sink_tokens // self.tokens_per_block))

    def require_blocks(self, sequence: ReferenceSequence, group: int, ordinals: Sequence[int]) -> None:
        """They were locked, and pages may have been evicted for it."""
        if group in sequence.residency:
            sequence.required.update([(group, ordinal) for ordinal in ordinals])
        self._may_all_go = True

    def make_room(self) -> None:
        """A call that changes nothing else may have evicted pages."""
        self._may_all_go = True

    def record_failure(self) -> None:
        """The device has failed: pages may have been evicted in vain, and a snapshot may have been left out."""
        self._may_all_go = True
        self._snapshots_due.clear()

    def suspend(self, sequence: ReferenceSequence) -> None:
        self.plans.take_back(sequence, 0)
        for beam in list_beams(sequence):
            beam.is_active = False
        sequence.required = set()
        self.settle_twins()

    def _find_taken_back(self, sequence: ReferenceSequence, capacity: int, history: int) -> int:
        """The first block whose tokens have no room after a resize, or which is a scratch block then."""
        begins = [capacity // self.tokens_per_block]
        if capacity != sequence.capacity:
            begins += [begin for begin, end in self._scratch_after_resize(sequence, capacity, history) if begin < end]
        return min(begins)

    def resize(self, sequence: ReferenceSequence, capacity: int, history: int, dump: StateDump, is_in_batch: bool = False) -> None:
        """``is_in_batch``: the dump is that after the calls of others, too, who may have published the last block since: then ask
        `require_tail_as_shown` after all of them."""
        self.plans.take_back(sequence, self._find_taken_back(sequence, capacity, history))
        tail_is_shared = bool(state_dump_of(dump, sequence.name)["shares_last_block"])
        end_of_tail = (len(sequence.path) + 1) * self.tokens_per_block
        if is_in_batch and sequence.shared_tail is None:
            tail_is_shared = False
        if tail_is_shared and (sequence.shared_tail is None or (history < capacity and history < end_of_tail)):
            raise ModelDisagreement(f"sequence {sequence.name} may write its last block, which is shared")
        if not tail_is_shared:
            sequence.shared_tail = None
        sequence.leave_shared(num_first_written(sequence, capacity, history, self.tokens_per_block))
        sequence.leave_shared(-(-capacity // self.tokens_per_block))
        sequence.scratch = self._scratch_after_resize(sequence, capacity, history)
        sequence.required = set()
        sequence.capacity = capacity
        sequence.peak_capacity = max(sequence.peak_capacity, capacity)
        sequence.history = history
        self._may_all_go = True
        for beam in sequence.beams:
            self.resize(beam, capacity, history, dump, is_in_batch)
        self.settle_twins()

    def require_tail_as_shown(self, sequence: ReferenceSequence, call: str, dump: StateDump) -> None:
        if bool(state_dump_of(dump, sequence.name)["shares_last_block"]) != (sequence.shared_tail is not None):
            raise ModelDisagreement(f"sequence {sequence.name}: {call} changed who owns the last block")

    def set_width(self, sequence: ReferenceSequence, width: int) -> None:
        """The beam width was changed: further beams are forks of beam 0; the last ones are removed."""
        while len(sequence.beams) + 1 < width:
            sequence.beams.append(self.fork(sequence, name_beam(sequence.name, len(sequence.beams) + 1)))
        while len(sequence.beams) + 1 > width:
            del self.sequences[sequence.beams.pop().name]
            self._may_all_go = True  # pages that only it kept, of blocks that fuller ones have replaced
            self.settle_twins()

    def reorder(self, sequence: ReferenceSequence, parents: Sequence[int]) -> None:
        num_blocks = self.num_blocks(sequence)
        for twin in self.twins:
            if twin.ordinal >= len(sequence.path):
                twin.users[:] = [user for user in twin.users if user not in list_beams(sequence)]
        self.settle_twins()
        self._next_private = reorder_blocks(list_beams(sequence), parents, num_blocks, self._next_private)

    def may_gather(self, sequence: ReferenceSequence, sources: Sequence[int]) -> bool:
        """Whether the next committed tokens may be those of these beams."""
        numbers: set[int] = set()
        for lease in self.leases.values():
            numbers |= lease.numbers
        return may_gather(list_beams(sequence), self.sequences.values(), numbers, sources, self.tokens_per_block)

    def fork(self, sequence: ReferenceSequence, name: int) -> ReferenceSequence:
        num_blocks = self.num_blocks(sequence)
        child = make_fork(sequence, name, num_blocks, self._next_private)
        self._next_private += num_blocks
        self.sequences[name] = child
        for twin in self.twins:
            if sequence in twin.users:
                twin.users.append(child)
        return child

    def reserve(self, sequence: ReferenceSequence, number: int, begin: int, end: int, dump: StateDump) -> None:
        """A lease was made. In groups without a window the pages before ``begin`` are kept with the lent ones."""
        lease = ReferenceLease(sequence.scope)
        for ordinal in range(len(sequence.path), end):
            if sequence.node(ordinal) is None:
                lease.numbers.add(sequence.shared_private.setdefault(ordinal, self._next_private + ordinal))
        self._next_private += end
        slots = state_dump_of(dump, sequence.name)["page_slots"]
        for group, rule in enumerate(self.rules):
            for ordinal in range(0 if rule.window is None else begin, end):
                if self.is_needed(sequence, group, ordinal):
                    node = sequence.node(ordinal)
                    twin = self.find_twin(sequence, group, ordinal)
                    if twin is not None and ordinal >= begin:
                        lease.pages.append(LeasedPage(group, ordinal, slots[group][ordinal], twin.number, True, None))
                        continue
                    private = None if node is not None else sequence.shared_private[ordinal]
                    slot: int = slots[group][ordinal] if twin is None or node is None else self.places[node, group][1]
                    lease.pages.append(LeasedPage(group, ordinal, slot, private, ordinal >= begin, node))
        self.leases[number] = lease

    def settle(self, number: int) -> None:
        """A lease was settled: pages that were kept only for it may be evicted."""
        del self.leases[number]
        self._may_all_go = True
        self.settle_twins()

    def may_toggle_scratch(self, sequence: ReferenceSequence) -> bool:
        """Whether scratch reuse may be switched: only if the present step does not depend on it."""
        ranges = [rule.compute_range(sequence.history, sequence.capacity) for rule in self._scratch_rules]
        return all([begin == end for begin, end in [*ranges, *sequence.scratch]])

    def has_history_in_scratch(self, sequence: ReferenceSequence) -> bool:
        """Whether the next token would read a block in scratch slots: then the sequence cannot be forked."""
        size = self.tokens_per_block
        for rule, (beg, end) in zip(self.rules, sequence.scratch):
            if beg < end and not rule.is_stale(end - 1, sequence.history, size):
                return True
        return False

    def commit(self, sequence: ReferenceSequence, tokens: Sequence[TokenIdExt], snapshot: str = NO_SNAPSHOT) -> None:
        """Tokens were committed: blocks that become full are published with the pages that they have before the window moves.

        ``snapshot``: whether a snapshot of the recurrent state must appear at the new end, may appear, or must not, and what may go for
        it: any page, its own last snapshot that was not planned, or none.
        """
        size = self.tokens_per_block
        sequence.committed.extend(tokens)
        if sequence.is_retired:
            snapshot = NO_SNAPSHOT
        while not sequence.is_retired and (len(sequence.path) + 1) * size <= len(sequence.committed):
            ordinal = len(sequence.path)
            number = sequence.shared_private.get(ordinal)
            sharers = list_sharers(self.sequences.values(), sequence, ordinal)
            node = self._publish(sequence, ordinal, (ordinal + 1) * size, True)
            if self.indices_stay and sequence.node(ordinal) is None:
                self._keep_twins([sequence, *sharers], ordinal, node, number)
            self._share_node(sequence, ordinal, node)
            sequence.grow_path(node)
            self.plans.confirm(sequence, ordinal, node)
        sequence.history = max(sequence.history, len(sequence.committed))
        sequence.scratch = self.list_kept_scratch(sequence, sequence.history)
        if snapshot in (MAY_SNAPSHOT, MUST_SNAPSHOT):
            self._expect_snapshot(sequence, snapshot == MUST_SNAPSHOT, True)
        elif snapshot != NO_SNAPSHOT:
            self._may_go.update(sequence.commit_snapshots)
            page = self._expect_snapshot(sequence, snapshot == TAKES_FREE, self.state.thins_paths)
            sequence.commit_snapshots.add(page)
        self.settle_twins()
        for beam in sequence.beams:
            self.commit(beam, tokens)

    def _keep_twins(self, owners: Sequence[ReferenceSequence], ordinal: int, node: int, number: int | None) -> None:
        """The block is published already: owners keep their pages where others have the published ones on the device."""
        for group in range(len(self.rules)):
            keepers = [
                owner
                for owner in owners
                if owner.is_active and owner.name >= 0 and len(owner.beams) == 0 and self.is_needed(owner, group, ordinal)
            ]
            if len(keepers) > 0 and self.is_on_device((node, group), without=owners):
                if number is None:
                    number = self._next_private
                    self._next_private += 1
                self.twins.append(ReferenceTwin(node, group, ordinal, number, keepers))

    def _expect_snapshot(self, sequence: ReferenceSequence, must_come: bool, makes_room: bool) -> Page:
        """Expect a page of the recurrent group on the last committed block; its allocation may evict first."""
        tail = tuple(sequence.committed[len(sequence.path) * self.tokens_per_block :])
        node = self.tree.child(self._path_end(sequence), tail) if tail else self._path_end(sequence)
        self.tree.ever_published.add((node, self.state.group))
        self._may_come.add((node, self.state.group))
        if must_come:
            self._snapshots_due.add((node, self.state.group))
        self._may_all_go = self._may_all_go or makes_room
        return node, self.state.group

    def stop_committing(self, sequence: ReferenceSequence, dump: StateDump) -> None:
        """The partial last block is published, unless a longer one with its tokens and all its pages exists.

        Once only: what was written into the block since the first call must stay. Where indices stay, `close` publishes it.
        """
        self.plans.take_back(sequence, 0)
        if self.indices_stay:
            if sequence.is_committing and sequence.shared_tail is None:
                sequence.publishes_at_close = True
            for beam in list_beams(sequence):
                beam.is_committing = False
            self.require_tail_as_shown(sequence, "stop_committing", dump)
            return
        was_committing = sequence.is_committing and not sequence.is_retired
        for beam in list_beams(sequence):
            beam.is_committing = False
        ordinal = len(sequence.path)
        tail_is_shared = bool(state_dump_of(dump, sequence.name)["shares_last_block"])
        has_tail = len(sequence.committed) > ordinal * self.tokens_per_block
        if was_committing and sequence.shared_tail is None and has_tail:
            if tail_is_shared:
                node = self._publish(sequence, ordinal, len(sequence.committed), True)
                self._share_node(sequence, ordinal, node)
                sequence.adopt(ordinal, node)
            elif not self.may_stay_private(sequence):
                raise ModelDisagreement(f"sequence {sequence.name}: its partial last block was not published")
        else:
            self.require_tail_as_shown(sequence, "stop_committing", dump)

    def close(self, sequence: ReferenceSequence) -> None:
        """The partial last block is published as by `stop_committing`; not where nothing is copied, as it is reused as a copy."""
        self.set_width(sequence, 1)
        publishes = sequence.is_committing or sequence.publishes_at_close
        self._end(sequence, publishes and not self.may_stay_private(sequence))

    def abandon(self, sequence: ReferenceSequence) -> None:
        """The handle was dropped without `close`: everything is released. Whether the last block is published is open."""
        self._end(sequence, False)

    def _end(self, sequence: ReferenceSequence, must_publish: bool) -> None:
        self.set_width(sequence, 1)
        if self.state.leaves_state_at_close(sequence) and not sequence.is_retired:
            self._expect_snapshot(sequence, True, self.state.thins_paths)
        num_read = len(self.plans.list_read(sequence))
        self.plans.leave(sequence)
        has_tail = len(sequence.committed) > (len(sequence.path) + num_read) * self.tokens_per_block
        if sequence.shared_tail is None and has_tail and not sequence.is_retired and not self.takes_no_copies:
            ordinal = len(sequence.path)
            node = self._publish(sequence, ordinal, len(sequence.committed), must_publish)
            if ordinal in sequence.shared_private:
                self._maybe_published[sequence.shared_private[ordinal]] = node
        del self.sequences[sequence.name]
        self.settle_twins()

    def end_epoch(self, scope: Scope | None) -> None:
        """Of that scope, or of all: nothing that is kept or open now is matched again."""
        self._num_epochs += 1
        for ended in self.tree.scopes() if scope is None else [scope]:
            for sequence in self.sequences.values():
                if sequence.scope == ended:
                    self.plans.take_back(sequence, 0)
                    sequence.is_retired = True
            self.tree.retire(ended, self._num_epochs)
        self._snapshots_due.clear()
        self._may_all_go = True

    # -- publishing ---------------------------------------------------------------------------------------------------

    def may_stay_private(self, sequence: ReferenceSequence) -> bool:
        """Whether the partial last block need not be published: its tokens can be matched without it.

        Either a longer published block has these tokens and a page for each of its pages; or one with exactly these tokens is
        published, and ours may hold uncommitted tokens and must not be replaced by it, or it has a snapshot, with which it could not
        be taken back where there is no slot for a copy, or its own page is on a lower level and may be held by a sequence with such
        tokens in it; or forks have that block too, and will publish it when they end; or another
        machine has it, and may yet write behind these tokens.
        """
        ordinal = len(sequence.path)
        if self.has_other_owners(sequence, ordinal):
            return True
        tail = tuple(sequence.committed[ordinal * self.tokens_per_block :])
        groups = [group for group in range(len(self.rules)) if self.is_needed(sequence, group, ordinal)]
        for sibling in self.tree.children(self._path_end(sequence)):
            tokens = self.tree.tokens(sibling)
            present = [group for group in range(len(self.rules)) if (sibling, group) in self.statuses or (sibling, group) in self._may_come]
            if tokens == tail and len(present) > 0 and sequence.capacity > len(sequence.committed):
                return True
            if tokens == tail and any([group not in groups or self.statuses.get((sibling, group)) == "held" for group in present]):
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
        """Publish the block behind the path, up to token ``end``, with its pages; returns its node."""
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
        if ordinal in sequence.shared_private:
            self._record_published(sequence.shared_private[ordinal], node)
        # A fuller block makes partial ones with the same beginning superfluous.
        for sibling in self.tree.children(parent):
            beginning = self.tree.tokens(sibling)
            if len(beginning) < len(tokens) and tokens[: len(beginning)] == beginning:
                for group, rule in enumerate(self.rules):
                    if not rule.is_state:
                        self._may_go.add((sibling, group))
        return node
