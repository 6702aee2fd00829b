"""The log of published pages' changes, as integers: all that a call on the manager pays for events.

The code that changes a published page calls the matching method right there. `PageStorage.sink` is None without events, and the test
for None is then the whole cost. The log never calls back, never fails, decides nothing:

    on_root_made         a reuse scope gets its root
    on_block_published   a full block joined the tree; its pages follow, each with on_page_published
    on_page_published    a page of a block in the tree exists now: with its block, or added to it later
    on_run_published     both, for a path of full blocks
    on_page_moved        the page's bytes are on another cache level now
    on_priority_changed
    on_page_removed      the page is gone; or its block is private to a sequence again
    on_pages_removed     the same for many
    on_block_removed     the block left the tree, after its pages
    on_path_removed      both, for a path of blocks
    on_root_removed
    on_levels_resized    pool groups have another number of slots

Blocks are full, unless the log `wants_partial_blocks`. Changes of other blocks' pages are reported too, and ignored. A page is named by
its page id, a block by its first page id, a root by a negative number that is never used again.

`log_batch` says what a word means. Nothing is hashed or merged here: `EventAssembler` does that, later and elsewhere.

The log keeps two marks, so that each page of a full block is announced once until it is removed, and no page of a partial block is:

    KNOWN       of a block, at its first page: from on_block_published to on_block_removed
    ANNOUNCED   of a page of a known block: from on_page_published to on_page_removed
"""

from typing import Final, final

from librt.vecs import append, extend, vec
from mypy_extensions import i64

from ..base.handle import Handle
from ..base.ids import TokenIdExt
from .event_backlog import EventBacklog
from .log_batch import (
    BLOCK_PUBLISHED,
    BLOCK_REMOVED,
    ID_SHIFT,
    LEVEL_SHIFT,
    LEVELS_RESIZED,
    PAGE_MOVED,
    PAGE_PUBLISHED,
    PAGE_REMOVED,
    PRIORITY_CHANGED,
    PRIORITY_SHIFT,
    ROOT_MADE,
    ROOT_REMOVED,
    RUN_PUBLISHED,
    LogBatch,
)
from .published_run import PublishedRun
from .removal_cause import UNREACHABLE

_ANNOUNCED: Final = 1
_KNOWN: Final = 2

MAX_WORDS: Final = 1 << 17
"""The log is handed over by itself at this length, so that memory is bounded without a flush."""


@final
class EventLog(Handle):
    __slots__ = (
        "_backlog", "_words", "_num_words", "_objects", "_num_pages", "_marks", "_first_page", "_num_life_cycles", "wants_partial_blocks",
        "_num_batches", "_num_pages_before", "_unsent",
    )  # fmt: skip

    def __init__(self, backlog: EventBacklog, first_page: i64, num_life_cycles: i64, wants_partial_blocks: bool = False) -> None:
        self._backlog: Final = backlog
        self._num_pages: i64 = 0
        """Entries about pages since the last `hand_over`."""
        self._words = vec[i64]([0] * 64)
        """The first `_num_words` are entries."""
        self._num_words: i64 = 0
        self._objects: list[object] = []
        self._marks = vec[i64]()
        """By page id, from the first page of the first block on."""
        self._first_page: Final = first_page
        self._num_life_cycles: Final = num_life_cycles
        self.wants_partial_blocks: Final = wants_partial_blocks
        """Whether partial blocks are to be announced as well."""
        self._num_batches: i64 = 0
        self._num_pages_before: i64 = 0
        """Entries about pages that were handed over."""
        self._unsent: LogBatch | None = None
        """A batch whose handing over has begun and not returned."""

    def hand_over(self) -> None:
        """Hand all entries since the last time to the drainers. Interrupted anywhere, the next call hands over what this one has not."""
        unsent = self._unsent
        if unsent is not None:
            self._backlog.hand_over(unsent)
            self._unsent = None
        num_words = self._num_words
        if num_words == 0:
            return
        number = self._num_batches + 1
        num_pages = self._num_pages_before + self._num_pages
        batch = LogBatch(self._words[:num_words], self._objects, number, num_pages)
        # Statements without a call, so no signal is served between them.
        self._unsent = batch
        self._objects = []
        self._num_words = 0
        self._num_pages = 0
        self._num_batches = number
        self._num_pages_before = num_pages
        self._backlog.hand_over(batch)
        self._unsent = None

    def _record(self, word: i64) -> None:
        words = self._words
        at = self._num_words
        if at == len(words):
            words = self._grow()
        words[at] = word
        self._num_words = at + 1

    def _grow(self) -> vec[i64]:
        words = extend(self._words, vec[i64]([0] * len(self._words)))
        self._words = words
        return words

    def _hand_over_if_full(self) -> None:
        if self._num_words > MAX_WORDS or self._num_pages > MAX_WORDS:
            self.hand_over()

    def _reach(self, block: i64) -> vec[i64]:
        """The marks of all pages up to those of ``block``; new ones are unset."""
        marks = self._marks
        end = block - self._first_page + self._num_life_cycles
        if end > len(marks):
            while len(marks) < end:
                marks = append(marks, 0)
            self._marks = marks
        return marks

    def _reserve(self, num_notes: i64) -> vec[i64]:
        """The words, with capacity for so many more entries."""
        words = self._words
        while self._num_words + num_notes > len(words):
            words = self._grow()
        return words

    def on_root_made(self, root: i64, lora_id: int | None, salt: int | str | None) -> None:
        self._record(ROOT_MADE | (-root << ID_SHIFT))
        self._objects.append((lora_id, salt))
        self._hand_over_if_full()

    def on_root_removed(self, root: i64) -> None:
        self._record(ROOT_REMOVED | (-root << ID_SHIFT))

    def on_block_published(self, block: i64, parent: i64, key: bytes, mixed: list[TokenIdExt] | None) -> None:
        """``key``: the tokens as packed int32; ``mixed``: the tokens as the user gave them, if a digest is among them."""
        marks = self._reach(block)
        at = block - self._first_page
        assert marks[at] == 0, "a block was announced twice"
        marks[at] = _KNOWN
        self._record(BLOCK_PUBLISHED | (block << ID_SHIFT))
        self._record(parent)
        if mixed is None:
            self._objects.append(key)
        else:
            self._objects.append(mixed)

    def on_run_published(self, run: PublishedRun) -> None:
        """`on_block_published` and `on_page_published` for all blocks of the run."""
        marks = self._marks
        num_life_cycles = self._num_life_cycles
        levels_and_priorities = run.levels_and_priorities
        num_pages: i64 = 0
        marks_before: i64 = 0
        position: i64 = 0
        for block in run.first_pages:
            at = block - self._first_page
            end = at + num_life_cycles
            if end > len(marks):
                marks = self._reach(block)
            mark: i64 = _KNOWN
            while at < end:
                # The sign's bits are -1 where there is no page.
                announced = _ANNOUNCED + (levels_and_priorities[position] >> 62)
                marks_before |= marks[at]
                marks[at] = mark | announced
                num_pages += announced
                mark = 0
                position += 1
                at += 1
        assert marks_before == 0, "a block was announced twice"
        self._record(RUN_PUBLISHED)
        self._objects.append(run)
        self._num_pages += num_pages
        self._hand_over_if_full()

    def on_block_removed(self, block: i64) -> None:
        marks = self._marks
        at = block - self._first_page
        if at >= len(marks) or marks[at] == 0:
            return
        assert marks[at] == _KNOWN, "a block left the tree, and an announced page stayed"
        marks[at] = 0
        self._record(BLOCK_REMOVED | (block << ID_SHIFT))

    def _record_page(self, word: i64) -> None:
        self._record(word)
        self._num_pages += 1
        self._hand_over_if_full()

    def on_page_published(self, page: i64, level: i64, priority: i64) -> None:
        marks = self._marks
        at = page - self._first_page
        first = at - at % self._num_life_cycles
        if first < len(marks) and (marks[first] & _KNOWN) != 0 and (marks[at] & _ANNOUNCED) == 0:
            marks[at] |= _ANNOUNCED
            self._record_page(PAGE_PUBLISHED | (page << ID_SHIFT) | (level << LEVEL_SHIFT) | (priority << PRIORITY_SHIFT))

    def on_page_removed(self, page: i64, cause: i64) -> None:
        """``cause``: a value of `removal_cause`."""
        if self.is_announced(page):
            self._marks[page - self._first_page] &= ~_ANNOUNCED
            self._record_page(PAGE_REMOVED | (page << ID_SHIFT) | (cause << LEVEL_SHIFT))

    def on_pages_removed(self, pages: vec[i64], num_pages: i64, cause: i64) -> None:
        """`on_page_removed` for the first ``num_pages`` pages."""
        # A path of pages only: no block leaves the tree, and no other page is removed.
        self.on_path_removed(pages, num_pages, pages, 0, 0, 0, cause)

    def on_path_removed(
        self, pages: vec[i64], num_pages: i64, blocks: vec[i64], num_blocks: i64, life_cycle: i64, num_life_cycles: i64, cause: i64
    ) -> None:  # fmt: skip
        """Removed pages, and then the removed ``blocks`` (the first ``num_blocks``), leaf first. Of each block the page of
        ``life_cycle`` comes first and was removed for ``cause``; its other pages follow and are UNREACHABLE."""
        marks = self._marks
        words = self._reserve(num_pages + num_blocks)
        begin = self._num_words
        at = begin
        first_page = self._first_page
        num_marks: i64 = len(marks)
        cause_bits = cause << LEVEL_SHIFT
        block_end: i64 = 0
        position: i64 = 0
        while position < num_pages:
            page = pages[position]
            position += 1
            bits: i64 = UNREACHABLE << LEVEL_SHIFT
            if page >= block_end or page < block_end - num_life_cycles:
                block_end = page - life_cycle + num_life_cycles
                bits = cause_bits
            place = page - first_page
            if place < num_marks and (marks[place] & _ANNOUNCED) != 0:
                marks[place] &= ~_ANNOUNCED
                words[at] = PAGE_REMOVED | (page << ID_SHIFT) | bits
                at += 1
        self._num_pages += at - begin
        position = 0
        while position < num_blocks:
            block = blocks[position]
            position += 1
            place = block - first_page
            if place < num_marks and marks[place] != 0:
                assert marks[place] == _KNOWN, "a block left the tree, and an announced page stayed"
                marks[place] = 0
                words[at] = BLOCK_REMOVED | (block << ID_SHIFT)
                at += 1
        self._num_words = at
        self._hand_over_if_full()

    def on_page_moved(self, page: i64, old_level: i64, new_level: i64) -> None:
        if self.is_announced(page) and new_level != old_level:
            self._record_page(PAGE_MOVED | (page << ID_SHIFT) | (new_level << LEVEL_SHIFT))

    def on_priority_changed(self, page: i64, old_priority: i64, new_priority: i64) -> None:
        if self.is_announced(page) and new_priority != old_priority:
            self._record_page(PRIORITY_CHANGED | (page << ID_SHIFT) | (new_priority << PRIORITY_SHIFT))

    def on_levels_resized(self, num_blocks: list[tuple[int, ...]]) -> None:
        """By layer group, the slots of each cache level."""
        self._record(LEVELS_RESIZED)
        self._objects.append(num_blocks)
        self._num_pages += self._num_life_cycles  # at most as many events
        self._hand_over_if_full()

    def is_announced(self, page: i64) -> bool:
        """Whether the page was published as part of a full block and not removed since."""
        at = page - self._first_page
        return at < len(self._marks) and (self._marks[at] & _ANNOUNCED) != 0
