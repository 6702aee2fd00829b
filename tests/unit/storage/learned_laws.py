"""The laws of what LEARNED has in its tables and lines, evaluated from scratch."""

from librt.vecs import vec
from mypy_extensions import i32

from kv_cache_manager_v2.storage.eviction.page_notes import IN_SEGMENT, STATUS_MASK, PageNotes, segment_of_note
from kv_cache_manager_v2.storage.eviction.segment_records import SegmentRecords
from kv_cache_manager_v2.storage.eviction.segment_table import (
    COUNTS,
    HIGH_SHIFT,
    KEY,
    LOW,
    NO_SEGMENT,
    PLACE,
    PRIORITY_SHIFT,
    SEGMENT_WORDS,
    STAMP,
    TOP,
    SegmentTable,
)
from kv_cache_manager_v2.storage.eviction.value_lines import ValueLines
from kv_cache_manager_v2.storage.page_rows import PageRows
from kv_cache_manager_v2.storage.victim_queue import NUM_PRIORITIES


def collect_segments(table: SegmentTable) -> list[int]:
    """All segments, the oldest first."""
    segments: list[int] = []
    segment = table.newer(NO_SEGMENT)
    while segment != NO_SEGMENT:
        segments.append(int(segment))
        segment = table.newer(segment)
    return segments


def check_records(records: SegmentRecords, rows: PageRows) -> None:
    records.check_count()
    table = records.table
    words = table.words
    num_ghosts = 0
    stamp = -1
    num_queued = 0
    for segment in collect_segments(table):
        at = segment * SEGMENT_WORDS
        assert words[at + STAMP] >= stamp, "segments are not in the order of their age"
        stamp = int(words[at + STAMP])
        counts = words[at + COUNTS]
        num_ghosts += int(counts >> HIGH_SHIFT)
        assert (counts >> HIGH_SHIFT > 0) == (words[at + TOP] != 0), f"segment {segment} has no key of its ghosts"
        if words[at + TOP] != 0:
            assert records.table.find_top(words[at + TOP]) == segment, f"the ghosts of segment {segment} are not found"
        num_queued += int(counts & LOW > 0)
    assert num_ghosts == table.num_ghosts, f"{num_ghosts} ghosts, counted {table.num_ghosts}"
    in_lines = sum([check_lines(lines, rows, table, records.notes) for lines in records.lines if lines is not None])
    assert num_queued == in_lines, f"{num_queued} segments with pages, {in_lines} in lines"


def check_lines(lines: ValueLines, rows: PageRows, table: SegmentTable, notes: PageNotes) -> int:
    """How many segments stand in them."""
    words = table.words
    heads = vec[i32]([0] * (NUM_PRIORITIES << PRIORITY_SHIFT))
    num_segments = 0
    num_left = 0
    segment = 0
    latest = 0
    for page in lines.collect():
        note = notes.get(page)
        key = int(rows.priority(page)) << PRIORITY_SHIFT
        if note & STATUS_MASK == IN_SEGMENT:
            if num_left == 0:
                segment = int(segment_of_note(note))
                num_segments += 1
                num_left = int(words[segment * SEGMENT_WORDS + COUNTS] & LOW)
                assert words[segment * SEGMENT_WORDS + PLACE] & LOW == page, f"segment {segment} begins elsewhere"
            assert segment_of_note(note) == segment, f"page {page} stands among those of segment {segment}"
            num_left -= 1
            assert num_left > 0 or words[segment * SEGMENT_WORDS + PLACE] >> 32 == page, f"segment {segment} ends elsewhere"
            key = int(words[segment * SEGMENT_WORDS + KEY])
            if heads[key] == 0:
                heads[key] = page
        assert key >= latest and num_left >= 0, f"line {key} behind line {latest}"
        latest = key
    assert num_left == 0 and memoryview(heads).tobytes() == memoryview(lines.heads).tobytes(), "a line begins elsewhere"
    return num_segments
