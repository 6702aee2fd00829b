"""LEARNED written down plainly, over lists: what `LearnedQueue` must do for one level and blocks of one page each.

What the model learns of an example, and what a segment is worth by it, is `HazardModel`'s business; whether recency chooses the victims is
`RecencyShadow`'s.
"""

from collections.abc import Callable

from unit.storage.naive_queues import NaiveQueue

from kv_cache_manager_v2.storage.eviction.hazard_model import EDGES, NUM_BUCKETS, HazardModel
from kv_cache_manager_v2.storage.eviction.recency_shadow import RecencyShadow
from kv_cache_manager_v2.storage.eviction.segment_traits import level_of_count, level_of_uses

MOST_USES = 33


class NaiveSegment:
    def __init__(self, traits: int, priority: int, stamp: tuple[int, int], uses: int) -> None:
        self.traits = traits
        self.priority = priority
        self.stamp = stamp
        self.least_uses = uses
        self.pages: list[int] = []
        """The next to go first."""
        self.ghosts: list[int] = []
        """The nearest to the root first."""
        self.num_ghosts = 0
        """Also those of which nothing but the number is known."""
        self.passed = 0
        self.crossed: set[int] = set()
        """Edges that it was looked at for."""
        self.line = 0
        """That of its value."""
        self.entered = 0
        """When it came to the end of that line."""

    def count(self) -> int:
        return len(self.pages) + self.num_ghosts


class NaiveLearned(NaiveQueue):
    def __init__(self, capacity: int, content_key: Callable[[int], int]) -> None:
        super().__init__(1, capacity)
        self.content_key = content_key
        self.model = HazardModel()
        self.clock = 0
        self.segments: list[NaiveSegment] = []
        self.num_entered = 0
        """By age."""
        self.first_pages: list[int] = []
        self.uses: dict[int, int] = {}
        """Of pages that are known."""
        self.age: dict[int, int] = {}
        """Of pages in use: the bucket in which they came back, plus 1."""
        self.branched: set[int] = set()
        self.priority: dict[int, int] = {}
        self.edges: list[int] = []
        self.shadow = RecencyShadow()
        self.part_length = 1
        self.part = 0
        self.num_in_part = 0
        self.oldest: NaiveSegment | None = None
        """All older segments have no pages."""
        self.looked: NaiveSegment | None = None
        self.chosen: NaiveSegment | None = None
        """What `least_of_oldest` found."""
        self.set_capacity(capacity)
        self.current: tuple[NaiveSegment, int] | None = None
        self.latest: dict[int, NaiveSegment] = {}
        self.returned: tuple[NaiveSegment, int, int] | None = None
        """The segment whose pages are being used, their bucket and how many."""
        self.seen: dict[bool, NaiveSegment | None] = {True: None, False: None}
        """The latest one that was looked at among those with pages, and those without; None: the oldest is next."""

    def queued(self) -> list[int]:
        return self.first_pages + [page for segment in self.segments for page in segment.pages]

    def set_capacity(self, num_slots: int) -> None:
        super().set_capacity(num_slots)
        self.edges = [max(edge * num_slots // 8, number) for number, edge in enumerate(EDGES)]
        self.shadow.set_capacity(num_slots)
        length = max(num_slots // 64, 1)
        if length != self.part_length:
            self.part_length = length
            self.part = self.clock // length
            self.num_in_part = 0
            self.shadow.restart(self.part)
            for segment in self.segments:
                self.shadow.note_come(self.part_of(segment), segment.count())
                self.shadow.note_gone(self.part_of(segment), segment.num_ghosts)
            self.shadow.is_behind = True

    def part_of(self, segment: NaiveSegment) -> int:
        return segment.stamp[0] // self.part_length

    def note_pushed(self, count: int) -> None:
        self.clock += count
        while self.part < self.clock // self.part_length:
            self.shadow.end_part(self.part, self.num_in_part)
            self.num_in_part = 0
            self.part += 1
        self.num_in_part += count
        self.shadow.is_behind = True
        self.oldest = self.pass_empty()
        self.chosen = None

    def pass_empty(self) -> NaiveSegment | None:
        segment = self.oldest
        for _ in range(64):
            if segment is None or segment.pages:
                break
            segment = self.following(segment)
        return segment

    def enter_line(self, segment: NaiveSegment, line: int, may_be_first: bool = True) -> None:
        """At its end, or in front of all if it may and is older than the first; nothing where it stands in that line."""
        if segment.line == line:
            return
        others = [one for one in self.segments if one.pages and (one.priority, one.line) == (segment.priority, line)]
        first = min(others, key=lambda one: one.entered, default=segment)
        self.num_entered += 1
        segment.line, segment.entered = line, first.entered - 1 if may_be_first and segment.stamp < first.stamp else self.num_entered

    def get_page(self, segment: NaiveSegment) -> None:
        """It is about to get its first page."""
        self.num_entered += 1
        segment.entered = self.num_entered
        if self.oldest is None or segment.stamp <= self.oldest.stamp:
            self.oldest = segment

    def segment_of(self, page: int) -> NaiveSegment | None:
        return next((segment for segment in self.segments if page in segment.pages), None)

    def bucket_of(self, segment: NaiveSegment) -> int:
        age = self.clock - segment.stamp[0]
        return next(bucket for bucket in range(NUM_BUCKETS + 1) if bucket == NUM_BUCKETS or age < self.edges[bucket + 1])

    # -- the order of age ---------------------------------------------------------------------------------------------

    def following(self, segment: NaiveSegment | None) -> NaiveSegment | None:
        """None behind the newest; of None the oldest."""
        place = 0 if segment is None else self.segments.index(segment) + 1
        return self.segments[place] if place < len(self.segments) else None

    def free(self, segment: NaiveSegment) -> None:
        for has_pages in (True, False):
            if self.seen[has_pages] is segment:
                place = self.segments.index(segment)
                self.seen[has_pages] = self.segments[place - 1] if place > 0 else None
        if self.oldest is segment:
            self.oldest = self.following(segment)
        if self.looked is segment:
            self.looked = self.following(segment)
        if self.chosen is segment:
            self.chosen = None
        self.segments.remove(segment)

    def free_if_empty(self, segment: NaiveSegment) -> None:
        if segment.count() == 0:
            self.free(segment)

    def forget_one(self) -> bool:
        found = self.next_one(False)
        if found is not None:
            self.free(found)
        return found is not None

    def pass_buckets(self, segment: NaiveSegment) -> None:
        bucket = self.bucket_of(segment)
        while segment.passed < bucket:
            if segment.count() > 0:
                self.model.learn(segment.traits, segment.passed, 0.0, segment.count())
            segment.passed += 1

    def renew(self, segment: NaiveSegment) -> None:
        self.enter_line(segment, self.model.line(segment.traits, segment.passed))

    def go_on(self) -> None:
        num_left = 64
        for edge in range(NUM_BUCKETS, 0, -1):
            # All cross in the order of their age: all that are older than the first that has not have done so.
            waiting = next((place for place, segment in enumerate(self.segments) if edge not in segment.crossed), len(self.segments))
            for segment in self.segments[waiting:]:
                if num_left == 0 or self.clock - segment.stamp[0] < self.edges[edge]:
                    break
                num_left -= 1
                segment.crossed.add(edge)
                self.pass_buckets(segment)
                if segment.pages:
                    self.renew(segment)
                elif edge == NUM_BUCKETS:
                    self.free(segment)
        for _ in range(2):
            segment_to_renew = self.next_one(True)
            if segment_to_renew is not None:
                self.renew(segment_to_renew)

    def next_one(self, has_pages: bool) -> NaiveSegment | None:
        """By sixteen looks from where the latest ones ended."""
        for _ in range(16):
            segment = self.seen[has_pages] = self.following(self.seen[has_pages])
            if segment is not None and bool(segment.pages) == has_pages:
                return segment
        return None

    # -- coming -------------------------------------------------------------------------------------------------------

    def push(self, page: int, priority: int) -> None:
        self.push_run([page], [priority])

    def push_run(self, pages: list[int], priorities: list[int]) -> None:
        self.learn_returned()
        self.ask_ghosts(pages)
        if len(pages) > 1:
            self.current = None
        known = [page for page in pages if page in self.uses]
        path = 0 if not known else 2 if known[0] in self.branched else 1
        num_new = len(pages) - len(known)
        self.note_pushed(len(pages))
        part = 0
        parts: list[tuple[list[int], int, int, int]] = []
        for place, (page, priority) in enumerate(zip(pages, priorities, strict=True)):
            uses, age = self.uses.get(page, 0), self.age.get(page, 0)
            is_last = int(place == 0 and len(pages) > 1)
            key = (uses, age, is_last, priority)
            if parts and (parts[-1][1:], is_last) == ((uses, age, priority), 0) and not (len(parts) == 1 and place == 1):
                parts[-1][0].append(page)
            else:
                parts.append(([page], key[0], key[1], priority))
        place = 0
        for some, uses, age, priority in parts:
            uses = max(uses, 1)
            is_last = int(place == 0 and len(pages) > 1)
            same = level_of_uses(uses) | age << 3 | is_last << 19
            segment = None if self.current is None or self.current[1] != same else self.current[0]
            if segment is None or not self.may_join(segment, priority):
                traits = same | level_of_count(num_new) << 11 | level_of_count(len(pages)) << 15
                traits |= level_of_count(len(pages) - place) << 20 | path << 24
                segment = self.find_room(traits, priority, (self.clock, min(part, 4095)), uses, same)
                part += 1
            if not segment.pages:
                self.get_page(segment)
            segment.pages.extend(some)
            for page in some:
                self.uses[page] = uses
                self.age.pop(page, None)
                self.branched.discard(page)
            place += len(some)

    def may_join(self, segment: NaiveSegment, priority: int) -> bool:
        return self.is_mine(segment, priority) and self.clock - segment.stamp[0] <= 1 + self.capacity // 64

    def is_mine(self, segment: NaiveSegment, priority: int) -> bool:
        return segment in self.segments and len(segment.pages) > 0 and segment.priority == priority

    def find_room(self, traits: int, priority: int, stamp: tuple[int, int], uses: int, same: int) -> NaiveSegment:
        if len(self.segments) >= self.capacity * 7 // 16 + 1024 and not self.forget_one():
            latest = self.latest.get(priority)
            if latest is not None and self.is_mine(latest, priority):
                return latest
        level = level_of_uses(uses)
        segment = NaiveSegment(traits, priority, stamp, (1, 2, 3, 5, 9, 17, 33)[level])
        self.segments.append(segment)
        self.renew(segment)
        self.current = (segment, same)
        self.latest[priority] = segment
        self.go_on()
        return segment

    def ask_ghosts(self, pages: list[int]) -> None:
        num_unknown = 0
        position = len(pages)
        while position > 0 and num_unknown < 8:
            position -= 1
            page = pages[position]
            if page in self.uses:
                num_unknown = 0
                continue
            segment = next((one for one in self.segments if one.ghosts and one.ghosts[0] == page), None)
            if segment is None:
                num_unknown += 1
                continue
            num_back = segment.num_ghosts
            is_branch = False
            if num_back > position + 1:
                num_back = position + 1
                is_branch = True
            elif num_back > 1 and pages[position - num_back + 1] != segment.ghosts[-1]:
                num_back = (num_back + 1) // 2
                is_branch = True
            self.shadow.note_miss(self.part_of(segment), num_back)
            self.pass_buckets(segment)
            bucket = self.bucket_of(segment)
            if bucket < NUM_BUCKETS:
                self.model.learn(segment.traits, bucket, 1.0, num_back)
            segment.ghosts = []
            segment.num_ghosts = 0
            self.free_if_empty(segment)
            upper = position + num_unknown
            position -= num_back - 1
            for place in range(position, upper + 1):
                if pages[place] not in self.uses:
                    self.uses[pages[place]] = min(segment.least_uses + 1, MOST_USES)
                    self.age[pages[place]] = bucket + 1
                    if is_branch:
                        self.branched.add(pages[place])
            num_unknown = 0

    def push_first(self, page: int, priority: int) -> None:
        self.first_pages.insert(0, page)
        self.priority[page] = priority
        self.uses.setdefault(page, 1)
        self.age.pop(page, None)
        self.branched.discard(page)

    # -- going --------------------------------------------------------------------------------------------------------

    def take(self, page: int) -> NaiveSegment | None:
        if page in self.first_pages:
            self.first_pages.remove(page)
            del self.priority[page]
            return None
        segment = self.segment_of(page)
        assert segment is not None
        segment.pages.remove(page)
        return segment

    def use(self, page: int) -> None:
        segment = self.take(page)
        self.uses[page] = min(self.uses[page] + 1, MOST_USES)
        if segment is None:
            return
        if self.returned is None or self.returned[0] is not segment:
            self.learn_returned()
            self.pass_buckets(segment)
            self.returned = (segment, self.bucket_of(segment), 0)
        self.returned = (segment, self.returned[1], self.returned[2] + 1)
        self.shadow.note_hit(self.part_of(segment))
        self.age[page] = self.returned[1] + 1
        if segment.count() > 0:
            self.branched.add(page)
        self.free_if_empty(segment)

    def learn_returned(self) -> None:
        if self.returned is not None:
            segment, bucket, count = self.returned
            if bucket < NUM_BUCKETS:
                self.model.learn(segment.traits, bucket, 1.0, count)
        self.returned = None

    def remove(self, page: int) -> None:
        segment = self.take(page)
        del self.uses[page]
        if segment is not None:
            self.shadow.note_left(self.part_of(segment))
            self.free_if_empty(segment)

    def evict(self, page: int) -> None:
        self.evict_run([page])

    def evict_run(self, pages: list[int]) -> None:
        """Consecutive pages of a segment are one run of ghosts."""
        while pages:
            segment = self.take(pages[0])
            del self.uses[pages[0]]
            run = [pages[0]]
            pages = pages[1:]
            if segment is None:
                continue
            while pages and pages[0] in segment.pages:
                self.take(pages[0])
                del self.uses[pages[0]]
                run.append(pages[0])
                pages = pages[1:]
            other = next((one for one in self.segments if one is not segment and one.ghosts and one.ghosts[0] == run[-1]), None)
            if other is not None:
                other.ghosts = []
                other.num_ghosts = 0
                if not other.pages:
                    self.free(other)
            segment.ghosts = [run[-1], segment.ghosts[-1] if segment.ghosts else run[0]]
            segment.num_ghosts += len(run)
            self.shadow.note_gone(self.part_of(segment), len(run))
            while sum(one.num_ghosts for one in self.segments) > 8 * self.capacity:
                if not self.forget_one():
                    break

    # -- changing places ----------------------------------------------------------------------------------------------

    def requeue(self, page: int, priority: int) -> None:
        if page in self.first_pages:
            self.first_pages.remove(page)
            self.first_pages.append(page)
            self.priority[page] = priority
            return
        segment = self.take(page)
        assert segment is not None
        self.move_to_copy(segment, page, priority)
        self.free_if_empty(segment)

    def move_to_copy(self, segment: NaiveSegment, page: int, priority: int) -> None:
        self.learn_returned()
        copy = self.find_copy(segment, priority)
        if not copy.pages:
            self.get_page(copy)
        copy.pages.append(page)

    def find_copy(self, segment: NaiveSegment, priority: int) -> NaiveSegment:
        place = self.segments.index(segment)
        for other in self.segments[place : place + 4]:
            if other.stamp != segment.stamp:
                break
            if other.priority == priority:
                return other
        copy = NaiveSegment(segment.traits, priority, segment.stamp, segment.least_uses)
        copy.passed = segment.passed
        copy.crossed = set(segment.crossed)
        self.renew(copy)
        self.segments.insert(place + 1, copy)
        return copy

    def put_after(self, segment: NaiveSegment, other: NaiveSegment, priority: int) -> bool:
        """The whole segment goes after the other one, until its value is computed."""
        may_be_asked = not self.shadow.rules or self.is_surplus(segment)
        if segment is other or not may_be_asked or not segment.priority == other.priority == priority or segment.line > other.line:
            return False
        line = other.line + int(segment.line == other.line)
        if line < 256:
            self.enter_line(segment, line, False)
        return line < 256

    def defer(self, page: int, priority: int, below: int) -> None:
        here, there = self.segment_of(page), self.segment_of(below)
        if here is not None and there is not None and self.put_after(here, there, priority):
            return
        segment = self.take(page)
        source = segment if there is None else there
        if source is None:
            self.first_pages.append(page)
            self.priority[page] = priority
        else:
            self.move_to_copy(source, page, priority)
        if segment is not None:
            self.free_if_empty(segment)

    def first(self) -> int:
        queued = [segment for segment in self.segments if segment.pages]
        least = min(queued, key=lambda segment: (segment.priority, segment.line, segment.entered), default=None)
        page = min(self.first_pages, key=lambda page: self.priority[page], default=None)
        if page is not None and (least is None or self.priority[page] <= least.priority):
            return page
        assert least is not None
        if self.shadow.is_behind:
            self.shadow.trim(sum(len(segment.pages) for segment in queued) - self.num_in_part, self.part)
        if self.shadow.rules and not self.is_surplus(least):
            oldest = self.least_of_oldest()
            if oldest is not None and oldest.priority == least.priority:
                return oldest.pages[0]
        return least.pages[0]

    def is_surplus(self, segment: NaiveSegment) -> bool:
        """Whether recency would not have it."""
        return self.part_of(segment) < self.shadow.oldest

    def least_of_oldest(self) -> NaiveSegment | None:
        """By 32 looks, of those that recency would not have; the oldest where there are none. Until pages are pushed the same one, while
        it has pages."""
        if self.chosen is not None and self.chosen.pages and self.is_surplus(self.chosen):
            return self.chosen
        oldest = self.pass_empty()
        if oldest is None or not oldest.pages:
            return None
        self.oldest = best = oldest
        if not self.is_surplus(oldest):
            return oldest
        segment = self.looked
        for _ in range(32):
            if segment is None or not self.is_surplus(segment):
                segment = oldest
            if segment.pages and (segment.priority, segment.line) < (best.priority, best.line):
                best = segment
            segment = self.following(segment)
        self.looked = segment
        self.chosen = best
        return best
