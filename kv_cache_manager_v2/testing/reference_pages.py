"""The pages that must exist, according to the reference model: in the tree, private, or needed by an open sequence.

`ReferencePages.see` compares the tree of a state dump with the last one and with what the calls since may have changed.
"""

from collections.abc import Sequence, Set
from typing import Any, Final, TypeAlias

from mypy_extensions import mypyc_attr

from ..config.manager_config import KVCacheManagerConfig
from .reference_beams import place_of_beam
from .reference_lease import LeasedPage, ReferenceLease
from .reference_scratch import ScratchRule
from .reference_sequence import ReferenceSequence
from .reference_state import StateRule, group_layers, make_rules
from .reference_tree import GroupRule, Page, ReferenceMatch, ReferenceTree, Scope, Text
from .reference_twins import ReferenceTwin, find_twin, list_twin_blocks

StateDump: TypeAlias = dict[str, Any]

DROPPABLE: Final = "droppable"
HELD: Final = "held"
LOCKED: Final = "locked"


@mypyc_attr(native_class=False)
class ModelDisagreement(Exception):
    """The manager did something that the rules do not allow."""


class ReferencePages:
    """``statuses`` and ``places``: of each page in the tree, in the last dump."""

    __slots__ = (
        "tokens_per_block", "rules", "tree", "sequences", "statuses", "places", "_with_partial_blocks", "_backoff", "_must_come",
        "_may_come", "_may_go", "_may_all_go", "_scratch_rules", "_maybe_published", "_next_private",
        "state", "lost", "lossy", "packs_with_loss", "_snapshots_due", "leases", "_published_as", "twins", "indices_stay",
        "takes_no_copies", "in_tree", "num_drop_plans", "pool_group_of", "num_slots",
    )  # fmt: skip

    def __init__(self, config: KVCacheManagerConfig, layer_grouping: Sequence[Sequence[int]]) -> None:
        size = config.tokens_per_block
        self.tokens_per_block: Final[int] = size
        layers = group_layers(config)
        expected = [[layer.layer_id for layer in members] for members in layers]
        if [list(group) for group in layer_grouping] != expected:
            raise ModelDisagreement(f"the layer groups are {layer_grouping}, must be {expected}")
        self.rules: Final[list[GroupRule]] = make_rules(config)
        self._scratch_rules: Final[list[ScratchRule]] = []  # by group; empty if scratch slots are not configured
        scratch = config.swa_scratch_reuse
        if scratch is not None:
            division = config.divide_into_equal_slots()
            for rule, members in zip(self.rules, layers):
                slot_bytes = None if division is None or rule.is_state else sum(division.slot_bytes)
                rules = ScratchRule(rule, members, size, scratch.max_rewind_len, config.is_external, slot_bytes)
                self._scratch_rules.append(rules)
        self.tree: Final = ReferenceTree(size, self.rules)
        self.state: Final = StateRule(config, self.rules, self.tree)
        self.sequences: Final[dict[int, ReferenceSequence]] = {}
        self.statuses: dict[Page, str] = {}
        self.places: dict[Page, tuple[int, int]] = {}  # level and slot
        self._with_partial_blocks: Final[bool] = config.enable_partial_reuse
        self._backoff: Final[int] = config.reuse_match_backoff
        self._must_come: Final[set[Page]] = set()
        self._may_come: Final[set[Page]] = set()
        self._may_go: Final[set[Page]] = set()
        self._may_all_go = False
        self._maybe_published: Final[dict[int, int]] = {}  # by the number of a shared private block: the node that it may be by now
        self._next_private = 0
        self.lost: set[Page] = set()  # existing pages whose bytes could not be read
        self.lossy: set[Page] = set()  # existing pages that were packed with loss
        self.packs_with_loss = False
        self._snapshots_due: Final[set[Page]] = set()  # made last in their call, so nothing can have evicted them
        self.leases: Final[dict[int, ReferenceLease]] = {}
        self._published_as: Final[dict[int, set[int]]] = {}
        """By the number of a private block that was shared: the nodes that it may be by now."""
        self.twins: Final[list[ReferenceTwin]] = []  # the oldest first
        self.in_tree: set[int] = set()
        """The nodes of the last dump, whatever pages they have."""
        self.num_drop_plans = 0
        """How many are open. One keeps the last block that it names in the tree, whatever pages that has left."""
        self.pool_group_of: Sequence[int] = []
        """By layer group."""
        self.num_slots: Sequence[int] = []
        """By pool group, of level 0; empty: any number."""
        self.indices_stay: Final[bool] = not config.allow_seq_rebasing
        self.takes_no_copies: Final[bool] = config.takes_no_copies

    # -- state dumps --------------------------------------------------------------------------------------------------

    def see(self, dump: StateDump) -> None:
        """Compare the tree of a dump with the last one and with the calls since."""
        old = self.statuses
        old_places, old_lossy = self.places, self.lossy
        self._may_all_go = self._may_all_go or len(self.lost) > 0  # lost ones are dropped with their last hold, and pages below them too
        self._read_tree(dump)
        self._adopt_published(dump)
        self._find_leased(dump)
        needed = self._needed_pages()
        for page, status in self.statuses.items():
            if page not in self.tree.ever_published:
                raise ModelDisagreement(f"{self.name(page)} is in the tree and was never published")
            if page not in old and page not in self._must_come and page not in self._may_come:
                raise ModelDisagreement(f"{self.name(page)} appeared, and no call has published it")
            if page not in needed and self.tree.is_retired(page[0]):
                raise ModelDisagreement(f"{self.name(page)} is of an epoch that has ended, and no sequence needs it")
            if status != needed.get(page, DROPPABLE):
                raise ModelDisagreement(f"{self.name(page)} is {status}, must be {needed.get(page, DROPPABLE)}")
        for page in needed:
            if page not in self.statuses:
                raise ModelDisagreement(f"{self.name(page)} disappeared, but an open sequence needs it")
        for page in self._snapshots_due:
            if page not in self.statuses:
                raise ModelDisagreement(f"{self.name(page)} is missing, a snapshot that had to be left")
        self._snapshots_due.clear()
        if not self._may_all_go:
            for page in {*old, *self._must_come}:
                if page not in self.statuses and page not in self._may_go and not self.tree.is_retired(page[0]):
                    raise ModelDisagreement(f"{self.name(page)} is missing; nothing was evicted or replaced")
        self._check_reachable()
        self._check_twins(dump)
        self._check_losses(old_places, old_lossy)
        self._must_come.clear()
        self._may_come.clear()
        self._may_go.clear()
        self._may_all_go = False

    def forget_evicted(self, dump: StateDump) -> None:
        """A call may have evicted pages before it looked up what is there: what is gone by its end was not there then."""
        old = self.statuses, self.places, self.lost, self.lossy, self.in_tree
        self._read_tree(dump)
        present = self.statuses.keys()
        self.statuses, self.places, self.lost, self.lossy, self.in_tree = old
        self.statuses = {page: status for page, status in self.statuses.items() if page in present}

    def _check_losses(self, old_places: dict[Page, tuple[int, int]], old_lossy: set[Page]) -> None:
        """What lies below level 0 is packed, and what came from there was. On level 0 a page is as it was, unless a call since has
        published it, or has evicted pages, of which some may be back."""
        for page, (level, _slot) in self.places.items():
            was_packed = page in old_lossy or old_places.get(page, (0, 0))[0] > 0
            is_new = page not in old_places or page in self._must_come or page in self._may_come
            must = self.packs_with_loss and (level > 0 or (was_packed and not is_new))
            may = self.packs_with_loss and (must or is_new or self._may_all_go)
            if (must and page not in self.lossy) or (page in self.lossy and not may):
                raise ModelDisagreement(f"{self.name(page)} must{'' if must else ' not'} be said to be packed with loss")

    def _read_tree(self, dump: StateDump) -> None:
        self.statuses = {}
        self.places = {}
        self.lost = set()
        self.lossy = set()
        self.in_tree = set()
        for scope_dump in dump["tree"]:
            scope = (scope_dump["lora_id"], scope_dump["salt"])
            epoch: int | None = scope_dump.get("ended_epoch")
            path = [self.tree.root(scope) if epoch is None else self.tree.retired_root(scope, epoch)]
            for block in scope_dump["blocks"]:
                del path[block["depth"] + 1 :]
                tokens = tuple([bytes.fromhex(token) if isinstance(token, str) else token for token in block["tokens"]])
                node = self.tree.child(path[-1], tokens)
                path.append(node)
                self.in_tree.add(node)
                for group, page in enumerate(block["pages"]):
                    if page is not None:
                        self.statuses[(node, group)] = page["status"]
                        self.places[(node, group)] = (page["level"], page["slot"])
                        if page.get("is_lost", False):
                            self.lost.add((node, group))
                        if page.get("is_lossy", False):
                            self.lossy.add((node, group))

    def _adopt_published(self, dump: StateDump) -> None:
        """Find the private last blocks that forks share and whose owner ended: published for all of them, or not."""
        for sequence in self.sequences.values():
            forked: list[str | int] = state_dump_of(dump, sequence.name)["forked_blocks"]
            for position, what in enumerate(forked):
                ordinal = len(sequence.path) + position
                node = self._maybe_published.get(sequence.shared_private.get(ordinal, -1))
                if what == "published" and sequence.node(ordinal) is None and node is not None:
                    sequence.adopt(ordinal, node)
                if what == "published" and sequence.node(ordinal) is None:
                    raise ModelDisagreement(f"block {ordinal} of sequence {sequence.name} is published, and no call did that")
        self._maybe_published.clear()

    def _find_leased(self, dump: StateDump) -> None:
        """Lent pages stay in their slots, whatever block of the tree they belong to by now; pages that are kept with them stay on level 0,
        and may move there when the level is resized."""
        node_in_slot = {(page[1], place[1]): page[0] for page, place in self.places.items() if place[0] == 0}
        for lease_dump in dump["leases"]:
            number: int = lease_dump["number"]
            lease = self.leases[number]
            slots = [lease.lent_slots(group) for group in range(len(self.rules))]
            if lease_dump["slots"] != slots:
                raise ModelDisagreement(f"lease {number} has slots {lease_dump['slots']}, must have {slots}")
            for page in lease.pages:
                node = node_in_slot.get((page.group, page.slot))
                if page.node is None and node is not None and page.number is not None:
                    if node not in self._published_as.get(page.number, set()):
                        if not page.is_lent:
                            continue
                        raise ModelDisagreement(f"{self.name((node, page.group))} is in a slot of lease {number}")
                    page.node = node
                if not page.is_lent:
                    node = self._find_kept(page)
                if node != page.node:
                    raise ModelDisagreement(f"lease {number} has lost slot {page.slot} of group {page.group}")

    def _find_kept(self, page: LeasedPage) -> int | None:
        """The node that the page belongs to, if it is on level 0."""
        if page.node is None:
            return None
        place = self.places.get((page.node, page.group))
        return page.node if place is not None and place[0] == 0 else None

    def _leased_pages(self) -> list[Page]:
        """The published leased pages."""
        pages: list[Page] = []
        for lease in self.leases.values():
            for page in lease.pages:
                published = page.published
                if published is not None:
                    pages.append(published)
        return pages

    def _needed_pages(self) -> dict[Page, str]:
        """LOCKED or HELD for each published page that an open sequence needs."""
        statuses: dict[Page, str] = {}
        for sequence in self.sequences.values():
            for page in self._published_pages(sequence):
                statuses.setdefault(page, HELD)
            for page in self._published_pages(sequence, True):
                statuses[page] = LOCKED
            snapshot = self.state.held_snapshot(sequence)
            if snapshot is not None:
                statuses[snapshot] = HELD
        for page in self._leased_pages():
            statuses[page] = LOCKED
        return statuses

    def _published_pages(self, sequence: ReferenceSequence, locked_only: bool = False) -> list[Page]:
        pages: list[Page] = []
        for ordinal in range(self.num_blocks(sequence)):
            node = sequence.node(ordinal)
            if node is not None:
                for group in range(len(self.rules)):
                    if self.is_locked(sequence, group, ordinal) if locked_only else self.is_needed(sequence, group, ordinal):
                        pages.append((node, group))
        return pages

    def _check_reachable(self) -> None:
        """A block below one that lacks the page of a group without a window can never be matched, so it must have no pages but leased
        ones."""
        unbounded = [group for group, rule in enumerate(self.rules) if rule.window is None and not rule.is_state]
        for page in self.statuses.keys() - self._leased_pages():
            parent = self.tree.parent(page[0])
            if self.tree.parent(parent) >= 0:
                for group in unbounded:
                    if (parent, group) not in self.statuses:
                        raise ModelDisagreement(f"{self.name(page)} is kept, but {self.name((parent, group))} is gone")

    def _check_twins(self, dump: StateDump) -> None:
        for sequence in self.sequences.values():
            shown: list[list[int]] = state_dump_of(dump, sequence.name).get("twins", [[]] * len(self.rules))
            twins = [list_twin_blocks(self.twins, sequence, group) for group in range(len(self.rules))]
            if shown != twins:
                raise ModelDisagreement(f"sequence {sequence.name} keeps pages of its own for blocks {shown}, must for {twins}")

    def settle_twins(self) -> None:
        """A call is over: end the twins that no active sequence needs, and those that are the published page by now."""
        for twin in list(self.twins):
            twin.users[:] = [user for user in twin.users if self._uses_twin(user, twin)]
            if len(twin.users) == 0:
                self.twins.remove(twin)
        passed: set[Page] = set()
        for twin in list(self.twins):
            page = (twin.node, twin.group)
            if page not in passed and not self.is_on_device(page, [other for other in self.twins if (other.node, other.group) == page]):
                self.twins.remove(twin)
                self._record_published(twin.number, twin.node)
            passed.add(page)

    def _uses_twin(self, sequence: ReferenceSequence, twin: ReferenceTwin) -> bool:
        return (
            self.sequences.get(sequence.name) is sequence
            and sequence.is_active
            and twin.ordinal < self.num_blocks(sequence)
            and sequence.node(twin.ordinal) == twin.node
            and self.is_needed(sequence, twin.group, twin.ordinal)
        )

    def is_on_device(self, page: Page, twins: Sequence[ReferenceTwin] = (), without: Sequence[ReferenceSequence] = ()) -> bool:
        """Whether an active sequence or a lease needs the published page; not counted are users of ``twins`` and ``without``."""
        for sequence in self.sequences.values():
            if sequence.is_active and sequence not in without and page in self._published_pages(sequence):
                if not any([sequence in twin.users for twin in twins]):
                    return True
        return page in self._leased_pages()

    def find_twin(self, sequence: ReferenceSequence, group: int, ordinal: int) -> ReferenceTwin | None:
        return find_twin(self.twins, sequence, group, ordinal)

    def _record_published(self, number: int, node: int) -> None:
        """Leased pages of that private block may be pages of the tree now."""
        self._published_as.setdefault(number, set()).add(node)
        for lease in self.leases.values():
            for page in lease.pages:
                if page.number == number and page.node is None:
                    self.tree.ever_published.add((node, page.group))
                    self._may_come.add((node, page.group))

    def adopt_leased(self, dump: StateDump) -> None:
        """Between a commit and the next `see`: whether it has published leased blocks as they are, by a later dump."""
        before = (self.statuses, self.places, self.lost, self.lossy, self.in_tree)
        self._read_tree(dump)
        node_in_slot = {(page[1], place[1]): page[0] for page, place in self.places.items() if place[0] == 0}
        self.statuses, self.places, self.lost, self.lossy, self.in_tree = before
        for lease in self.leases.values():
            for page in lease.pages:
                node = node_in_slot.get((page.group, page.slot))
                if page.node is None and page.number is not None and node in self._published_as.get(page.number, set()):
                    page.node = node

    def find_published_end(self, sequence: ReferenceSequence, dump: StateDump) -> int:
        """The last published block of a sequence that commits no more, by a dump of now."""
        before = (self.statuses, self.places, self.lost, self.lossy, self.in_tree)
        self._read_tree(dump)
        last = self.tree.find_exact(sequence.scope, tuple(sequence.committed))
        is_published = last is not None and last in self.in_tree
        self.statuses, self.places, self.lost, self.lossy, self.in_tree = before
        return last if is_published and last is not None else sequence.path[-1]

    def name(self, page: Page) -> str:
        node, group = page
        return f"the page of group {group} of block {self.tree.depth(node)} with tokens {self.tree.tokens(node)}"

    # -- facts --------------------------------------------------------------------------------------------------------

    def take_number(self) -> int:
        """The next number of a private block that is shared."""
        self._next_private += 1
        return self._next_private - 1

    def num_blocks(self, sequence: ReferenceSequence) -> int:
        return -(-sequence.capacity // self.tokens_per_block)

    def is_needed(self, sequence: ReferenceSequence, group: int, ordinal: int) -> bool:
        """Whether the sequence holds a page of that group for the block."""
        beg, end = sequence.scratch[group]
        is_scratch = beg <= ordinal < end
        history = max(sequence.history, sequence.passed_history)
        return not is_scratch and not self.rules[group].is_stale(ordinal, history, self.tokens_per_block)

    def is_resident(self, sequence: ReferenceSequence, group: int, ordinal: int) -> bool:
        """Whether the sequence locks the page that it needs while active: it is not behind a residency window."""
        rule = sequence.residency.get(group)
        return rule is None or not rule.is_stale(ordinal, sequence.history, self.tokens_per_block)

    def is_locked(self, sequence: ReferenceSequence, group: int, ordinal: int) -> bool:
        """Whether the sequence locks a page for the block: its base page index is valid."""
        if not sequence.is_active or not self.is_needed(sequence, group, ordinal):
            return False
        return self.is_resident(sequence, group, ordinal) or (group, ordinal) in sequence.required

    def num_scratch_slots(self, sequence: ReferenceSequence, group: int) -> int:
        """The slots that the sequence's scratch blocks share while it is active."""
        if not sequence.is_active or not self._scratch_rules:
            return 0
        return self._scratch_rules[group].compute_num_slots(sequence.scratch[group])

    def num_used_slots(self, group: int) -> int:
        """All pages of that group, in the tree or private to open sequences, and scratch slots."""
        published = [page for page in self.statuses if page[1] == group]
        return len(published) + self._num_private_slots(group, False)

    def num_needed_slots(self, group: int) -> int:
        """Pages that open sequences need, and that cannot be evicted."""
        needed = [page for page in self._needed_pages() if page[1] == group]
        return len(needed) + self._num_private_slots(group, False)

    def num_locked_slots(self, group: int) -> int:
        """Pages that active sequences need."""
        locked = [page for page, status in self._needed_pages().items() if page[1] == group and status == LOCKED]
        return len(locked) + self._num_private_slots(group, True)

    def _num_private_slots(self, group: int, active_only: bool) -> int:
        count = 0
        private: set[tuple[int, int]] = set()
        for sequence in self.sequences.values():
            if sequence.is_active or not active_only:
                count += self.num_scratch_slots(sequence, group)
                for ordinal in range(self.num_blocks(sequence)):
                    is_counted = self.is_locked if active_only else self.is_needed
                    if sequence.node(ordinal) is None and is_counted(sequence, group, ordinal):
                        private.add(sequence.private_name(ordinal))
        private.update([twin.private_name for twin in self.twins if twin.group == group])
        for lease in self.leases.values():
            private.update([page.private_name for page in lease.pages if page.group == group and page.node is None])
        return count + len(private) + self.state.num_private_slots(list(self.sequences.values()), group, active_only)

    def unusable(self, is_exact: bool) -> set[Page]:
        """Existing pages that do not match."""
        return self.lost | self.lossy if is_exact else self.lost

    def count_lossy(self, sequence: ReferenceSequence, num_tokens: int, state_tokens: int) -> int:
        """The matched tokens in or behind the first block of which the sequence holds a page that was packed with loss."""
        count = num_tokens
        if (sequence.snapshot_node, self.state.group) in self.lossy:
            count = min(count, state_tokens - 1)
        for ordinal in range(self.num_blocks(sequence)):
            for group in range(len(self.rules)):
                if (sequence.node(ordinal), group) in self.lossy and self.is_needed(sequence, group, ordinal):
                    count = min(count, ordinal * self.tokens_per_block)
        return num_tokens - count

    def expect_match(self, scope: Scope, text: Text, is_trimmed: bool = True, is_exact: bool = False) -> ReferenceMatch:
        """The valid results of `create_kv_cache` and `probe_reuse` now; of `rewind`, which does not trim."""
        lost = self.unusable(is_exact)
        present = self.statuses.keys() - lost
        if self._backoff > 0 and is_trimmed:
            in_tree = set(self.in_tree) if self.num_drop_plans > 0 else {node for node, _group in self.statuses}
            for sequence in self.sequences.values():
                in_tree.update(sequence.path)
                if sequence.shared_tail is not None:
                    in_tree.add(sequence.shared_tail)
            content = self.tree.count_content(scope, text, in_tree, self._with_partial_blocks, self._backoff)
            text = text[: max(0, content - self._backoff)]
        match = self._match(scope, text, present, lost)
        least = match.least
        lengths = match.lengths
        while not self.can_resume(match.best):
            text = text[: (match.best - 1) // self.tokens_per_block * self.tokens_per_block]
            match = self._match(scope, text, present, lost)
            least = min(least, match.least)
            lengths = lengths | match.lengths
        return ReferenceMatch(match.best, least, {length for length in lengths if self.can_resume(length)})

    def _match(self, scope: Scope, text: Text, present: Set[Page], lost: Set[Page]) -> ReferenceMatch:
        match = self.tree.match(scope, text, present, self._with_partial_blocks, lost)
        return self.state.narrow(match, scope, text, present)

    def can_resume(self, num_tokens: int) -> bool:
        """Whether level 0 has slots for so many matched tokens: pages that the next token reads, and what the first resume copies."""
        if num_tokens == 0 or len(self.num_slots) == 0:
            return True
        size = self.tokens_per_block
        free = list(self.num_slots)
        for group, rule in enumerate(self.rules):
            if rule.is_state:
                needed = self.state.num_slots + 1
            else:
                read = [ordinal for ordinal in range(-(-num_tokens // size)) if not rule.is_stale(ordinal, num_tokens, size)]
                needed = len(read) + (1 if num_tokens % size != 0 else 0)
            free[self.pool_group_of[group]] -= needed
        return min(free) >= 0


def state_dump_of(dump: StateDump, name: int) -> StateDump:
    """The dump of a sequence, or of a further beam."""
    if name < 0:
        owner, beam = place_of_beam(name)
        beams: list[StateDump] = state_dump_of(dump, owner)["beams"]
        return beams[beam - 1]
    found: list[StateDump] = [one for one in dump["sequences"] if one["id"] == name]
    if len(found) == 0:
        raise ModelDisagreement(f"sequence {name} is open, but describe() does not show it")
    return found[0]
