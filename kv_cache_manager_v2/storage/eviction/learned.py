"""Pages by what keeping them can be expected to yield, learned from what came back (`HazardModel`).

Pages that a request releases become *segments* (`segment_table`): runs of equal priority and use class, its last block one of its own.
Pages that are to go before all others of their priority stand in front of all segments of it, and nothing is learned of them.

Who is the next victim: `SlotReclaimer`, for pages to offload, and `DropOrder`, for pages to drop, ask `page_removal.find_victim` for the
first page in a level's queue with no page of its path below it there; where several are dropped at once, `RadixTree.drop_victims` does.
They ask the queue, with `first` or `first_to_drop`. Above a level that does not learn, what is offloaded counts as lost too. The answer:

    values decide       the first row of the list of least priority (`EvictionQueue.first`). That list has the lines of all values one
                        behind the other, least value first, so this is the first page, the one farthest from the root, of the segment of
                        least value
    recency decides     only over what is lost, and only while recency does better than values (`RecencyShadow`): the first page of an old
                        segment of little value (`SegmentRecords.find_oldest`)
    in either case      a windowed page goes after its block's leading page (`BlockMates`): it changes places, and the next is looked at

`LearnedQueue` is a `RequestRuns`, which teaches the model by what comes back and splits what is released into segments, that is a
`ValueLines`, which keeps the segments in the order of their values, and that an `EvictionQueue`, LRU's list: a page's place costs nothing
beside its row.

What is gone is remembered as the ghosts of its segment (`SegmentRecords`), for eight times as many pages as there are slots. When a
run is pushed, its new pages are looked up among them from the root on, until eight in a row are unknown: what lies below content that
was never there was never there either.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from ...config.eviction_policy import EvictionPolicy
from ..eviction_queue import EvictionQueue
from ..page_rows import LINKS, LOW_MASK, NO_SHIFT, ROW_WORDS, PageRows
from ..victim_queue import NO_VICTIM, NUM_PRIORITIES, ContentKeys, VictimQueue
from .page_notes import (
    ALL_USES,
    FIRST_BIT,
    IN_SEGMENT,
    IN_USE,
    MOVING,
    SEGMENT_SHIFT,
    STATUS_MASK,
    UNKNOWN,
    USES_MASK,
    BlockMates,
    in_segment,
    in_use,
    segment_of_note,
    uses_of_note,
)
from .request_runs import RequestRuns
from .segment_records import SegmentRecords
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
    count_all,
)
from .segment_traits import MOST_USES, PATH_SHIFT, WAITING, waits

NUM_SENTINELS: Final = NUM_PRIORITIES
"""The rows that a queue threads its lines through."""
_USES_BITS: Final = 6
"""In a description: below the traits of the page's segment."""


@final
class LearnedQueue(RequestRuns):
    __slots__ = ()

    # -- coming -------------------------------------------------------------------------------------------------------

    def push(self, page: i64) -> None:
        self.push_run(self._alone(page), 1)

    def push_run(self, pages: vec[i64], count: i64) -> None:
        count = self._put_unused_back(pages, count)
        if count == 0:
            return
        self._learn_return()
        if self._table.num_runs > 0:
            self._ask_ghosts(pages, count)
        self._see(pages, count)
        mates = self.records.block_mates
        if mates is not None:
            pages = self._take_mates_along(mates, pages, count)
            count = len(pages)
        self.records.note_pushed(count)
        self._split_run(pages, count)

    def _put_unused_back(self, pages: vec[i64], count: i64) -> i64:
        """Pages that no request has used since they left a queue go back to where they were; the others are the first of ``pages`` then:
        how many."""
        num_used: i64 = 0
        notes = self._notes.notes
        begin: i64 = 0
        while begin < count:
            page = pages[begin]
            note = i64(notes[page])
            if note & STATUS_MASK == MOVING:
                begin = self._arrive(pages, begin, count)
                continue
            if note & (FIRST_BIT | STATUS_MASK) == FIRST_BIT | IN_USE:
                self.push_first(page)
            else:
                pages[num_used] = page
                num_used += 1
            begin += 1
        return num_used

    def _take_mates_along(self, mates: BlockMates, pages: vec[i64], count: i64) -> vec[i64]:
        """The pages, behind each leading one what is queued of its block.

        What is taken along leaves its segment, and becomes of the leading page's class, so it shares its segment.
        """
        rows = self._rows
        first_of_blocks = rows.first_page_of_blocks
        block_shift = rows.block_shift
        num_life_cycles = rows.num_life_cycles
        run = vec[i64]([0] * (count * num_life_cycles))
        num_pages: i64 = 0
        taken = vec[i64]()
        notes = self._notes.notes
        others = mates.others
        for position in range(count):
            page = pages[position]
            run[num_pages] = page
            num_pages += 1
            # What `BlockMates.first_page` does, without calls for each page.
            block = (page - first_of_blocks) >> block_shift if block_shift != NO_SHIFT else rows.block_number(page)
            first_page = first_of_blocks + block * num_life_cycles
            if page == first_page + mates.leading:
                for life_cycle in others:
                    note = i64(notes[first_page + life_cycle])
                    if note & STATUS_MASK == IN_SEGMENT and self._table.queue_of(segment_of_note(note)) == self._number:
                        run[num_pages] = first_page + life_cycle
                        num_pages += 1
                        taken = append(taken, first_page + life_cycle)
        run = run[:num_pages]
        begin: i64 = 0
        while begin < len(taken):
            segment = self._notes.segment_at(taken[begin])
            end = self._notes.change_run(taken, begin, len(taken), 0)
            self.remove_run(segment, taken, begin, end)
            self.records.note_left(segment, end - begin)
            self._table.free_if_empty(segment)
            for position in range(begin, end):
                notes[taken[position]] = notes[mates.first_page(taken[position]) + mates.leading]
            begin = end
        return run

    def push_described(self, page: i64, description: i64, passed: i64) -> None:
        uses = description & USES_MASK
        if uses == 0:
            self.push(page)
            return
        self.records.note_pushed(passed)
        segment = self._find_described(description >> _USES_BITS & TRAITS_MASK, self._rows.priority(page), passed > 0)
        self._notes.set(page, in_use(uses if uses < MOST_USES else MOST_USES, 0, False))
        self._put_in(segment, page)

    def push_first(self, page: i64) -> None:
        self.push_run_first(self._alone(page), 1)

    def push_run_first(self, pages: vec[i64], count: i64) -> None:
        notes = self._notes.notes
        for position in range(count):
            page = pages[position]
            notes[page] = i32(in_use(max(uses_of_note(i64(notes[page])), 1), 0, False) | FIRST_BIT)
        super().push_run_first(pages, count)

    # -- going --------------------------------------------------------------------------------------------------------

    def _leave(self, page: i64) -> i64:
        """Out of its segment, which stays even where that was the last page; the segment. NO_SEGMENT for a page that goes first."""
        segment = self._notes.segment_at(page)
        if segment != NO_SEGMENT:
            self.remove_run(segment, self._alone(page), 0, 1)
        else:
            assert self.stands_first(page), "a page left an eviction queue that it was not in"
            super().remove(page)
        return segment

    def use(self, page: i64) -> None:
        note = self._notes.get(page)
        segment = self._leave(page)
        if segment == NO_SEGMENT:
            self._notes.set(page, _used_again(note))
            return
        self._begin_return(segment)
        self._take_back(self._alone(page), 0, 1, count_all(self._table.words[segment * SEGMENT_WORDS + COUNTS]))
        self._table.free_if_empty(segment)

    def hold_run(self, pages: vec[i64], count: i64) -> None:
        begin: i64 = 0
        while begin < count:
            segment = self._leave(pages[begin])
            end = begin + 1
            if segment != NO_SEGMENT:
                # The page that has left is no example of passing.
                self.records.pass_buckets(segment)
                end = self._notes.change_run(pages, begin, count, MOVING - IN_SEGMENT)
                if begin + 1 < end:
                    self.remove_run(segment, pages, begin + 1, end)
                self.records.note_left(segment, end - begin)
            begin = end

    def use_held_run(self, pages: vec[i64], count: i64) -> None:
        num_held: dict[int, int] = {}
        ends = vec[i64]()
        begin: i64 = 0
        while begin < count:
            segment = self._held_segment(pages[begin])
            end = self._notes.change_run(pages, begin, count, 0)
            if segment != NO_SEGMENT:
                num_held[int(segment)] = num_held.get(int(segment), 0) + int(end - begin)
            ends = append(ends, end)
            begin = end
        begin = 0
        for end in ends:
            segment = self._held_segment(pages[begin])
            if segment != NO_SEGMENT:
                num_held[int(segment)] -= int(end - begin)
                self._begin_return(segment)
                # They are counted as hits, of the part that they had left.
                self.records.note_come(segment, end - begin)
                num_left = count_all(self._table.words[segment * SEGMENT_WORDS + COUNTS]) + num_held[int(segment)]
                self._take_back(pages, begin, end, num_left)
                self._table.free_if_empty(segment)
            else:
                for position in range(begin, end):
                    note = self._notes.get(pages[position])
                    if note & STATUS_MASK == MOVING or self.stands_first(pages[position]):
                        self._notes.set(pages[position], _used_again(note))
            begin = end

    def _held_segment(self, page: i64) -> i64:
        """The segment that a held page was in, if no request has used it since, and the segment is known still; or NO_SEGMENT."""
        note = self._notes.get(page)
        segment = segment_of_note(note)
        return segment if note & STATUS_MASK == MOVING and self._table.is_used(segment) else NO_SEGMENT

    def remove(self, page: i64) -> None:
        segment = self._leave(page)
        self._notes.set(page, UNKNOWN)
        if segment != NO_SEGMENT:
            self.records.note_left(segment, 1)
        self._table.free_if_empty(segment)

    def evict(self, page: i64) -> None:
        self.evict_run(self._alone(page), 1)

    def evict_run(self, pages: vec[i64], count: i64) -> None:
        notes = self._notes.notes
        begin: i64 = 0
        while begin < count:
            segment = self._notes.segment_at(pages[begin])
            end = self._notes.change_run(pages, begin, count, 0)
            if segment != NO_SEGMENT:
                self.remove_run(segment, pages, begin, end)
                key = self._keys.content_key(pages[begin])
                top_key = key if end - begin == 1 else self._keys.content_key(pages[end - 1])
                self.records.add_ghosts(segment, key, top_key, end - begin)
            else:
                self._unlink(pages, begin, end)
            while begin < end:
                notes[pages[begin]] = UNKNOWN
                begin += 1

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
        segment = self._leave(page)
        if segment == NO_SEGMENT:
            self._notes.set(page, note & ~FIRST_BIT)
        else:
            self._notes.set(page, note - IN_SEGMENT + MOVING)
            self.records.note_left(segment, 1)

    def _arrive(self, pages: vec[i64], begin: i64, count: i64) -> i64:
        """From another queue, or this one: ``pages[begin]``, and what follows of its segment. Where that ends."""
        note = self._notes.get(pages[begin])
        segment = segment_of_note(note)
        if self._table.is_used(segment):
            end = self._notes.change_run(pages, begin, count, 0)
            self.records.note_come(segment, end - begin)
            while begin < end:
                behind = begin + 1
                while behind < end and self._rows.priority(pages[behind]) == self._rows.priority(pages[begin]):
                    behind += 1
                goal = self._find_like(segment, pages[begin])
                self.add(goal, pages, begin, behind)
                begin = self._notes.change_run(pages, begin, behind, ((goal - segment) << SEGMENT_SHIFT) + IN_SEGMENT - MOVING)
            return end
        # Forgotten meanwhile.
        self._notes.set(pages[begin], in_use(uses_of_note(note), 0, False))
        self.push(pages[begin])
        return begin + 1

    def _find_like(self, segment: i64, page: i64) -> i64:
        """That segment, or one of this queue and the page's priority that is as old and as likely to come back: no request has used the
        page."""
        self._learn_return()
        return self.records.find_copy(segment, self._number, self._rows.priority(page))

    def _put_in(self, segment: i64, page: i64) -> None:
        """Into a segment of this queue, as its last one, used as often as it was."""
        self.add(segment, self._alone(page), 0, 1)
        self._notes.set(page, in_segment(segment, uses_of_note(self._notes.get(page))))

    def forget(self, page: i64) -> None:
        if not self.records.all_learn:
            # It may be dropped from a queue that has no such notes.
            if self._rows.num_holds(page) > 0:
                self.use_held_run(self._alone(page), 1)
            self._notes.set(page, UNKNOWN)

    # -- changing places ----------------------------------------------------------------------------------------------

    def requeue(self, page: i64) -> None:
        """As old as it was, and with the same value."""
        self._stand_again(page, self._notes.segment_at(page))

    def defer(self, page: i64, below: i64) -> None:
        """All of the page's segment goes after that of the other: what stands in it is above the page mostly, and so above the other. The
        page alone goes into the other's segment where that would not help."""
        segment = self._notes.segment_at(page)
        other = self._notes.segment_at(below)
        if segment == NO_SEGMENT or other == NO_SEGMENT or not self.records.put_after(segment, other, self._rows.priority(page)):
            self._stand_again(page, segment if other == NO_SEGMENT else other)

    def _stand_again(self, page: i64, like: i64) -> None:
        """The page goes to one that is like that segment, or to those that go before all others."""
        segment = self._leave(page)
        if like == NO_SEGMENT:
            super().push(page)
        else:
            self._put_in(self._find_like(like, page), page)
        self._table.free_if_empty(segment)

    def stands_first(self, page: i64) -> bool:
        return self._notes.get(page) & (FIRST_BIT | STATUS_MASK) == FIRST_BIT | IN_USE

    # -- who is next --------------------------------------------------------------------------------------------------

    def first(self) -> i64:
        return self._find_first(not self.records.learns_below(self._number))

    def first_to_drop(self) -> i64:
        return self._find_first(self.records.all_learn or not self.records.learns_below(self._number))

    def _find_first(self, is_dropped: bool) -> i64:
        mates = self.records.block_mates
        while True:
            page = super().first()  # of `EvictionQueue`: the least value
            if page == NO_VICTIM or self.stands_first(page):
                return page
            if is_dropped:
                oldest = self.records.find_oldest(self._number, self._notes.segment_at(page))
                words = self._table.words
                if oldest != NO_SEGMENT and words[oldest * SEGMENT_WORDS + KEY] >> PRIORITY_SHIFT == self._rows.priority(page):
                    page = words[oldest * SEGMENT_WORDS + SEGMENT_PLACE] & LOW
            if mates is None or not self._goes_later(mates, page):
                return page

    def _goes_later(self, mates: BlockMates, page: i64) -> bool:
        """A victim goes after its block's leading page: to those that wait, if that one was reused, or into its segment. Its own stays, as
        `_leave` says: other pages of it may be held, and come back there."""
        segment = self._notes.segment_at(page)
        priority = self._rows.priority(page)
        if mates.waits(page):
            if waits(self._table.words[segment * SEGMENT_WORDS + STATE]):
                return False
            self._leave(page)
            self.records.note_left(segment, 1)
            self.records.note_pushed(1)
            goal = self._find_segment(WAITING << PATH_SHIFT, priority, 0)
        else:
            goal = self._notes.segment_at(mates.first_page(page) + mates.leading)
            if goal == segment or not self._table.has_pages_of(goal, self._number, priority):
                return False
            self._leave(page)
        self._put_in(goal, page)
        return True

    def list_following(self, page: i64, pages: vec[i64], begin: i64, end: i64) -> i64:
        """Those of its segment, or those that go before all others."""
        words = self._rows.words
        notes = self._notes.notes
        kind = i64(notes[page]) & ~ALL_USES
        position = begin
        while position < end:
            page = words[page * ROW_WORDS + LINKS] & LOW_MASK
            if i64(notes[page]) & ~ALL_USES != kind:
                break
            pages[position] = page
            position += 1
        return position - begin

    def reserve_capacity(self, num_slots: i64) -> None:
        self.records.reserve(self._number, num_slots)

    def set_capacity(self, num_slots: i64) -> None:
        self.records.set_capacity(self._number, num_slots)

    # -- for checks ---------------------------------------------------------------------------------------------------

    def describe_all(self) -> list[tuple[int, int, int]]:
        words = self._table.words
        pages = self.collect()
        found = [(0, page, 0) for page in pages if self.stands_first(page)]
        for page in pages:
            at = self._notes.segment_at(page) * SEGMENT_WORDS
            if at != NO_SEGMENT:
                known = (words[at + STATE] & TRAITS_MASK) << _USES_BITS | uses_of_note(self._notes.get(page))
                found.append((int(words[at + STAMP] >> STAMP_SHIFT), page, int(known)))
        return found

    def check(self) -> None:
        self.records.check_count()


def _used_again(note: i64) -> i64:
    """The note of a page whose segment is not known."""
    uses = uses_of_note(note)
    return in_use(uses + 1 if uses < MOST_USES else uses, 0, False)


def make_queue(
    policy: EvictionPolicy,
    rows: PageRows,
    first_sentinel: i64,
    keys: ContentKeys,
    num_slots: i64,
    records: SegmentRecords,
) -> VictimQueue:
    """``first_sentinel``: of NUM_SENTINELS rows. ``records``: of the pool group, for the queues of its
    levels in their order, whatever their policies.
    """
    queue: VictimQueue = EvictionQueue(rows, first_sentinel)
    if policy is EvictionPolicy.LEARNED:
        queue = LearnedQueue(rows, first_sentinel, keys, records)
    else:
        records.add_level(None)
    queue.set_capacity(num_slots)
    return queue
