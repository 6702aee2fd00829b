"""Assembles log entries into events: tracks the announced blocks as consumers know them, merges entries, computes hashes when drained.

Stored blocks merge into one event while each is the child of the one before, removed blocks while the cause is the same; per layer
group, and until an entry of another kind comes between. So in the events of one batch of entries, a removal precedes all that
followed it. Beyond ``max_events`` undrained events the oldest are dropped, unhashed; their ids stay used, and the next event has
their number.
"""

from collections.abc import Sequence
from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.fair_turns import FairTurns
from ..base.ids import TokenIdExt
from .block_digest import BlockHash, show_digest
from .block_node import BlockNode
from .kv_cache_event import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventData,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from .layer_group_facts import LayerGroupFacts
from .log_batch import (
    BLOCK_PUBLISHED,
    BLOCK_REMOVED,
    BYTE_MASK,
    ID_MASK,
    ID_SHIFT,
    KIND_MASK,
    LEVEL_SHIFT,
    LEVELS_RESIZED,
    PAGE_MOVED,
    PAGE_PUBLISHED,
    PAGE_REMOVED,
    PRIORITY_SHIFT,
    ROOT_MADE,
    ROOT_REMOVED,
    RUN_PUBLISHED,
    LogBatch,
)
from .published_run import PublishedRun, unpack_level, unpack_priority
from .removal_cause import CAUSE_NAMES

_STORED: Final = 0
_REMOVED: Final = 1
_MOVED: Final = 2
_REVALUED: Final = 3
_CREATED: Final = 4

_NOT_ANNOUNCED: Final = -1


@final
class _Draft:
    """An event that is not drained yet: its blocks are not hashed so far."""

    __slots__ = ("kind", "group", "event_id", "num_dropped", "nodes", "places", "value")

    def __init__(self, kind: i64, group: i64, event_id: int, value: i64) -> None:
        self.kind: Final = kind
        self.group: Final = group
        self.event_id: Final = event_id
        self.num_dropped = 0
        self.nodes: Final[list[BlockNode]] = []
        self.places = vec[i64]()
        """Of stored blocks: `_pack`; of an update: the old and the new value; of a created group: its blocks by level."""
        self.value: Final = value
        """The cause, for removed blocks."""

    def add(self, node: BlockNode, place: i64) -> None:
        self.nodes.append(node)
        self.places = append(self.places, place)


def _pack(level: i64, priority: i64) -> i64:
    return level | (priority << 8)


@final
class EventAssembler:
    """``first_page``: the id of the first page of the first block."""

    __slots__ = (
        "next_event_id", "num_dropped", "num_taken", "is_taking",
        "_groups", "_first_page", "_num_groups", "_algorithm", "_rank", "_max_events",
        "_num_blocks", "_roots", "_nodes", "_places", "_drafts", "_first_draft", "_open", "_turns",
    )  # fmt: skip

    def __init__(self, groups: Sequence[LayerGroupFacts], first_page: i64, algorithm: str, rank: int | None, max_events: int) -> None:
        self.next_event_id = 0
        self.num_dropped = 0
        """Events dropped since the manager was made."""
        self.num_taken: i64 = 0
        """Number of the last batch that was taken in."""
        self.is_taking = False
        """A batch is being taken in; under the lock: the taking-in was interrupted, and events are incomplete."""
        self._groups: Final[list[LayerGroupFacts]] = list(groups)
        self._first_page: Final = first_page
        self._num_groups: Final[i64] = len(groups)
        self._algorithm: Final = algorithm
        self._rank: Final = rank
        self._max_events: Final = max_events
        self._roots: Final[dict[int, BlockNode]] = {}
        self._nodes: Final[list[BlockNode | None]] = []
        """By block; None if no full block is published under that number."""
        self._places = vec[i64]()
        """By page, `_pack` or _NOT_ANNOUNCED."""
        self._drafts: list[_Draft] = []
        self._first_draft: i64 = 0
        """Drafts before this one are dropped or drained."""
        self._open: Final[list[_Draft | None]] = [None for _group in groups]
        """Per layer group the event that the next entry may extend."""
        self._turns: Final = FairTurns()
        """Of draining, for which the caller of the manager does not wait."""
        self._num_blocks: Final[list[tuple[int, ...]]] = [group.num_blocks_per_cache_level for group in groups]
        """By layer group: the slots of each cache level."""
        for group in range(len(groups)):
            self._create(group)

    @property
    def num_undrained(self) -> int:
        return len(self._drafts) - int(self._first_draft)

    # -- log entries --------------------------------------------------------------------------------------------------

    def take_in(self, batch: LogBatch) -> None:
        self.is_taking = True
        words = batch.words
        objects = batch.objects
        next_object: i64 = 0
        at: i64 = 0
        num_words: i64 = len(words)
        while at < num_words:
            word = words[at]
            at += 1
            kind = word & KIND_MASK
            number = (word >> ID_SHIFT) & ID_MASK
            if kind == PAGE_PUBLISHED:
                self._store(number, _pack((word >> LEVEL_SHIFT) & BYTE_MASK, word >> PRIORITY_SHIFT))
            elif kind == PAGE_REMOVED:
                self._remove(number, (word >> LEVEL_SHIFT) & BYTE_MASK)
            elif kind == BLOCK_PUBLISHED:
                self._add_block(number, words[at], objects[next_object])
                at += 1
                next_object += 1
            elif kind == BLOCK_REMOVED:
                self._nodes[(number - self._first_page) // self._num_groups] = None
            elif kind == RUN_PUBLISHED:
                self._add_run(objects[next_object])
                next_object += 1
            elif kind == ROOT_MADE:
                self._add_root(number, objects[next_object])
                next_object += 1
            elif kind == ROOT_REMOVED:
                del self._roots[int(-number)]
            elif kind == LEVELS_RESIZED:
                self._resize(objects[next_object])
                next_object += 1
            elif kind == PAGE_MOVED:
                self._update(number, _MOVED, (word >> LEVEL_SHIFT) & BYTE_MASK)
            else:
                self._update(number, _REVALUED, word >> PRIORITY_SHIFT)
        for group in range(len(self._open)):
            self._open[group] = None
        self._drop_oldest()
        # Statements without a call, so no signal is served between them.
        self.num_taken = batch.number
        self.is_taking = False

    def _add_root(self, number: i64, scope: object) -> None:
        assert isinstance(scope, tuple)
        lora_id: object = scope[0]
        salt: object = scope[1]
        assert lora_id is None or isinstance(lora_id, int)
        assert salt is None or isinstance(salt, (int, str))
        self._roots[int(-number)] = BlockNode(-1, None, b"", None, lora_id, salt)

    def _add_block(self, first_page: i64, parent: i64, tokens: object) -> None:
        above: BlockNode | None
        if parent < 0:
            above = self._roots[int(parent)]
        else:
            above = self._nodes[(parent - self._first_page) // self._num_groups]
        assert above is not None, "a block was published without a parent"
        block = (first_page - self._first_page) // self._num_groups
        if isinstance(tokens, bytes):
            node = BlockNode(block, above, tokens, None)
        else:
            assert isinstance(tokens, list)
            mixed: list[TokenIdExt] = tokens
            node = BlockNode(block, above, b"", mixed)
        while len(self._nodes) <= block:
            self._nodes.append(None)
            for group in range(self._num_groups):
                self._places = append(self._places, _NOT_ANNOUNCED)
        self._nodes[block] = node

    def _add_run(self, run: object) -> None:
        assert isinstance(run, PublishedRun)
        parent = run.parent
        ordinal: i64 = 0
        for first_page in run.first_pages:
            self._add_block(first_page, parent, run.key(ordinal))
            for group in range(self._num_groups):
                level_and_priority = run.levels_and_priorities[ordinal * self._num_groups + group]
                if level_and_priority >= 0:
                    self._store(first_page + group, _pack(unpack_level(level_and_priority), unpack_priority(level_and_priority)))
            parent = first_page
            ordinal += 1

    def _create(self, group: i64) -> None:
        self._add_draft(_CREATED, group, 0).places = vec[i64](self._num_blocks[group])

    def _resize(self, num_blocks: object) -> None:
        assert isinstance(num_blocks, list)
        self._close_all_but(_CREATED)
        for group in range(len(self._num_blocks)):
            counts: tuple[int, ...] = num_blocks[group]
            if counts != self._num_blocks[group]:
                self._num_blocks[group] = counts
                self._create(group)

    def _node_of(self, page: i64) -> BlockNode:
        node = self._nodes[(page - self._first_page) // self._num_groups]
        assert node is not None, "a page without a block was logged"
        return node

    def _store(self, page: i64, place: i64) -> None:
        node = self._node_of(page)
        self._places[page - self._first_page] = place
        group = (page - self._first_page) % self._num_groups
        draft = self._open[group]
        if draft is None or draft.kind != _STORED or draft.nodes[-1] is not node.parent:
            self._close_all_but(_STORED)
            draft = self._add_draft(_STORED, group, 0)
        draft.add(node, place)

    def _remove(self, page: i64, cause: i64) -> None:
        # Several causes have one public name, and merge.
        cause = CAUSE_NAMES.index(CAUSE_NAMES[int(cause)])
        node = self._node_of(page)
        self._places[page - self._first_page] = _NOT_ANNOUNCED
        group = (page - self._first_page) % self._num_groups
        draft = self._open[group]
        if draft is None or draft.kind != _REMOVED or draft.value != cause:
            self._close_all_but(_REMOVED)
            draft = self._add_draft(_REMOVED, group, cause)
        draft.add(node, 0)

    def _update(self, page: i64, kind: i64, new: i64) -> None:
        node = self._node_of(page)
        group = (page - self._first_page) % self._num_groups
        place = self._places[page - self._first_page]
        level = place & BYTE_MASK
        priority = place >> 8
        old = level if kind == _MOVED else priority
        self._places[page - self._first_page] = _pack(new, priority) if kind == _MOVED else _pack(level, new)
        self._close_all_but(kind)
        draft = self._add_draft(kind, group, 0)
        draft.add(node, old)
        draft.places = append(draft.places, new)

    def _close_all_but(self, kind: i64) -> None:
        for group in range(len(self._open)):
            draft = self._open[group]
            if draft is not None and draft.kind != kind:
                self._open[group] = None

    def _add_draft(self, kind: i64, group: i64, value: i64) -> _Draft:
        draft = _Draft(kind, group, self.next_event_id, value)
        self.next_event_id += 1
        self._drafts.append(draft)
        self._open[group] = draft
        return draft

    def _drop_oldest(self) -> None:
        excess = len(self._drafts) - int(self._first_draft) - self._max_events
        if excess <= 0:
            return
        lost = excess
        for position in range(int(self._first_draft), int(self._first_draft) + excess):
            lost += self._drafts[position].num_dropped
        self._first_draft += excess
        self.num_dropped += excess
        if int(self._first_draft) < len(self._drafts):
            self._drafts[self._first_draft].num_dropped = lost
        if self._first_draft * 2 > len(self._drafts):
            self._drafts = self._drafts[int(self._first_draft) :]
            self._first_draft = 0

    # -- events -------------------------------------------------------------------------------------------------------

    def drain(self) -> list[KVCacheEvent]:
        """All undrained events, hashed."""
        events: list[KVCacheEvent] = []
        for draft in self._drafts[int(self._first_draft) :]:
            events.append(self._finish(draft))
            self._turns.pause()
        self._drafts = []
        self._first_draft = 0
        return events

    def _finish(self, draft: _Draft) -> KVCacheEvent:
        data: KVCacheEventData
        if draft.kind == _STORED:
            data = self._stored_data(draft)
        elif draft.kind == _REMOVED:
            data = KVCacheRemovedData([self._name(node) for node in draft.nodes], CAUSE_NAMES[int(draft.value)])
        elif draft.kind == _CREATED:
            data = KVCacheCreatedData([int(count) for count in draft.places])
        else:
            diff = KVCacheEventDiff(int(draft.places[0]), int(draft.places[1]))
            name = self._name(draft.nodes[0])
            data = KVCacheUpdatedData(name, diff, None) if draft.kind == _MOVED else KVCacheUpdatedData(name, None, diff)
        window_size = self._groups[draft.group].window_size
        return KVCacheEvent(draft.event_id, data, window_size, int(draft.group), draft.num_dropped, self._rank, self._algorithm)

    def _name(self, node: BlockNode) -> BlockHash:
        return show_digest(node.digest(self._algorithm), self._algorithm)

    def _stored_data(self, draft: _Draft) -> KVCacheStoredData:
        first = draft.nodes[0]
        parent = first.parent
        parent_hash = None if parent is None or parent.parent is None else self._name(parent)
        blocks: list[KVCacheStoredBlockData] = []
        for position, node in enumerate(draft.nodes):
            place = draft.places[position]
            blocks.append(KVCacheStoredBlockData(self._name(node), node.tokens(), int(place & BYTE_MASK), int(place >> 8)))
            self._turns.pause()
        return KVCacheStoredData(parent_hash, blocks, first.lora_id, first.salt)

    def snapshot(self) -> list[KVCacheEvent]:
        """The state after all events so far, as events: created and stored ones, parents first, with the id of the last event."""
        event_id = self.next_event_id - 1
        order = self._parents_first()
        events: list[KVCacheEvent] = []
        for group in range(self._num_groups):
            draft = _Draft(_CREATED, group, event_id, 0)
            draft.places = vec[i64](self._num_blocks[group])
            for block in order:
                node = self._nodes[block]
                place = self._places[block * self._num_groups + group]
                if node is None or place == _NOT_ANNOUNCED:
                    continue
                if draft.kind == _CREATED or draft.nodes[-1] is not node.parent:
                    events.append(self._finish(draft))
                    draft = _Draft(_STORED, group, event_id, 0)
                draft.add(node, place)
                self._turns.pause()
            events.append(self._finish(draft))
        return events

    def _parents_first(self) -> list[int]:
        """The published blocks; each directly after its parent if that has no other child."""
        children: dict[int, list[int]] = {}
        pending: list[int] = []
        for block in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[block]
            if node is not None:
                parent = node.parent
                if parent is None or parent.block < 0:
                    pending.append(block)
                else:
                    children.setdefault(int(parent.block), []).append(block)
            self._turns.pause()
        order: list[int] = []
        while len(pending) > 0:
            block = pending.pop()
            order.append(block)
            pending.extend(children.get(block, []))
            self._turns.pause()
        return order
