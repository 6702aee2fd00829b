"""The radix tree: published blocks, found by content under the root of their reuse scope.

Owns the published blocks and, through them, their droppable pages. The key of a child is its packed tokens, so two
different blocks are never mistaken for each other. Only a full block has children; no two siblings have equal keys.

A block leaves the tree when it has no page, no child and no pin. Pages go by eviction (`on_page_dropped`,
which takes along what has become unreachable), `retire`, a fuller block that makes a partial one superfluous, planned drops, newer
snapshots, and reads from a disk that failed. `withdraw` makes a block private again, with its pages.

`retire` ends a scope's *epoch*: no look-up begins at its root any more. What is left below is its holders' alone.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..events.published_run import PublishedRun
from ..events.removal_cause import CAPACITY, SUPERSEDED, UNREACHABLE
from ..layout.registry import LifeCycleRegistry
from ..stats.page_counters import PageCounters
from ..storage.decision_digest import VICTIM
from ..storage.page_owner import ANY_LEVEL, PageOwner
from ..storage.page_queues import defer
from ..storage.page_removal import count_dropped, disown, drop
from ..storage.page_rows import NO_PAGE
from ..storage.page_runs import drop_run
from ..storage.page_storage import PageStorage
from .block import Block, Children
from .block_announcements import announce_block, list_levels_and_priorities
from .block_history import BlockHistory
from .block_pool import BlockPool, count_possible_blocks
from .block_tokens import count_key_bytes, key_of, share_tokens, shorten_tokens
from .content_key import NO_KEY, block_key, make_run_keys, page_key, text_key
from .digest_table import DigestTable
from .dropped_ends import DroppedEnds
from .durable_nodes import NOT_KEPT, DurableNodes
from .reuse_scope import ReuseScope
from .token_packing import TOKEN_BYTES, has_digest, unpack_tokens
from .victim_path import VictimPath
from .window_runs import WindowRuns


@final
class RadixTree(PageOwner):
    __slots__ = (
        "storage", "pool", "digests", "block_bytes", "history", "has_digests", "_roots", "_latest_scope", "_latest_root", "_scopes",
        "_retired", "_epoch", "_is_unbounded", "_has_page_per_block", "_runs", "_path", "_next_root", "_makes_keys", "nodes",
        "dropped_ends",
    )  # fmt: skip

    def __init__(self, storage: PageStorage, life_cycles: LifeCycleRegistry, tokens_per_block: int) -> None:
        self.storage: Final = storage
        self.pool: Final = BlockPool(storage)
        self.digests: Final = DigestTable()
        self.block_bytes: Final[i64] = tokens_per_block * TOKEN_BYTES
        """Bytes of the key of a full block."""
        self.history: BlockHistory | None = None
        """The outcome of blocks that are gone; None if misses are not explained."""
        self.nodes: DurableNodes | None = None
        """The numbers of blocks in the index of the durable level; None without one."""
        self.has_digests = False
        """Whether a digest was ever published: without one, no key needs to be searched for digests."""
        self._roots: Final[dict[ReuseScope, Block]] = {}
        self._latest_scope: ReuseScope | None = None
        """The one that was looked for last, unless roots have come or gone since."""
        self._latest_root: Block | None = None
        self._scopes: Final[dict[int, ReuseScope]] = {}
        """By the first page id of the root, retired ones included."""
        self._retired: Final[dict[int, tuple[Block, int]]] = {}
        """Retired roots, and all blocks below them, by their first page id; with the epoch that ended with them."""
        self._epoch = 0
        # A life cycle without a window needs every block of a prefix: what hangs below a missing one is unreachable.
        self._is_unbounded: Final = vec[bool]([cycle.has_page_per_block and cycle.window_size is None for cycle in life_cycles])
        self._has_page_per_block: Final[list[bool]] = [cycle.has_page_per_block for cycle in life_cycles]
        self._runs: Final = WindowRuns(storage.rows, life_cycles, tokens_per_block)
        self._path: Final = VictimPath(storage)
        self._next_root: i64 = -1
        self._makes_keys = False
        """Whether a policy has asked for a content key, and no history knows one: then it will ask for those of all blocks to come."""
        self.dropped_ends: Final = DroppedEnds(self.block_bytes)

    # -- roots --------------------------------------------------------------------------------------------------------

    def find_root(self, scope: ReuseScope) -> Block | None:
        if scope is not self._latest_scope:
            # Most requests have the scope of the one before. Forgotten first: a signal may come between any two lines.
            self._latest_scope = None
            self._latest_root = self._roots.get(scope)
            self._latest_scope = scope
        return self._latest_root

    def pin_root(self, scope: ReuseScope) -> Block:
        """The scope's root, made if it is not there, with one more pin."""
        root = self.find_root(scope)
        if root is None:
            root = Block(self._next_root)
            self._next_root -= 1
            root.content_key = text_key(repr((scope.lora_id, scope.salt)).encode(errors="surrogatepass"))
            self._roots[scope] = root
            self._latest_root = root
            self._scopes[int(root.first_page)] = scope
            sink = self.storage.sink
            if sink is not None:
                sink.on_root_made(root.first_page, scope.lora_id, scope.salt)
            if self.history is not None:
                self.history.record_root(root.first_page, scope)
        root.num_pins += 1
        return root

    def _remove_root(self, scope: ReuseScope) -> None:
        self._latest_scope = self._latest_root = None
        del self._roots[scope]

    def reserve(self) -> None:
        """Take addresses for a block in every slot that there is now; what has none yet is copied, once."""
        self.pool.reserve(count_possible_blocks(self.storage))

    def dissolve(self) -> None:
        """The manager goes, perhaps without an orderly end: nothing is left that the garbage collector would have to find."""
        if len(self._scopes) > 0:
            for root, _scope, _epoch in self.roots():
                root.only_child = None
                root.children = None
            self.pool.dissolve()

    def scopes(self) -> list[ReuseScope]:
        return list(self._roots)

    def roots(self) -> list[tuple[Block, ReuseScope, int | None]]:
        """All roots with their scope; behind those of the scopes the retired ones, with the epoch that ended with each."""
        found: list[tuple[Block, ReuseScope, int | None]] = [(root, scope, None) for scope, root in self._roots.items()]
        retired = [(block, self._scopes[int(block.first_page)], epoch) for block, epoch in self._retired.values() if block.first_page < 0]
        return [*found, *retired]

    def is_retired(self, block: Block) -> bool:
        """Whether it is a retired root, or below one."""
        return len(self._retired) > 0 and int(block.first_page) in self._retired

    def find_path(self, node: Block | None, packed: bytes, position: i64) -> list[Block]:
        """The blocks below ``node`` that hold the packed tokens from ``position`` on, by content alone: whole ones, and one that is
        just the last tokens."""
        blocks: list[Block] = []
        num_bytes: i64 = len(packed)
        while node is not None and position < num_bytes:
            node = self.find_child(node, packed[position : position + self.block_bytes])
            if node is not None:
                blocks.append(node)
            position += self.block_bytes
        return blocks

    # -- pins ---------------------------------------------------------------------------------------------------------

    def unpin(self, block: Block) -> None:
        assert block.num_pins > 0, "a block was unpinned twice"
        block.num_pins -= 1
        if block.num_pins == 0:
            self.prune(block)

    def move_pin(self, block: Block, child: Block) -> None:
        """The path of an open sequence grows from ``block`` to its child."""
        child.num_pins += 1
        assert block.num_pins > 0, "a path grew from a block without a pin"
        block.num_pins -= 1

    # -- children -----------------------------------------------------------------------------------------------------

    def find_child(self, parent: Block, key: bytes) -> Block | None:
        only_child = parent.only_child
        if only_child is not None:
            return only_child if key_of(only_child, self.block_bytes) == key else None
        children = parent.children
        return children.find(key) if children is not None else None

    def key_of(self, block: Block) -> bytes:
        """The packed tokens of a published block."""
        return key_of(block, self.block_bytes)

    def is_full(self, block: Block) -> bool:
        """Whether a published block has the tokens of a whole block."""
        return count_key_bytes(block, self.block_bytes) == self.block_bytes

    def children_of(self, block: Block) -> list[Block]:
        if block.only_child is not None:
            return [block.only_child]
        return block.children.list_all() if block.children is not None else []

    def attach(self, parent: Block, block: Block, key: bytes) -> None:
        """Publish a private block under ``parent``, which has no child with that key."""
        assert block.parent is None, "a block was published twice"
        block.tokens = key
        block.tokens_begin = 0
        block.parent = parent
        block.content_key = NO_KEY
        if self.history is not None:
            self.history.record_published(parent.first_page, block.first_page, key)
        sink = self.storage.sink
        if sink is not None and (len(key) == self.block_bytes or sink.wants_partial_blocks):
            mixed = unpack_tokens(key, self.digests) if self.has_digests and has_digest(key) else None
            announce_block(self.storage.rows, sink, parent.first_page, block.first_page, key, mixed)
        children = parent.children
        if children is None:
            only_child = parent.only_child
            if only_child is None:
                parent.only_child = block
                return
            children = Children()
            parent.children = children
            parent.only_child = None
            self._add_child(children, only_child, key_of(only_child, self.block_bytes))
        self._add_child(children, block, key)

    def attach_run(self, parent: Block, blocks: list[Block], begin: i64, end: i64, packed: bytes, position: i64) -> vec[i64]:
        """`attach` private blocks, each below the one before, the first one below ``parent``, which has no child.

        Their tokens are those from ``position`` on, whole blocks all. Returns their first page ids.
        """
        assert parent.only_child is None and parent.children is None, "a run was published beside other blocks"
        block_bytes = self.block_bytes
        fresh = blocks if begin == 0 and end == len(blocks) else blocks[int(begin) : int(end)]
        above = parent
        for block in fresh:
            assert block.parent is None, "a block was published twice"
            block.parent = above
            block.content_key = NO_KEY
            above.only_child = block
            above = block
        share_tokens(fresh, packed, position, block_bytes)
        if self._makes_keys:
            make_run_keys(parent, fresh, packed, position, block_bytes)
        first_pages = vec[i64]([block.first_page for block in fresh])
        if self.history is not None:
            text = memoryview(packed)[position : position + len(fresh) * block_bytes]
            self.history.record_published_run(parent.first_page, first_pages, text)
        if self.storage.sink is not None:
            levels_and_priorities = list_levels_and_priorities(self.storage.rows, first_pages)
            run = PublishedRun(parent.first_page, first_pages, levels_and_priorities, packed, position, block_bytes)
            self.storage.sink.on_run_published(run)
        return first_pages

    def _add_child(self, children: Children, child: Block, key: bytes) -> None:
        children.add(key, child)
        if len(key) < self.block_bytes:
            children.num_partial += 1

    def withdraw(self, block: Block) -> None:
        """A leaf that only one sequence pins and holds becomes that sequence's private block again."""
        assert block.num_pins == 1 and block.only_child is None, "a block that others need was withdrawn"
        parent = block.parent
        block.num_pins = 0
        sink = self.storage.sink
        if sink is not None:
            rows = self.storage.rows
            for page in range(block.first_page, block.first_page + rows.num_life_cycles):
                if rows.has_page(page):
                    sink.on_page_removed(page, CAPACITY)
        self.storage.last_cause = CAPACITY
        self._unlink(block)
        if parent is not None:
            self.prune(parent)

    def detach(self, block: Block) -> None:
        """Out of the tree: a block without pages, children and pins."""
        self._unlink(block)
        self.pool.release(block)

    def _unlink(self, block: Block) -> None:
        parent = block.parent
        assert parent is not None, "a block was detached that is not in the tree"
        if self.storage.sink is not None:
            self.storage.sink.on_block_removed(block.first_page)
        if self._retired.pop(int(block.first_page), None) is None and self.history is not None:
            self.history.record_removal(block.first_page, self.storage.last_cause)
        text = block.tokens
        begin = block.tokens_begin
        self._cut_off(block, parent)
        self._shorten_tokens(text, begin, parent)

    def _shorten_tokens(self, text: bytes, begin: i64, parent: Block) -> None:
        """The block at ``begin`` of those tokens is gone from below ``parent``."""
        shorten_tokens(text, begin, parent, self.block_bytes)
        if parent.tokens is not text and parent.only_child is None and parent.children is None:
            # One of the two has tokens of its own, and no block is left below that shares those of the other.
            shorten_tokens(parent.tokens, parent.tokens_begin + self.block_bytes, parent, self.block_bytes)

    def _cut_off(self, block: Block, parent: Block) -> None:
        """The caller shortens the tokens of the blocks that are left."""
        if self.nodes is not None:
            self.nodes.forget(block)
        if self.has_digests:
            self.digests.release(key_of(block, self.block_bytes))
        children = parent.children
        if children is None:
            parent.only_child = None
        else:
            key = key_of(block, self.block_bytes)
            children.remove(key)
            if len(key) < self.block_bytes:
                children.num_partial -= 1
            if children.count == 0:
                parent.children = None
        block.parent = None
        block.tokens = b""
        block.tokens_begin = 0

    def prune(self, block: Block) -> None:
        """Take the block, and then its ancestors, out of the tree as long as nothing needs them."""
        while block.num_pins == 0 and block.only_child is None and block.children is None:
            if block.first_page < 0:
                scope = self._scopes.pop(int(block.first_page))
                if self._retired.pop(int(block.first_page), None) is None:
                    self._remove_root(scope)
                    self._announce_root_gone(block)
                if self.nodes is not None:
                    self.nodes.forget(block)
                return
            parent = block.parent
            if parent is None or self.pool.has_any_page(block):
                return
            self.detach(block)
            block = parent

    def _announce_root_gone(self, root: Block) -> None:
        if self.storage.sink is not None:
            self.storage.sink.on_root_removed(root.first_page)
        if self.history is not None:
            self.history.forget_root(root.first_page)

    # -- losing pages -------------------------------------------------------------------------------------------------

    def is_published(self, page: i64) -> bool:
        block = self.pool.block_of_page(page)
        return block.parent is not None and not self.is_retired(block)

    def durable_nodes(self, pages: vec[i64]) -> vec[i64]:
        assert self.nodes is not None, "pages are recorded in an index that there is not"
        return self.nodes.record_all(pages, self.pool, self._scopes)

    def find_page_below(self, page: i64, level: i64) -> i64:
        block = self.pool.block_of_page(page)
        life_cycle = page - block.first_page
        if not self._is_unbounded[life_cycle]:
            return NO_PAGE
        return self._find_page_below(block, life_cycle, level)

    def _find_page_below(self, block: Block, life_cycle: i64, level: i64) -> i64:
        rows = self.storage.rows
        only_child = block.only_child
        if only_child is not None:
            below = only_child.first_page + life_cycle
            if rows.is_queued(below) and (level == ANY_LEVEL or rows.level(below) == level):
                return below
        children = block.children
        if children is not None:
            for part in children.dicts():
                for child in part.values():
                    below = child.first_page + life_cycle
                    if rows.is_queued(below) and (level == ANY_LEVEL or rows.level(below) == level):
                        return below
        return NO_PAGE

    def content_key(self, page: i64) -> i64:
        block = self.pool.block_of_page(page)
        if self.history is not None:
            return page_key(self.history.key_of_path(block.first_page), page - block.first_page)
        self._makes_keys = True
        return page_key(block_key(block, self.block_bytes), page - block.first_page)

    def on_page_dropped(self, page: i64, account: PageCounters | None) -> None:
        self._runs.forget_place()
        block = self.pool.block_of_page(page)
        self._drop_useless(block, page - block.first_page, account)

    def _drop_useless(self, block: Block, life_cycle: i64, account: PageCounters | None) -> None:
        """The block has lost a page; what no match can use without it is dropped too."""
        if self._is_unbounded[life_cycle]:
            self._runs.forget_place()
            cause = self.storage.last_cause
            if block.only_child is None and block.children is None:
                self.drop_pages(block, UNREACHABLE, account)
            else:
                block.num_pins += 1  # it is pruned last, for a cause of its own
                self._drop_below(block, UNREACHABLE, account)
                block.num_pins -= 1
            self.storage.last_cause = cause
        else:
            pages = self._runs.find_useless(block, life_cycle)
            if len(pages) > 0:
                self._drop_broken_runs(block, life_cycle, pages, account)
        if block.num_pins == 0 and block.only_child is None and block.children is None:
            self.prune(block)

    def drop_victims(self, level: i64, pool_group: i64, wanted: i64, cause: i64, account: PageCounters | None) -> None:
        storage = self.storage
        index = level * storage.num_pool_groups + pool_group
        queue = storage.queues[index]
        allocator = storage.allocators[index]
        digest = storage.digest
        pool = self.pool
        self._runs.forget_place()
        while allocator.num_free < wanted and queue.num_pages > 0:
            page = queue.first_to_drop()
            block = pool.block_of_page(page)
            life_cycle = page - block.first_page
            missing = wanted - allocator.num_free
            if len(storage.reads.counted) > 0:
                # Each must be looked at: those that a disk could not read are counted already.
                missing = 1
            if not self._is_unbounded[life_cycle]:
                if missing > 1 and self._drop_out_of_window(block, life_cycle, level, missing, cause, account):
                    continue
            elif block.only_child is not None or block.children is not None:
                below = self._find_page_below(block, life_cycle, ANY_LEVEL)
                if below != NO_PAGE and storage.last_level > 0:
                    return
                if below != NO_PAGE:
                    defer(storage, index, page, below)
                    continue
            elif missing > 1 and block.num_pins == 0 and self._drop_path(block, life_cycle, level, missing, cause, account):
                continue
            digest.record(VICTIM, page)
            drop(storage, page, pool_group, cause, account)
            self._drop_useless(block, life_cycle, account)

    def _drop_path(self, leaf: Block, life_cycle: i64, level: i64, missing: i64, cause: i64, account: PageCounters | None) -> bool:
        """Drop the next victims in one go, where they are those of the last blocks of a path. False, and nothing has changed, if
        that would be one block."""
        path = self._path
        num_blocks = path.gather(leaf, life_cycle, level, missing)
        if num_blocks < 2:
            return False
        storage = self.storage
        pool_group = storage.pool_group_of[life_cycle]
        for page in path.others:
            drop(storage, page, storage.pool_group_of_page(page), UNREACHABLE, account)
        drop_run(storage, level, pool_group, path.pages, path.num_pages)
        count_dropped(storage, level, pool_group, UNREACHABLE, path.num_pages - num_blocks, account)
        count_dropped(storage, level, pool_group, cause, num_blocks, account)
        self._runs.forget_place()
        if storage.sink is not None:
            storage.sink.on_path_removed(
                path.pages, path.num_pages, path.blocks, num_blocks, life_cycle, storage.rows.num_life_cycles, cause
            )
        if self.history is not None:
            self.history.record_path_removal(path.blocks, num_blocks, cause)
        block = leaf
        text = b""
        tokens_begin: i64 = 0
        while num_blocks > 0:
            storage.digest.record(VICTIM, block.first_page + life_cycle)
            parent = block.parent
            assert parent is not None, "a victim is in no tree"
            text = block.tokens
            tokens_begin = block.tokens_begin
            self._cut_off(block, parent)
            self.pool.release(block)
            block = parent
            num_blocks -= 1
        self._shorten_tokens(text, tokens_begin, block)
        self.prune(block)
        return True

    def _drop_out_of_window(
        self, block: Block, life_cycle: i64, level: i64, missing: i64, cause: i64, account: PageCounters | None
    ) -> bool:
        """The same for pages of a windowed life cycle that go without anything else."""
        storage = self.storage
        pool_group = storage.pool_group_of[life_cycle]
        pages = self._path.pages
        if missing > len(pages):
            missing = len(pages)
        queue = storage.queues[level * storage.num_pool_groups + pool_group]
        count = self._runs.list_out_of_window(block, life_cycle, queue, pages, missing)
        if count == 0:
            return False
        drop_run(storage, level, pool_group, pages, count)
        count_dropped(storage, level, pool_group, cause, count, account)
        if storage.sink is not None:
            storage.sink.on_pages_removed(pages, count, cause)
        for position in range(count):
            storage.digest.record(VICTIM, pages[position])
        return True

    def _drop_broken_runs(self, block: Block, life_cycle: i64, pages: vec[i64], account: PageCounters | None) -> None:
        """Drop the rest of a window that has lost a page: it serves no match."""
        self._runs.forget_place()
        pool_group = self.storage.pool_group_of[life_cycle]
        cause = self.storage.last_cause
        # A pin keeps the block, and with it the blocks above, until all of them have lost their pages.
        block.num_pins += 1
        for page in pages:
            drop(self.storage, page, pool_group, UNREACHABLE, account)
            self.prune(self.pool.block_of_page(page))
        block.num_pins -= 1
        self.storage.last_cause = cause

    def _drop_below(self, top: Block, cause: i64, account: PageCounters | None) -> None:
        """Drop all pages of ``top`` and of everything below it that is not held.

        A sequence that holds a page below also holds the unbounded life cycle's page of ``top``. A lease may have kept the page
        of a private block instead, for which ``top`` was taken over; what it has leased below stays until it is settled.
        """
        pending = [top]
        leaves: list[Block] = []
        while len(pending) > 0:
            block = pending.pop()
            self.drop_pages(block, cause, account)
            children = self.children_of(block)
            pending.extend(children)
            if len(children) == 0 and block is not top:
                leaves.append(block)
        for leaf in leaves:
            self.prune(leaf)

    def drop_pages(self, block: Block, cause: i64, account: PageCounters | None, keeps_state: bool = False) -> None:
        """Drop every page of a block that is not held, for a `removal_cause`. ``keeps_state``: but the snapshot of a recurrent state."""
        storage = self.storage
        for life_cycle in range(storage.rows.num_life_cycles):
            page = block.first_page + life_cycle
            if keeps_state and not self._has_page_per_block[life_cycle]:
                continue
            if storage.rows.has_page(page) and storage.rows.num_holds(page) == 0:
                drop(storage, page, storage.pool_group_of[life_cycle], cause, account)

    def drop_superseded(self, parent: Block, fuller: Block) -> None:
        """Drop partial siblings whose tokens and pages ``fuller`` has as well, as far as they are not held."""
        children = parent.children
        if children is None or children.num_partial == 0:
            return
        key = self.key_of(fuller)
        num_bytes: i64
        for num_bytes in range(TOKEN_BYTES, len(key), TOKEN_BYTES):
            partial = self.find_child(parent, key[:num_bytes])
            if partial is not None and self.is_covered(partial, fuller) and not self._is_used(partial):
                # The state of a longer prefix is no substitute for its own.
                self.drop_pages(partial, SUPERSEDED, None, keeps_state=True)
                self.prune(partial)

    def is_covered(self, block: Block, fuller: Block) -> bool:
        """Whether ``fuller`` has a page for each one of its tokens that ``block`` has."""
        rows = self.storage.rows
        for life_cycle in range(rows.num_life_cycles):
            if (
                self._has_page_per_block[life_cycle]
                and rows.has_page(block.first_page + life_cycle)
                and not rows.has_page(fuller.first_page + life_cycle)
            ):
                return False
        return True

    def _is_used(self, block: Block) -> bool:
        rows = self.storage.rows
        pages = range(int(block.first_page), int(block.first_page + rows.num_life_cycles))
        return block.num_pins > 0 or any([rows.num_holds(page) > 0 for page in pages])

    def retire(self, scopes: list[ReuseScope], cause: i64) -> None:
        """End the epoch of these scopes. Pages that no sequence or lease holds are dropped, the others are their holders' (`disown`)."""
        self._epoch += 1
        self.dropped_ends.clear()
        for scope in scopes:
            root = self.find_root(scope)
            if root is not None:
                for child in self.children_of(root):
                    self._drop_below(child, cause, None)
                    self.prune(child)
                if scope in self._roots:
                    self._remove_root(scope)
                    self._retire_rest(root, cause)

    def _retire_rest(self, root: Block, cause: i64) -> None:
        blocks = [root]
        for block in blocks:
            blocks.extend(self.children_of(block))
        self.storage.last_cause = cause
        for block in reversed(blocks):
            self._retired[int(block.first_page)] = (block, self._epoch)
            if self.nodes is not None:
                self.nodes.adopt(block, NOT_KEPT)
            if block is root:
                self._announce_root_gone(root)
            else:
                for life_cycle in range(self.storage.rows.num_life_cycles):
                    disown(self.storage, block.first_page + life_cycle, self.storage.pool_group_of[life_cycle], cause)
                if self.storage.sink is not None:
                    self.storage.sink.on_block_removed(block.first_page)
                if self.history is not None:
                    self.history.record_removal(block.first_page, cause)
