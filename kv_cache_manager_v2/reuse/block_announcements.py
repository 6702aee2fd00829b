"""What the tree says of newly published blocks and their pages to whoever follows them."""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import TokenIdExt
from ..events.page_events import PageEventSink
from ..storage.page_rows import NO_PAGE, PLACE, ROW_WORDS, PageRows, level_of_place, priority_of_place, level_and_priority_of


def list_levels_and_priorities(rows: PageRows, first_pages: vec[i64]) -> vec[i64]:
    """The level_and_priority of each page of the blocks, block by block."""
    words = rows.words
    width = rows.num_life_cycles
    levels_and_priorities = vec[i64]([0] * (len(first_pages) * width))
    position: i64 = 0
    for first_page in first_pages:
        at = first_page * ROW_WORDS + PLACE
        end = position + width
        while position < end:
            levels_and_priorities[position] = level_and_priority_of(words[at])
            at += ROW_WORDS
            position += 1
    return levels_and_priorities


def announce_block(
    rows: PageRows, sink: PageEventSink, parent: i64, first_page: i64, key: bytes, mixed: list[TokenIdExt] | None
) -> None:
    """A full block and its pages; ``mixed``: its tokens, where digests are among them."""
    sink.on_block_published(first_page, parent, key, mixed)
    words = rows.words
    page = first_page
    end = page + rows.num_life_cycles
    while page < end:
        place = words[page * ROW_WORDS + PLACE]
        if place != NO_PAGE:
            sink.on_page_published(page, level_of_place(place), priority_of_place(place))
        page += 1
