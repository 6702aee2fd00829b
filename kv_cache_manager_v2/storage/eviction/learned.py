"""Pages by what keeping them can be expected to yield, learned from what came back (`HazardModel`).

Pages that a request releases become *segments* (`segment_table`): runs of equal priority and use class, its last block one of its own.
The next victim is the first page, the one farthest from the root, of the segment of least priority and then least value.
Pages that are to go before all others of their priority are in a list of their own, and nothing is learned of them.

What is gone is remembered as the ghosts of its segment (`SegmentRecords`), for eight times as many pages as there are slots. Of a run,
they are asked for from the first new block of the path on, until several in a row are unknown: what lies below content that was
never there was never there either.

A page's place in its segment costs nothing beside its row: rows are linked in a circle.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..eviction_queue import EvictionQueue
from ..page_rows import LINKS, LOW_MASK, NO_SHIFT, ROW_WORDS, PageRows
from ..victim_queue import NO_VICTIM, NUM_PRIORITIES, ContentKeys, VictimQueue
from .block_mates import BlockMates
from .page_notes import (
    FIRST_BIT,
    IN_SEGMENT,
    IN_USE,
    MOVING,
    STATUS_MASK,
    UNKNOWN,
    USES_MASK,
    PageNotes,
    in_segment,
    in_use,
    segment_of_note,
    uses_of_note,
)
from .returned_pages import ReturnedPages
from .run_splitter import RunSplitter
from .segment_records import SegmentRecords
from .segment_heap import NOTHING, SegmentHeap
from .segment_pages import SegmentPages
from .segment_table import (
    COUNTS,
    KEY,
    LOW,
    NO_SEGMENT,
    PLACE as SEGMENT_PLACE,
    PRIORITY_SHIFT,
    SEGMENT_WORDS,
    STAMP,
    STAMP_SHIFT,
    STATE,
    TRAITS_MASK,
    SegmentTable,
    count_all,
)
from .segment_traits import MOST_USES, PATH_SHIFT, WAITING, waits

_USES_BITS: Final = 6
"""In a description: below the traits of the page's segment."""


@final
@mypyc_attr(native_class=True)
class LearnedQueue(VictimQueue):
    __slots__ = (
        "records", "first_pages", "_rows", "_keys", "_notes", "_table", "_heap", "_circles", "_number", "_num_in_segments", "_one",
        "_splitter", "_returned",
    )  # fmt: skip

    records: Final[SegmentRecords]
    first_pages: Final[EvictionQueue]
    """Pages that go before all others of their priority."""
    _rows: Final[PageRows]
    _notes: Final[PageNotes]
    _table: Final[SegmentTable]
    _heap: Final[SegmentHeap]
    _circles: Final[SegmentPages]
    _number: Final[i64]
    """Of this queue in the records."""
    _num_in_segments: i64
    _one: Final[vec[i64]]
    _splitter: Final[RunSplitter]
    _returned: Final[ReturnedPages]

    def __init__(self, rows: PageRows, first_sentinel: i64, keys: ContentKeys, records: SegmentRecords) -> None:
        """``first_sentinel``: of a row per priority."""
        self.num_pages = 0
        self.records = records
        self.first_pages = EvictionQueue(rows, first_sentinel)
        self._rows = rows
        self._keys: Final = keys
        self._notes = records.notes
        self._notes.join(rows)
        self._table = records.table
        self._number = records.add_level(True)
        self._heap = records.heaps[self._number]
        self._circles = SegmentPages(rows, records.table, self._heap)
        self._num_in_segments = 0
        self._one = vec[i64]([0])
        self._splitter = RunSplitter(rows, records, self._circles, self._number)
        self._returned = ReturnedPages(records)

    # -- coming -------------------------------------------------------------------------------------------------------

    def push(self, page: i64) -> None:
        note = self._notes.get(page)
        if note & STATUS_MASK == MOVING:
            self._arrive(page, note)
            return
        self._one[0] = page
        self.push_run(self._one, 1)

    def push_run(self, pages: vec[i64], count: i64) -> None:
        if count == 0:
            return
        self._returned.learn()
        if self.records.ghosts.num_runs > 0:
            self._returned.ask_ghosts(self._keys, pages, count)
        self._splitter.see(pages, count)
        mates = self.records.block_mates
        if mates is not None:
            count = self._take_mates_along(mates, pages, count)
            pages = mates.run
        self.records.note_pushed(count)
        self.records.num_pages += count
        self._splitter.put_run(pages, count)
        self.num_pages += count
        self._num_in_segments += count

    def _take_mates_along(self, mates: BlockMates, pages: vec[i64], count: i64) -> i64:
        """`BlockMates.run` gets the pages, behind each leading one what is queued of its block; how many these are."""
        run = mates.reserve_run(count)
        taken = mates.taken
        others = mates.others
        leading = mates.leading
        rows = self._rows
        first_of_all = rows.first_page_of_blocks
        shift = rows.block_shift
        width = rows.num_life_cycles
        notes = self._notes.notes
        table = self._table
        known: i64 = NO_SEGMENT
        is_ours = False
        num_pages: i64 = 0
        num_taken: i64 = 0
        position: i64 = 0
        while position < count:
            page = pages[position]
            position += 1
            run[num_pages] = page
            num_pages += 1
            # What `BlockMates.first_page` does, without a call for each page.
            number = (page - first_of_all) >> shift if shift != NO_SHIFT else rows.block_number(page)
            first_page = first_of_all + number * width
            if page != first_page + leading:
                continue
            for life_cycle in others:
                note = i64(notes[first_page + life_cycle])
                if note & STATUS_MASK != IN_SEGMENT:
                    continue
                segment = segment_of_note(note)
                if segment != known:
                    known = segment
                    is_ours = table.queue_of(segment) == self._number
                if is_ours:
                    run[num_pages] = first_page + life_cycle
                    num_pages += 1
                    taken[num_taken] = first_page + life_cycle
                    num_taken += 1
        self._take_along(mates, num_taken)
        return num_pages

    def _take_along(self, mates: BlockMates, count: i64) -> None:
        """The first ``count`` pages of `BlockMates.taken` leave their segments, and become of their leading page's class: so they share
        its segment."""
        taken = mates.taken
        notes = self._notes.notes
        begin: i64 = 0
        while begin < count:
            segment = segment_of_note(i64(notes[taken[begin]]))
            end = self._notes.end_of_segment(segment, taken, begin, count)
            self._leave_together(segment, taken, begin, end)
            part = self.records.part_of(self._table.words[segment * SEGMENT_WORDS + STAMP])
            self.records.shadow.note_left(part, end - begin)
            self._free_if_empty(segment)
            while begin < end:
                page = taken[begin]
                notes[page] = notes[mates.first_page(page) + mates.leading]
                begin += 1

    def push_described(self, page: i64, description: i64, passed: i64) -> None:
        uses = description & USES_MASK
        if uses == 0:
            self.push(page)
            return
        self.records.note_pushed(passed)
        segment = self._splitter.find_described(description >> _USES_BITS & TRAITS_MASK, self._rows.priority(page), passed > 0)
        self._put_in(segment, page, uses if uses < MOST_USES else MOST_USES)

    def push_first(self, page: i64) -> None:
        self._one[0] = page
        self.push_run_first(self._one, 1)

    def push_run_first(self, pages: vec[i64], count: i64) -> None:
        notes = self._notes.notes
        for position in range(count):
            page = pages[position]
            uses = uses_of_note(i64(notes[page]))
            if uses == 0:
                uses = 1
            entry: int = in_use(uses, 0, False) | FIRST_BIT
            notes[page] = entry
        self.first_pages.push_run_first(pages, count)
        self.num_pages += count

    # -- going --------------------------------------------------------------------------------------------------------

    def _leave(self, page: i64, note: i64) -> i64:
        """Out of its segment, which stays even where that was the last page; the segment. NO_SEGMENT for a page that goes first."""
        self.num_pages -= 1
        if note & FIRST_BIT != 0 and note & STATUS_MASK == IN_USE:
            self.first_pages.remove(page)
            return NO_SEGMENT
        assert note & STATUS_MASK == IN_SEGMENT, "a page left an eviction queue that it was not in"
        self._num_in_segments -= 1
        self.records.num_pages -= 1
        segment = segment_of_note(note)
        self._circles.remove(segment, page)
        return segment

    def _free_if_empty(self, segment: i64) -> None:
        if segment != NO_SEGMENT and self._table.words[segment * SEGMENT_WORDS + COUNTS] == 0:
            self._table.free(segment)

    def use(self, page: i64) -> None:
        note = self._notes.get(page)
        segment = self._leave(page, note)
        if segment == NO_SEGMENT:
            uses = uses_of_note(note)
            self._notes.set(page, in_use(uses + 1 if uses < MOST_USES else uses, 0, False))
            return
        self._one[0] = page
        self._returned.begin(segment)
        self._returned.take(self._one, 0, 1, count_all(self._table.words[segment * SEGMENT_WORDS + COUNTS]))
        self._free_if_empty(segment)

    def use_run(self, pages: vec[i64], count: i64) -> None:
        begin: i64 = 0
        while begin < count:
            note = self._notes.get(pages[begin])
            self.use(pages[begin])
            begin += 1
            if note & STATUS_MASK == IN_SEGMENT:
                segment = segment_of_note(note)
                end = self._notes.end_of_segment(segment, pages, begin, count)
                if end > begin:
                    self._leave_together(segment, pages, begin, end)
                    self._returned.take(pages, begin, end, count_all(self._table.words[segment * SEGMENT_WORDS + COUNTS]))
                    self._free_if_empty(segment)
                    begin = end

    def _leave_together(self, segment: i64, pages: vec[i64], begin: i64, end: i64) -> None:
        """All of them out of their segment, which stays."""
        count = end - begin
        self.num_pages -= count
        self._num_in_segments -= count
        self.records.num_pages -= count
        self._circles.remove_run(segment, pages, begin, end)

    def remove(self, page: i64) -> None:
        segment = self._leave(page, self._notes.get(page))
        self._notes.set(page, UNKNOWN)
        if segment != NO_SEGMENT:
            self.records.shadow.note_left(self.records.part_of(self._table.words[segment * SEGMENT_WORDS + STAMP]))
        self._free_if_empty(segment)

    def evict(self, page: i64) -> None:
        segment = self._leave(page, self._notes.get(page))
        self._notes.set(page, UNKNOWN)
        if segment != NO_SEGMENT:
            key = self._keys.content_key(page)
            self.records.add_ghosts(segment, key, key, 1)

    def evict_run(self, pages: vec[i64], count: i64) -> None:
        notes = self._notes.notes
        begin: i64 = 0
        while begin < count:
            note = i64(notes[pages[begin]])
            if note & STATUS_MASK != IN_SEGMENT:
                begin = self._evict_first(pages, begin, count)
                continue
            segment = segment_of_note(note)
            end = self._notes.end_of_segment(segment, pages, begin, count)
            self._leave_together(segment, pages, begin, end)
            for position in range(begin, end):
                notes[pages[position]] = 0
            key = self._keys.content_key(pages[begin])
            top_key = key if end - begin == 1 else self._keys.content_key(pages[end - 1])
            self.records.add_ghosts(segment, key, top_key, end - begin)
            begin = end

    def _evict_first(self, pages: vec[i64], begin: i64, count: i64) -> i64:
        """Those from ``begin`` on that go before all others; how far they go."""
        notes = self._notes.notes
        end = begin
        while end < count and i64(notes[pages[end]]) & STATUS_MASK != IN_SEGMENT:
            assert i64(notes[pages[end]]) & FIRST_BIT != 0, "a page was evicted that is in no queue"
            notes[pages[end]] = 0
            end += 1
        self.first_pages.evict_run(pages[begin:end], end - begin)
        self.num_pages -= end - begin
        return end

    def take_victim(self, page: i64) -> None:
        if self.records.learns_below(self._number):
            self._set_out(page)
        else:
            self.evict(page)

    def take_out(self, page: i64) -> None:
        if self.records.all_learn:
            self._set_out(page)
        else:
            self.remove(page)

    def _set_out(self, page: i64) -> None:
        """To another slot: its segment is left as it is, so that the page finds it when it arrives."""
        note = self._notes.get(page)
        segment = self._leave(page, note)
        if segment == NO_SEGMENT:
            self._notes.set(page, note & ~FIRST_BIT)
        else:
            self._notes.set(page, note - IN_SEGMENT + MOVING)

    def _arrive(self, page: i64, note: i64) -> None:
        """From another queue, or this one: no request has used it, and it is as old as it was."""
        self._returned.learn()
        source = segment_of_note(note)
        uses = uses_of_note(note)
        if not self._table.is_used(source):
            # Forgotten meanwhile.
            self._one[0] = page
            self._notes.set(page, in_use(uses, 0, False))
            self.push_run(self._one, 1)
            return
        self._put_in(self.records.find_copy(source, self._number, self._rows.priority(page)), page, uses)

    def _put_in(self, segment: i64, page: i64, uses: i64, behind: i64 = NO_VICTIM) -> None:
        """Into a segment of this queue: as its last page, or behind another one."""
        if behind == NO_VICTIM:
            self._one[0] = page
            self._circles.add(segment, self._one, 0, 1)
        else:
            self._circles.insert_behind(segment, page, behind)
        self._notes.set(page, in_segment(segment, uses))
        self.num_pages += 1
        self._num_in_segments += 1
        self.records.num_pages += 1

    def forget(self, page: i64) -> None:
        if not self.records.all_learn:
            # It may be dropped from a queue that has no such notes.
            self._notes.set(page, UNKNOWN)

    # -- changing places ----------------------------------------------------------------------------------------------

    def requeue(self, page: i64) -> None:
        """As old as it was, and with the same value."""
        note = self._notes.get(page)
        if note & STATUS_MASK != IN_SEGMENT:
            self.first_pages.requeue(page)
            return
        segment = self._leave(page, note)
        self._arrive(page, note - IN_SEGMENT + MOVING)
        self._free_if_empty(segment)

    def defer(self, page: i64, below: i64) -> None:
        note = self._notes.get(page)
        below_note = self._notes.get(below)
        if note & STATUS_MASK != IN_SEGMENT or below_note & STATUS_MASK != IN_SEGMENT or not self.records.put_after(
            segment_of_note(note), segment_of_note(below_note), self._number, self._rows.priority(page)
        ):  # fmt: skip
            self._move_behind(page, below)

    def _move_behind(self, page: i64, below: i64) -> None:
        """It takes over the segment of the other, or its place in the list of those that are evicted first."""
        note = self._notes.get(page)
        segment = self._leave(page, note)
        below_note = self._notes.get(below)
        priority = self._rows.priority(page)
        if below_note & STATUS_MASK == IN_SEGMENT:
            other = segment_of_note(below_note)
            behind = below if self._table.has_pages_of(other, self._number, priority) else NO_VICTIM
            if behind != NO_VICTIM or self.records.is_of_other_level(other, self._number):
                other = other if behind != NO_VICTIM else self.records.find_equal(other, self._number, priority)
                self._put_in(other, page, uses_of_note(note), behind)
                self._free_if_empty(segment)
                return
        elif below_note & FIRST_BIT != 0 and self._rows.priority(below) == priority and self._rows.level(below) == self._rows.level(page):
            self.first_pages.insert_behind(page, below)
            self._notes.set(page, in_use(uses_of_note(note), 0, False) | FIRST_BIT)
            self.num_pages += 1
            self._free_if_empty(segment)
            return
        if segment == NO_SEGMENT:
            self.first_pages.push(page)
            self.num_pages += 1
        else:
            self._arrive(page, note - IN_SEGMENT + MOVING)
            self._free_if_empty(segment)

    def stands_first(self, page: i64) -> bool:
        return self._notes.get(page) & (FIRST_BIT | STATUS_MASK) == FIRST_BIT | IN_USE

    # -- who is next --------------------------------------------------------------------------------------------------

    def first(self) -> i64:
        return self._find_first(not self.records.learns_below(self._number))

    def first_to_drop(self) -> i64:
        return self._find_first(self.records.all_learn or not self.records.learns_below(self._number))

    def _find_first(self, is_dropped: bool) -> i64:
        page = self._first(is_dropped)
        mates = self.records.block_mates
        while mates is not None and page != NO_VICTIM and self._goes_later(mates, page):
            page = self._first(is_dropped)
        return page

    def _goes_later(self, mates: BlockMates, page: i64) -> bool:
        """A victim goes after its block's leading page: to those that wait, if that one was reused, or behind it in its segment."""
        note = self._notes.get(page)
        if note & STATUS_MASK != IN_SEGMENT:
            return False
        segment = segment_of_note(note)
        if not mates.waits(page):
            leading = mates.first_page(page) + mates.leading
            leading_note = self._notes.get(leading)
            if page == leading or leading_note & STATUS_MASK != IN_SEGMENT or segment_of_note(leading_note) == segment:
                return False
            if not self._table.has_pages_of(segment_of_note(leading_note), self._number, self._rows.priority(page)):
                return False
            self._move_behind(page, leading)
            return True
        words = self._table.words
        if waits(words[segment * SEGMENT_WORDS + STATE]):
            return False
        self._leave(page, note)
        self.records.shadow.note_left(self.records.part_of(words[segment * SEGMENT_WORDS + STAMP]))
        self._free_if_empty(segment)
        self.records.note_pushed(1)
        waiting = self._splitter.find_segment(WAITING << PATH_SHIFT, self._rows.priority(page), 0)
        self._put_in(waiting, page, uses_of_note(note))
        return True

    def _first(self, is_dropped: bool) -> i64:
        segment = self._heap.first()
        page = self.first_pages.first()
        if segment == NOTHING:
            return page
        words = self._table.words
        at = segment * SEGMENT_WORDS
        if page != NO_VICTIM and self._rows.priority(page) <= words[at + KEY] >> PRIORITY_SHIFT:
            return page
        oldest = self.records.find_oldest(self._number, segment) if is_dropped else NO_SEGMENT
        if oldest != NO_SEGMENT and words[oldest * SEGMENT_WORDS + KEY] >> PRIORITY_SHIFT == words[at + KEY] >> PRIORITY_SHIFT:
            at = oldest * SEGMENT_WORDS
        return words[at + SEGMENT_PLACE] & LOW

    def list_following(self, page: i64, pages: vec[i64], begin: i64, end: i64) -> i64:
        note = self._notes.get(page)
        if note & STATUS_MASK != IN_SEGMENT:
            return self.first_pages.list_following(page, pages, begin, end)
        words = self._rows.words
        segment = segment_of_note(note)
        at = segment * SEGMENT_WORDS
        first = self._table.words[at + SEGMENT_PLACE] & LOW
        position = begin
        while position < end:
            page = words[page * ROW_WORDS + LINKS] & LOW_MASK
            if page == first:
                break
            pages[position] = page
            position += 1
        return position - begin

    def reserve_capacity(self, num_slots: i64) -> None:
        self.records.reserve(self._number, num_slots)

    def set_capacity(self, num_slots: i64) -> None:
        self._splitter.capacity = num_slots
        self.records.set_capacity(self._number, num_slots)

    # -- for checks ---------------------------------------------------------------------------------------------------

    def collect(self) -> list[int]:
        """By priority; those that go first before the others, then by value."""
        by_priority: list[list[int]] = [[] for _ in range(NUM_PRIORITIES)]
        for page in self.first_pages.collect():
            by_priority[self._rows.priority(page)].append(page)
        words = self._table.words
        for segment in self._heap.collect():
            by_priority[words[i64(segment) * SEGMENT_WORDS + KEY] >> PRIORITY_SHIFT].extend(self._circles.collect(segment))
        return [page for line in by_priority for page in line]

    def describe_all(self) -> list[tuple[int, int, int]]:
        words = self._table.words
        found = [(0, page, 0) for page in self.first_pages.collect()]
        for segment in self._heap.collect():
            at = i64(segment) * SEGMENT_WORDS
            used_at = int(words[at + STAMP] >> STAMP_SHIFT)
            traits = words[at + STATE] & TRAITS_MASK
            for page in self._circles.collect(segment):
                found.append((used_at, page, int(traits << _USES_BITS | uses_of_note(self._notes.get(page)))))
        return found

    def check(self) -> None:
        counted = self._num_in_segments + self.first_pages.num_pages
        assert counted == self.num_pages, f"{counted} pages in segments and evict-first, counted {self.num_pages}"
        self.records.check_count()
