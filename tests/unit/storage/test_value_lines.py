"""`ValueLines` against lists of segments by line: the lowest line first, in each the segment that came first; one that is older than the
first comes in front of it."""

from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i64
from unit.storage.learned_laws import check_lines

from kv_cache_manager_v2.storage.eviction.page_notes import PageNotes, in_segment, in_use
from kv_cache_manager_v2.storage.eviction.segment_table import COUNTS, KEY, NO_SEGMENT, PRIORITY_SHIFT, SEGMENT_WORDS, STAMP, SegmentTable
from kv_cache_manager_v2.storage.eviction.value_lines import ValueLines
from kv_cache_manager_v2.storage.page_rows import PLACE, ROW_WORDS, PageRows, pack_place
from kv_cache_manager_v2.storage.victim_queue import NO_VICTIM, NUM_PRIORITIES

NUM_SEGMENTS = 12


@pytest.mark.parametrize("lines_used", [(1,), (1, 2, 255), (3, 60, 61, 200)])
@pytest.mark.parametrize("seed", range(5))
def test_against_lists(seed: int, lines_used: tuple[int, ...]) -> None:
    random = Random(seed)
    rows, notes, table = PageRows(1, NUM_PRIORITIES), PageNotes(), SegmentTable()
    notes.join(rows)
    table.add_queue()
    lines = ValueLines(rows, 0, table, notes)
    segments = [int(table.add(NO_SEGMENT, 0, 0)) for _ in range(NUM_SEGMENTS)]
    priorities = {segment: random.choice((0, 35, 100)) for segment in segments}
    keys = {segment: priorities[segment] << PRIORITY_SHIFT | random.choice(lines_used) for segment in segments}
    for segment, key in keys.items():
        table.words[segment * SEGMENT_WORDS + KEY] = key
        table.words[segment * SEGMENT_WORDS + STAMP] = segment // 3
    pages: dict[int, list[int]] = {segment: [] for segment in segments}
    in_lines: list[int] = []
    """Segments with pages, in the order in which they came into their lines."""
    first: list[int] = []
    spare = [int(rows.add_block()) for _ in range(60)]
    for _step in range(400):
        segment = random.choice(segments)
        draw = random.random()
        if draw < 0.35 and spare:
            run = [spare.pop() for _ in range(random.randint(1, min(5, len(spare))))]
            for page in run:
                rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, priorities[segment])
            lines.add(segment, vec[i64]([0, *run, 0]), 1, 1 + len(run))
            for page in run:
                notes.set(page, in_segment(segment, 1))
            if not pages[segment]:
                in_lines.append(segment)
            pages[segment] += run
        elif draw < 0.6 and pages[segment]:
            run = random.sample(pages[segment], random.randint(1, len(pages[segment])))
            if random.random() < 0.6:
                run = pages[segment][: len(run)][:: random.choice((1, -1))]
            lines.remove_run(segment, vec[i64]([0, *run]), 1, 1 + len(run))
            pages[segment] = [page for page in pages[segment] if page not in run]
            spare += run
            if not pages[segment]:
                in_lines.remove(segment)
        elif draw < 0.85 and pages[segment]:
            key = priorities[segment] << PRIORITY_SHIFT | random.choice(lines_used)
            may_be_first = random.random() < 0.7
            lines.move(segment, key, may_be_first)
            if key != keys[segment]:
                in_lines.remove(segment)
                before = [one for one in in_lines if keys[one] == key]
                in_lines.insert(0 if may_be_first and before and segment // 3 < before[0] // 3 else len(in_lines), segment)
            keys[segment] = key
        elif draw < 0.95 and spare:
            page = spare.pop()
            rows.words[page * ROW_WORDS + PLACE] = pack_place(0, 0, random.choice((0, 35, 100)))
            notes.set(page, in_use(1, 0, False))
            if random.random() < 0.5:
                lines.push(page)
                first.append(page)
            else:
                lines.push_first(page)
                first.insert(0, page)
        elif first:
            page = first.pop(random.randrange(len(first)))
            lines.remove(page)
            spare.append(page)
        expected = sorted([(rows.priority(page) << PRIORITY_SHIFT, place, [page]) for place, page in enumerate(first)])
        expected = sorted(expected + [(keys[one], place, pages[one]) for place, one in enumerate(in_lines)], key=lambda each: each[:2])
        in_order = [page for _key, _place, some in expected for page in some]
        assert lines.collect() == in_order
        assert (lines.first(), lines.num_pages) == (in_order[0] if in_order else NO_VICTIM, len(in_order))
        assert check_lines(lines, rows, table, notes) == len(in_lines)
        assert all(table.words[one * SEGMENT_WORDS + COUNTS] == len(pages[one]) for one in segments)
