"""Announcements of newly published blocks and their pages, to the event sink."""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import TokenIdExt
from ..events.event_log import EventLog
from ..storage.page_rows import NO_PAGE, PLACE, ROW_WORDS, PageRows, level_and_priority_of, level_of_place, priority_of_place


def list_levels_and_priorities(rows: PageRows, first_pages: vec[i64]) -> vec[i64]:
    """The level_and_priority of each page of the blocks, block by block."""
    words = rows.words
    width = rows.num_life_cycles
    levels_and_priorities = vec[i64]([0] * (len(first_pages) * width))
    position: i64 = 0
    for first_page in first_pages:
        for page in range(first_page, first_page + width):
            levels_and_priorities[position] = level_and_priority_of(words[page * ROW_WORDS + PLACE])
            position += 1
    return levels_and_priorities


def announce_block(rows: PageRows, sink: EventLog, parent: i64, first_page: i64, key: bytes, mixed: list[TokenIdExt] | None) -> None:
    """A full block and its pages; ``mixed``: its tokens, where digests are among them."""
    sink.on_block_published(first_page, parent, key, mixed)
    words = rows.words
    for page in range(first_page, first_page + rows.num_life_cycles):
        place = words[page * ROW_WORDS + PLACE]
        if place != NO_PAGE:
            sink.on_page_published(page, level_of_place(place), priority_of_place(place))
