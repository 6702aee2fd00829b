"""Notes of what became of published pages, as integers: what a call on the manager pays for events.

`log_batch` says what a word means. Nothing is hashed or merged here: `EventAssembler` does that, later and elsewhere.

The log keeps one state per page, so that a page of a full block is announced once until it is removed, and a page of a partial
block never:

    state       way out
    UNKNOWN     on_block_published -> KNOWN
    KNOWN       on_page_published -> ANNOUNCED, on_block_removed -> UNKNOWN
    ANNOUNCED   on_page_removed -> KNOWN
"""

from typing import Final, final

from librt.vecs import append, extend, vec
from mypy_extensions import i64, mypyc_attr

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
    LogBatch,
)
from .page_events import PageEventSink

_UNKNOWN: Final = 0
_KNOWN: Final = 1
_ANNOUNCED: Final = 2

MAX_WORDS: Final = 1 << 17
"""Handed over by itself from here on, so that one who never flushes does not fill the memory."""


@final
@mypyc_attr(native_class=True)
class EventLog(PageEventSink):
    __slots__ = ("_backlog", "_words", "_num_words", "_objects", "_num_pages", "_states", "_first_page", "_num_life_cycles")

    _backlog: Final[EventBacklog]
    _num_pages: i64
    """Notes about pages since the last `hand_over`."""
    _words: vec[i64]
    """The first `_num_words` are notes."""
    _num_words: i64
    _objects: list[object]
    _states: vec[i64]
    """By page id, from the first page of the first block on."""
    _first_page: Final[i64]
    _num_life_cycles: Final[i64]

    def __init__(self, backlog: EventBacklog, first_page: i64, num_life_cycles: i64) -> None:
        self._backlog = backlog
        self._num_pages = 0
        self._words = vec[i64]([0] * 64)
        self._num_words = 0
        self._objects = []
        self._states = vec[i64]()
        self._first_page = first_page
        self._num_life_cycles = num_life_cycles

    def hand_over(self) -> None:
        """All notes since the last time, to those who drain."""
        num_words = self._num_words
        if num_words == 0:
            return
        batch = LogBatch(self._words[:num_words], self._objects, self._num_pages)
        self._objects = []
        self._num_words = 0
        self._num_pages = 0
        self._backlog.hand_over(batch)

    def _note(self, word: i64) -> None:
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
        if self._num_words > MAX_WORDS:
            self.hand_over()

    def _reach(self, end: i64) -> vec[i64]:
        """There are so many states; the new ones are UNKNOWN."""
        states = self._states
        while len(states) < end:
            states = append(states, _UNKNOWN)
        self._states = states
        return states

    def on_root_made(self, root: i64, lora_id: int | None, salt: int | str | None) -> None:
        self._note(ROOT_MADE | (-root << ID_SHIFT))
        self._objects.append((lora_id, salt))
        self._hand_over_if_full()

    def on_root_removed(self, root: i64) -> None:
        self._note(ROOT_REMOVED | (-root << ID_SHIFT))

    def on_block_published(self, block: i64, parent: i64, key: bytes, mixed: list[TokenIdExt] | None) -> None:
        states = self._states
        at = block - self._first_page
        end = at + self._num_life_cycles
        if end > len(states):
            states = self._reach(end)
        while at < end:
            assert states[at] == _UNKNOWN, "a block was announced twice"
            states[at] = _KNOWN
            at += 1
        self._note(BLOCK_PUBLISHED | (block << ID_SHIFT))
        self._note(parent)
        if mixed is None:
            self._objects.append(key)
        else:
            self._objects.append(mixed)

    def on_run_published(
        self, parent: i64, first_pages: vec[i64], keys: list[bytes], places: vec[i64], num_life_cycles: i64
    ) -> None:
        states = self._states
        words = self._words
        at = self._num_words
        most = at + len(first_pages) * (2 + num_life_cycles)
        while most > len(words):
            words = self._grow()
        num_pages: i64 = 0
        next_place: i64 = 0
        position: i64 = 0
        while position < len(first_pages):
            block = first_pages[position]
            words[at] = BLOCK_PUBLISHED | (block << ID_SHIFT)
            words[at + 1] = parent
            at += 2
            page = block
            end = block + num_life_cycles
            if end - self._first_page > len(states):
                states = self._reach(end - self._first_page)
            while page < end:
                state = page - self._first_page
                assert states[state] == _UNKNOWN, "a block was announced twice"
                place = places[next_place]
                next_place += 1
                if place >= 0:
                    states[state] = _ANNOUNCED
                    # The priority stands 8 bits above the level in both.
                    words[at] = PAGE_PUBLISHED | (page << ID_SHIFT) | (place << LEVEL_SHIFT)
                    at += 1
                    num_pages += 1
                else:
                    states[state] = _KNOWN
                page += 1
            parent = block
            position += 1
        self._num_words = at
        self._num_pages += num_pages
        self._objects.extend(keys)
        self._hand_over_if_full()

    def on_block_removed(self, block: i64) -> None:
        states = self._states
        at = block - self._first_page
        if at >= len(states) or states[at] == _UNKNOWN:
            return
        end = at + self._num_life_cycles
        while at < end:
            assert states[at] == _KNOWN, "a block left the tree, and an announced page stayed"
            states[at] = _UNKNOWN
            at += 1
        self._note(BLOCK_REMOVED | (block << ID_SHIFT))

    def _note_page(self, word: i64) -> None:
        words = self._words
        at = self._num_words
        if at == len(words):
            words = self._grow()
        words[at] = word
        at += 1
        self._num_words = at
        self._num_pages += 1
        if at > MAX_WORDS:
            self.hand_over()

    def on_page_published(self, page: i64, level: i64, priority: i64) -> None:
        states = self._states
        at = page - self._first_page
        if at < len(states) and states[at] == _KNOWN:
            states[at] = _ANNOUNCED
            self._note_page(
                PAGE_PUBLISHED | (page << ID_SHIFT) | (level << LEVEL_SHIFT) | (priority << PRIORITY_SHIFT)
            )

    def on_page_removed(self, page: i64, cause: i64) -> None:
        states = self._states
        at = page - self._first_page
        if at < len(states) and states[at] == _ANNOUNCED:
            states[at] = _KNOWN
            self._note_page(PAGE_REMOVED | (page << ID_SHIFT) | (cause << LEVEL_SHIFT))

    def on_page_moved(self, page: i64, old_level: i64, new_level: i64) -> None:
        if self.is_announced(page) and new_level != old_level:
            self._note_page(PAGE_MOVED | (page << ID_SHIFT) | (new_level << LEVEL_SHIFT))

    def on_priority_changed(self, page: i64, old_priority: i64, new_priority: i64) -> None:
        if self.is_announced(page) and new_priority != old_priority:
            self._note_page(PRIORITY_CHANGED | (page << ID_SHIFT) | (new_priority << PRIORITY_SHIFT))

    def on_levels_resized(self, num_blocks: list[tuple[int, ...]]) -> None:
        self._note(LEVELS_RESIZED)
        self._objects.append(num_blocks)
        self._num_pages += self._num_life_cycles  # as many events may come of it
        self._hand_over_if_full()

    def is_announced(self, page: i64) -> bool:
        at = page - self._first_page
        return at < len(self._states) and self._states[at] == _ANNOUNCED
