"""What the last process has left on the durable level becomes blocks and pages of this one, before the first sequence.

    1. nodes that say the same (a scope, or a parent and tokens) are one block; of a page that was recorded twice the newer one counts
    2. a block is kept if a match can reach it: its ancestors have the pages of all layer groups without a window
    3. the slots of its pages are taken, the pages are droppable, in the order in which they were written, and the blocks are in the tree

Nothing is read from the slots here: each page is verified when it is read.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..base.ids import PRIORITY_DEFAULT
from ..durable.durable_level import DurableLevel
from ..durable.record_format import MIXED, BadRecordError, IndexState, StoredNode, StoredPage, decode_mixed
from ..reuse.block import Block
from ..reuse.durable_nodes import DurableNodes
from ..reuse.reuse_scope import make_scope
from ..reuse.token_packing import TOKEN_BYTES, has_digest, pack_tokens
from ..sequence.shared_state import SharedState
from ..storage.decision_digest import SLOT
from ..storage.page_rows import PLACE, ROW_WORDS, pack_place


@final
@mypyc_attr(native_class=True)
class _Restored:
    """A block to be."""

    __slots__ = ("number", "parent", "stored", "tokens", "pages", "is_reachable", "is_kept", "is_full", "block")

    number: Final[int]
    parent: Final["_Restored | None"]
    stored: Final[StoredNode]
    tokens: Final[list[int | bytes] | None]
    """Where some are digests."""
    pages: Final[dict[int, tuple[int, StoredPage]]]
    """By life cycle: slot, and record."""
    is_reachable: bool
    is_kept: bool
    is_full: bool
    block: Block | None

    def __init__(self, number: int, parent: "_Restored | None", stored: StoredNode, tokens: list[int | bytes] | None) -> None:
        self.number = number
        self.parent = parent
        self.stored = stored
        self.tokens = tokens
        self.pages = {}
        self.is_reachable = False
        self.is_kept = False
        self.is_full = False
        self.block = None


@final
@mypyc_attr(native_class=True)
class DurableRestore:
    """``num_pages``, ``num_blocks``: what was restored."""

    __slots__ = ("num_pages", "num_blocks", "_shared", "_durable", "_nodes", "_block_tokens")

    num_pages: int
    num_blocks: int
    _shared: Final[SharedState]
    _durable: Final[DurableLevel]
    _nodes: Final[dict[int, _Restored]]
    """By number; several numbers may name one block."""
    _block_tokens: Final[int]

    def __init__(self, shared: SharedState, durable: DurableLevel) -> None:
        self.num_pages = 0
        self.num_blocks = 0
        self._shared = shared
        self._durable = durable
        self._nodes = {}
        self._block_tokens = int(shared.tokens_per_block)

    def run(self) -> None:
        """Restore, and begin to record."""
        shared = self._shared
        state = self._durable.folder.state
        blocks = self._join_nodes(state)
        self._join_pages(state)
        self._choose(blocks)
        nodes = DurableNodes(self._durable, shared.storage.rows, shared.tree.block_bytes, shared.tree.digests, state.next_node)
        shared.tree.nodes = nodes
        kept = [block for block in blocks if block.is_kept]
        self._take_slots(kept)
        self._plant(kept, nodes)
        snapshot = self._queue_pages(kept, state)
        state.nodes.clear()
        state.pages.clear()
        self._durable.start(snapshot)

    # -- which blocks -------------------------------------------------------------------------------------------------

    def _join_nodes(self, state: IndexState) -> list[_Restored]:
        blocks: list[_Restored] = []
        by_content: dict[tuple[int, int, bytes], _Restored] = {}
        roots: dict[tuple[int | None, int | str | None], _Restored] = {}
        for number, stored in state.nodes.items():
            if stored.parent == 0:
                scope = (stored.lora_id, stored.salt)
                root = roots.get(scope)
                if root is None:
                    root = _Restored(number, None, stored, None)
                    root.is_reachable = True
                    root.is_full = True
                    roots[scope] = root
                    blocks.append(root)
                self._nodes[number] = root
                continue
            parent = self._nodes.get(stored.parent)
            if parent is None:
                continue
            content = (parent.number, stored.form, stored.tokens)
            known = by_content.get(content)
            if known is None:
                made = self._make_block(number, parent, stored)
                if made is None:
                    continue
                known = made
                by_content[content] = made
                blocks.append(made)
            self._nodes[number] = known
        return blocks

    def _make_block(self, number: int, parent: _Restored, stored: StoredNode) -> _Restored | None:
        """None for what no block can be: the index has a right checksum and was made by something else."""
        tokens: list[int | bytes] | None = None
        if stored.form == MIXED:
            try:
                tokens = decode_mixed(stored.tokens)
            except BadRecordError:
                return None
            count = len(tokens)
        else:
            if len(stored.tokens) % TOKEN_BYTES != 0 or has_digest(stored.tokens):
                return None
            count = len(stored.tokens) // TOKEN_BYTES
        if not 0 < count <= self._block_tokens:
            return None
        block = _Restored(number, parent, stored, tokens)
        block.is_full = count == self._block_tokens
        return block

    def _join_pages(self, state: IndexState) -> None:
        storage = self._shared.storage
        index = self._durable.index * storage.num_pool_groups
        for (pool_group, slot), page in state.pages.items():
            block = self._nodes.get(page.node)
            if (
                block is None
                or block.parent is None
                or page.life_cycle >= self._shared.num_life_cycles
                or storage.pool_group_of[page.life_cycle] != pool_group
                or slot >= storage.allocators[index + pool_group].num_slots
                or len(page.checksums) != self._durable.groups[pool_group].num_chunks
            ):
                continue
            older = block.pages.get(page.life_cycle)
            if older is None or older[1].generation < page.generation:
                block.pages[page.life_cycle] = (slot, page)

    def _choose(self, blocks: list[_Restored]) -> None:
        unbounded: list[int] = []
        for number, cycle in enumerate(self._shared.life_cycles):
            if cycle.has_page_per_block and cycle.window_size is None:
                unbounded.append(number)
        for block in blocks:
            parent = block.parent
            if parent is not None:
                has_all = parent.parent is None or all([number in parent.pages for number in unbounded])
                block.is_reachable = parent.is_reachable and parent.is_full and has_all
        for block in reversed(blocks):
            if block.is_reachable and len(block.pages) > 0:
                block.is_kept = True
            if block.is_kept and block.parent is not None:
                block.parent.is_kept = True

    # -- into the tree ------------------------------------------------------------------------------------------------

    def _take_slots(self, kept: list[_Restored]) -> None:
        storage = self._shared.storage
        slots: list[list[int]] = [[] for _group in range(int(storage.num_pool_groups))]
        for block in kept:
            for life_cycle, (slot, _page) in block.pages.items():
                slots[int(storage.pool_group_of[life_cycle])].append(slot)
        for pool_group, taken in enumerate(slots):
            taken.sort()
            storage.allocators[self._durable.index * storage.num_pool_groups + pool_group].take_first_slots(taken)

    def _plant(self, kept: list[_Restored], nodes: DurableNodes) -> None:
        tree = self._shared.tree
        storage = self._shared.storage
        taken: list[Block] = []
        tree.pool.take_many(len([block for block in kept if block.parent is not None]), taken)
        self.num_blocks = len(taken)
        roots: list[Block] = []
        position = 0
        for restored in kept:
            parent = restored.parent
            if parent is None:
                root = tree.pin_root(make_scope(restored.stored.lora_id, restored.stored.salt))
                roots.append(root)
                restored.block = root
                nodes.adopt(root, restored.number)
                continue
            block = taken[position]
            position += 1
            restored.block = block
            words = storage.rows.words
            for life_cycle, (slot, _page) in restored.pages.items():
                words[(block.first_page + life_cycle) * ROW_WORDS + PLACE] = pack_place(slot, self._durable.index, PRIORITY_DEFAULT)
            key = restored.stored.tokens
            if restored.tokens is not None:
                key = pack_tokens(restored.tokens, tree.digests, True)
                tree.has_digests = True
            above = parent.block
            assert above is not None, "a restored block comes before its parent"
            tree.attach(above, block, key)
            nodes.adopt(block, restored.number)
        for root in roots:
            tree.unpin(root)

    def _queue_pages(self, kept: list[_Restored], state: IndexState) -> IndexState:
        """Make the pages droppable, oldest first; returns the state without what was not kept."""
        storage = self._shared.storage
        snapshot = IndexState()
        snapshot.next_node = state.next_node
        snapshot.next_generation = state.next_generation
        for restored in kept:
            parent = restored.parent
            stored = restored.stored
            number = 0 if parent is None else parent.number
            snapshot.nodes[restored.number] = StoredNode(number, stored.form, stored.tokens, stored.lora_id, stored.salt)
        for (pool_group, slot), page in state.pages.items():
            found = self._nodes.get(page.node)
            if found is None or not found.is_kept or page.life_cycle not in found.pages or found.pages[page.life_cycle][1] is not page:
                continue
            block = found.block
            assert block is not None, "a kept block is not in the tree"
            row: i64 = block.first_page + page.life_cycle
            storage.queues[self._durable.index * storage.num_pool_groups + pool_group].push(row)
            storage.digest.record(SLOT, slot)
            self._durable.adopt(pool_group, slot, page.checksums)
            snapshot.pages[(pool_group, slot)] = StoredPage(found.number, page.life_cycle, page.generation, page.checksums)
            self.num_pages += 1
        return snapshot
