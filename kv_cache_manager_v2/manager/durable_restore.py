"""Restoring: the last process's durable pages become blocks and pages of this one, before the first sequence.

    1. nodes that say the same (a scope, or a parent and tokens) are one block; of a page that was recorded twice the newer one counts
    2. a block is kept if a match can reach it: its ancestors have the pages of all layer groups without a window
    3. the slots of its pages are taken, the pages are droppable, in the order in which they were used before an orderly end, else in that
       in which their writes, or later ones below them, were planned, and the blocks are in the tree

Nothing is read from the slots here: each page is verified when it is read. Blocks and pages come in the order of the generations alone, so
that managers with equal pages are in equal states; `keep` takes all of it out again, and brings a part of it back.

Nodes and pages are ordinals of the `IndexState`. Runs of blocks without branches go into the tree together.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.ids import PRIORITY_DEFAULT
from ..durable.durable_level import DurableLevel
from ..durable.index_snapshot import IndexSnapshot
from ..durable.index_state import IS_GONE, IS_ROOT, NO_ORDINAL, IndexState
from ..durable.record_format import DESCRIPTION_MASK, PASSED_SHIFT, BadRecordError, decode_mixed
from ..reuse.block import Block
from ..reuse.durable_nodes import DurableNodes
from ..reuse.reuse_scope import make_scope
from ..reuse.token_packing import TOKEN_BYTES, has_digest, pack_tokens
from ..sequence.shared_state import SharedState
from ..storage.decision_digest import SLOT
from ..storage.page_rows import PLACE, ROW_WORDS, pack_place
from ..events.removal_cause import CLEARED
from ..storage.page_rows import LINKS, NO_PAGE, NOT_QUEUED
from ..reuse.radix_tree import RadixTree


def uproot(tree: RadixTree, blocks: list[Block]) -> None:
    """``blocks``: all that are in the tree, in the order in which they were taken from the pool. No sequence has seen any; slots and places
    in queues are the caller's."""
    storage = tree.storage
    rows = storage.rows
    storage.last_cause = CLEARED
    for block in reversed(blocks):
        for page in range(block.first_page, block.first_page + rows.num_life_cycles):
            if rows.has_page(page):
                if storage.sink is not None:
                    storage.sink.on_page_removed(page, CLEARED)
                rows.words[page * ROW_WORDS + PLACE] = NO_PAGE
                rows.words[page * ROW_WORDS + LINKS] = NOT_QUEUED
        parent = block.parent
        assert parent is not None, "a block was uprooted that is not in the tree"
        tree.detach(block)
        if parent.first_page < 0:
            tree.prune(parent)
    assert len(tree.scopes()) == 0, "blocks are left in the tree after all were uprooted"


_MIXED_MARK: Final = b"m"
"""Before tokens of which some are digests: packed ones have a multiple of four bytes."""
_IS_FULL: Final = 1
_IS_REACHABLE: Final = 2
_IS_KEPT: Final = 4


@final
class DurableRestore:
    """``num_pages``, ``num_blocks``: what was restored. Made before the first sequence, and of no use after it."""

    __slots__ = (
        "num_pages", "num_blocks", "state", "pages", "has_weights", "_shared", "_durable", "_nodes", "_blocks", "_twins",
        "_flags", "_pages_of", "_roots", "_planted", "_slot_mark", "_unbounded",
    )  # fmt: skip

    def __init__(self, shared: SharedState, durable: DurableLevel) -> None:
        self.num_pages: i64 = 0
        self.num_blocks: i64 = 0
        self.state: Final[IndexState] = durable.folder.state
        self.pages = vec[i64]()
        """Ordinals of what is restored, in the order of the generations."""
        self.has_weights = False
        """Whether what the policies had learned is restored."""
        self._shared: Final = shared
        self._durable: Final = durable
        tree = shared.tree
        self._nodes: Final = DurableNodes(durable, shared.storage.rows, tree.block_bytes, tree.digests, self.state.next_node)
        self._blocks: list[Block | None] = []
        """By node, while it is in the tree."""
        self._twins = vec[i64]()
        """By node: the first one that says the same, or NO_ORDINAL."""
        self._flags = vec[i64]()
        self._pages_of = vec[i64]()
        """By node and life cycle: a page, or NO_ORDINAL."""
        self._roots: list[Block] = []
        self._planted: list[Block] = []
        """All blocks but roots, in the order in which they came into the tree."""
        cycles = enumerate(shared.life_cycles)
        self._unbounded: Final = vec[i64]([number for number, cycle in cycles if cycle.has_page_per_block and cycle.window_size is None])
        """Life cycles without a window: of each block of a prefix their page is needed."""
        self._slot_mark: Final[i64] = shared.storage.digest.mark()
        """The digest before the first page."""

    def run(self) -> IndexSnapshot:
        """Restore, and begin to record. What was restored, without checksums."""
        state = self.state
        self._join_nodes(state)
        self._join_pages(state)
        self._choose(state)
        self._shared.tree.nodes = self._nodes
        self._plant(True)
        parents = self._to_twins(state.parents)
        page_nodes = self._to_twins(state.page_nodes)
        # In the order of their numbers, where these were: the next start, and compaction, then find them without a dictionary.
        nodes = vec[i64]()
        for node in range(state.num_nodes):
            if self._flags[node] & _IS_KEPT != 0:
                nodes = append(nodes, node)
        self._durable.start(IndexSnapshot(state, nodes, parents, self.pages, page_nodes, state.next_generation), self._nodes)
        self._durable.folder.state = IndexState()
        return IndexSnapshot(state, nodes, parents, self.pages, page_nodes, state.next_generation, False)

    def _to_twins(self, nodes: vec[i64]) -> vec[i64]:
        twins = vec[i64](capacity=len(nodes))
        for node in nodes:
            twins = append(twins, self._twins[node] if node >= 0 else node)
        return twins

    def keep(self, kept: set[int], keeps_weights: bool) -> None:
        """Keep, of the restored pages, only those with these positions in `pages`. Those that cannot be reached then are dropped, too.

        Afterwards the manager is in the state in which it would be had the last process left nothing else.
        """
        state = self.state
        pages_of = self._pages_of
        self._uproot()
        for position in range(len(self.pages)):
            if int(position) not in kept:
                pages_of[self._place_of(state, self.pages[position])] = NO_ORDINAL
        old_pages = self.pages
        self._choose(state)
        self._plant(keeps_weights)
        remaining = set([int(page) for page in self.pages])
        for page in old_pages:
            if int(page) not in remaining:
                self._durable.disown(state.pool_group_of(page), state.slots[page])
        self._durable.restart_generations(max([int(state.generations[page]) for page in self.pages], default=0) + 1)
        if not self.has_weights:
            self._durable.record_weights(b"")

    @property
    def has_unknown_weights(self) -> bool:
        """Whether the last process has left what its policies had learned, and these cannot read it."""
        return len(self.state.weights) > 0 and not self.has_weights and self._shared.storage.learns

    # -- which blocks -------------------------------------------------------------------------------------------------

    def _join_nodes(self, state: IndexState) -> None:
        num_nodes = state.num_nodes
        twins = vec[i64]([NO_ORDINAL] * num_nodes)
        flags = vec[i64]([0] * num_nodes)
        first_children = vec[i64]([NO_ORDINAL] * num_nodes)
        families: dict[int, dict[bytes, int]] = {}
        roots: dict[tuple[int | None, int | str | None], int] = {}
        parents = state.parents
        for node in range(num_nodes):
            parent = parents[node]
            if parent == IS_ROOT:
                root = roots.setdefault(state.scopes[int(node)], int(node))
                twins[node] = root
                flags[node] = _IS_FULL | _IS_REACHABLE
            elif parent != IS_GONE and twins[parent] != NO_ORDINAL:
                above = twins[parent]
                num_tokens = self._count_tokens(state, node)
                if num_tokens > 0:
                    flags[node] = _IS_FULL if num_tokens == self._shared.tokens_per_block else 0
                    first = first_children[above]
                    if first == NO_ORDINAL:
                        first_children[above] = node
                        twins[node] = node
                    else:
                        family = families.get(int(above))
                        if family is None:
                            family = {_content_of(state, first): int(first)}
                            families[int(above)] = family
                        twins[node] = family.setdefault(_content_of(state, node), int(node))
        self._twins = twins
        self._flags = flags

    def _count_tokens(self, state: IndexState, node: i64) -> i64:
        """0 for what no block can be: the index has a right checksum and was made by something else."""
        tokens = state.tokens_of(node)
        count: i64 = 0
        if state.is_mixed(node):
            try:
                count = len(decode_mixed(tokens))
            except BadRecordError:
                return 0
        elif len(tokens) % TOKEN_BYTES == 0 and not has_digest(tokens):
            count = len(tokens) // TOKEN_BYTES
        return count if count <= self._shared.tokens_per_block else 0

    def _join_pages(self, state: IndexState) -> None:
        storage = self._shared.storage
        index = self._durable.index * storage.num_pool_groups
        num_life_cycles = self._shared.num_life_cycles
        pages_of = vec[i64]([NO_ORDINAL] * (state.num_nodes * num_life_cycles))
        for page in state.list_pages():
            node = self._twins[state.page_nodes[page]]
            life_cycle = state.life_cycle_of(page)
            if node == NO_ORDINAL or state.parents[node] < 0 or life_cycle >= num_life_cycles:
                continue
            pool_group = storage.pool_group_of[life_cycle]
            if (
                pool_group != state.pool_group_of(page)
                or state.slots[page] >= storage.allocators[index + pool_group].num_slots
                or state.count_checksums(page) != self._durable.groups[pool_group].num_chunks
            ):
                continue
            place = node * num_life_cycles + life_cycle
            older = pages_of[place]
            if older == NO_ORDINAL or state.generations[older] < state.generations[page]:
                pages_of[place] = page
        self._pages_of = pages_of

    def _choose(self, state: IndexState) -> None:
        num_life_cycles = self._shared.num_life_cycles
        unbounded = self._unbounded
        flags = self._flags
        twins = self._twins
        pages_of = self._pages_of
        num_nodes = state.num_nodes
        for node in range(num_nodes):
            if twins[node] == node and state.parents[node] >= 0:
                parent = twins[state.parents[node]]
                above = flags[parent]
                reaches = above & _IS_REACHABLE != 0 and above & _IS_FULL != 0
                if reaches and state.parents[parent] >= 0:
                    for life_cycle in unbounded:
                        if pages_of[parent * num_life_cycles + life_cycle] == NO_ORDINAL:
                            reaches = False
                flags[node] = (flags[node] & _IS_FULL) | (_IS_REACHABLE if reaches else 0)
        # All ancestors of what can be reached can be reached.
        for node in range(num_nodes - 1, -1, -1):
            if twins[node] == node and state.parents[node] >= 0 and flags[node] & _IS_REACHABLE != 0:
                is_kept = flags[node] & _IS_KEPT != 0
                place = node * num_life_cycles
                while not is_kept and place < (node + 1) * num_life_cycles:
                    is_kept = pages_of[place] != NO_ORDINAL
                    place += 1
                if is_kept:
                    flags[node] |= _IS_KEPT
                    parent = twins[state.parents[node]]
                    flags[parent] |= _IS_KEPT

    # -- into the tree ------------------------------------------------------------------------------------------------

    def _plant(self, has_weights: bool) -> None:
        storage = self._shared.storage
        state = self.state
        self.has_weights = storage.load_weights(state.weights if has_weights else b"")
        self._order_pages(state)
        self._take_slots(state)
        self._plant_blocks(state)
        self._queue_pages(state)
        # To come back from the disk teaches the policies nothing.
        storage.load_weights(state.weights if has_weights else b"")

    def _order_pages(self, state: IndexState) -> None:
        pages = vec[i64]()
        for page in state.list_pages():
            node = self._twins[state.page_nodes[page]]
            if (
                node != NO_ORDINAL
                and self._flags[node] & _IS_KEPT != 0
                and state.life_cycle_of(page) < self._shared.num_life_cycles
                and self._pages_of[self._place_of(state, page)] == page
            ):
                pages = append(pages, page)
        by_generation = state.sort_pages(pages, state.generations)
        # Of pages used at once the end of their path comes first, which was written last.
        for position in range(len(pages)):
            pages[position] = by_generation[len(pages) - 1 - position]
        self.pages = state.sort_pages(pages, self._list_uses(state, pages))
        self.num_pages = len(pages)

    def _list_uses(self, state: IndexState, pages: vec[i64]) -> vec[i64]:
        """By page, when it was used last, as far as is known: a page of layers without a window was read as blocks below it were written.
        Pages that were described were not written since an orderly end, which has recorded their order and that of all above."""
        num_life_cycles = self._shared.num_life_cycles
        latest = vec[i64]([0] * (state.num_nodes * num_life_cycles))
        for page in pages:
            if state.description_of(page) == 0:
                latest[self._place_of(state, page)] = state.generations[page]
        for node in range(state.num_nodes - 1, -1, -1):
            if self._twins[node] == node and state.parents[node] >= 0:
                above = self._twins[state.parents[node]]
                for life_cycle in self._unbounded:
                    if latest[node * num_life_cycles + life_cycle] > latest[above * num_life_cycles + life_cycle]:
                        latest[above * num_life_cycles + life_cycle] = latest[node * num_life_cycles + life_cycle]
        uses = state.generations[:]
        for page in pages:
            if latest[self._place_of(state, page)] > uses[page]:
                uses[page] = latest[self._place_of(state, page)]
        return uses

    def _place_of(self, state: IndexState, page: i64) -> i64:
        """Where the page is in `_pages_of`."""
        return self._twins[state.page_nodes[page]] * self._shared.num_life_cycles + state.life_cycle_of(page)

    def _take_slots(self, state: IndexState) -> None:
        storage = self._shared.storage
        first = self._durable.index * storage.num_pool_groups
        for pool_group in range(storage.num_pool_groups):
            allocator = storage.allocators[first + pool_group]
            is_taken = vec[bool]([False] * allocator.num_slots)
            for page in self.pages:
                if state.pool_group_of(page) == pool_group:
                    is_taken[state.slots[page]] = True
            allocator.take_first_slots([slot for slot in range(int(allocator.num_slots)) if is_taken[slot]])

    def _plant_blocks(self, state: IndexState) -> None:
        """In the order of the first page that needs each, ancestors first."""
        nodes = self._list_nodes(state)
        blocks: list[Block | None] = [None] * int(state.num_nodes)
        self._blocks = blocks
        count: i64 = sum([state.parents[node] >= 0 for node in nodes])
        taken: list[Block] = []
        tree = self._shared.tree
        tree.pool.take_many(count, taken)
        self._planted = taken
        self.num_blocks = count
        num_children = vec[i64]([0] * state.num_nodes)
        for node in nodes:
            parent = state.parents[node]
            if parent >= 0:
                num_children[self._twins[parent]] += 1
        begin: i64 = 0
        next_block: i64 = 0
        while begin < len(nodes):
            node = nodes[begin]
            if state.parents[node] < 0:
                lora_id, salt = state.scopes[int(node)]
                root = tree.pin_root(make_scope(lora_id, salt))
                self._roots.append(root)
                blocks[node] = root
                self._nodes.adopt(root, state.numbers[node])
                begin += 1
                continue
            end = self._end_of_run(state, nodes, begin, num_children)
            self._plant_run(state, nodes, begin, end, next_block)
            next_block += end - begin
            begin = end
        for root in self._roots:
            tree.unpin(root)
        self._roots = []

    def _list_nodes(self, state: IndexState) -> vec[i64]:
        """Those that are kept, parents first."""
        nodes = vec[i64]()
        is_listed = vec[bool]([False] * state.num_nodes)
        path = vec[i64]()
        for page in self.pages:
            node = self._twins[state.page_nodes[page]]
            path = path[:0]
            while not is_listed[node]:
                is_listed[node] = True
                path = append(path, node)
                parent = state.parents[node]
                if parent < 0:
                    break
                node = self._twins[parent]
            for position in range(len(path) - 1, -1, -1):
                nodes = append(nodes, path[position])
        return nodes

    def _end_of_run(self, state: IndexState, nodes: vec[i64], begin: i64, num_children: vec[i64]) -> i64:
        """End of a run of blocks below each other: all but the last one have no other child, all but the first one are full, and none has
        a digest; behind the first one their tokens lie behind each other."""
        end = begin + 1
        count: i64 = len(nodes)
        above = nodes[begin]
        while end < count:
            node = nodes[end]
            parent = state.parents[node]
            if parent < 0 or self._twins[parent] != above or num_children[above] != 1:
                break
            if self._flags[node] & _IS_FULL == 0 or state.is_mixed(node) or end > begin + 1 and not state.follows(node, above):
                break
            above = node
            end += 1
        return end

    def _plant_run(self, state: IndexState, nodes: vec[i64], begin: i64, end: i64, next_block: i64) -> None:
        tree = self._shared.tree
        first = nodes[begin]
        key = state.tokens_of(first)
        if state.is_mixed(first):
            key = pack_tokens(decode_mixed(key), tree.digests, True)
            tree.has_digests = True
        above = self._blocks[self._twins[state.parents[first]]]
        assert above is not None, "a restored block comes before its parent"
        position = begin
        block = next_block
        while position < end:
            self._place_pages(state, nodes[position], self._planted[block])
            position += 1
            block += 1
        tree.attach(above, self._planted[next_block], key)
        if end > begin + 1:
            second = nodes[begin + 1]
            tree.attach_run(
                self._planted[next_block], self._planted, next_block + 1, block, state.tokens_beside(second), state.begin_of(second)
            )

    def _place_pages(self, state: IndexState, node: i64, block: Block) -> None:
        """Before it is in the tree: what listens hears where its pages are."""
        self._blocks[node] = block
        words = self._shared.storage.rows.words
        num_life_cycles = self._shared.num_life_cycles
        for life_cycle in range(num_life_cycles):
            page = self._pages_of[node * num_life_cycles + life_cycle]
            if page != NO_ORDINAL:
                place = pack_place(state.slots[page], self._durable.index, PRIORITY_DEFAULT)
                words[(block.first_page + life_cycle) * ROW_WORDS + PLACE] = place
        self._nodes.adopt(block, state.numbers[node])

    def _queue_pages(self, state: IndexState) -> None:
        """Make the pages droppable, oldest first."""
        storage = self._shared.storage
        durable = self._durable
        index = durable.index * storage.num_pool_groups
        for page in self.pages:
            block = self._blocks[self._twins[state.page_nodes[page]]]
            assert block is not None, "a kept block is not in the tree"
            row: i64 = block.first_page + state.life_cycle_of(page)
            said = state.description_of(page)
            storage.queues[index + state.pool_group_of(page)].push_described(row, said & DESCRIPTION_MASK, said >> PASSED_SHIFT)
            storage.digest.record(SLOT, state.slots[page])
            durable.adopt(state, page)

    def _uproot(self) -> None:
        """All is as it was before `run`, but for what the index says."""
        storage = self._shared.storage
        state = self.state
        uproot(self._shared.tree, self._planted)
        for page in self.pages:
            self._durable.groups[state.pool_group_of(page)].num_restored -= 1
        for pool_group in range(storage.num_pool_groups):
            storage.allocators[self._durable.index * storage.num_pool_groups + pool_group].forget_all()
        storage.renew_queues()
        storage.digest.roll_back(self._slot_mark)


def _content_of(state: IndexState, node: i64) -> bytes:
    tokens = state.tokens_of(node)
    return _MIXED_MARK + tokens if state.is_mixed(node) else tokens
