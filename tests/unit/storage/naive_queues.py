"""Eviction policies written down plainly, over lists: what the queues must do, in so many words."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from kv_cache_manager_v2.storage.eviction.ghost_table import bucket_of
from kv_cache_manager_v2.storage.eviction.learned_lines import MOST_AGED
from kv_cache_manager_v2.storage.eviction.recency_shadow import RecencyShadow
from kv_cache_manager_v2.storage.eviction.reuse_rates import ReuseRates


class NaiveQueue(ABC):
    """Pages in lines; ``priority_of`` is looked at when a page is pushed or requeued."""

    def __init__(self, num_lines: int, capacity: int) -> None:
        self.lines: list[list[int]] = [[] for _ in range(num_lines)]
        self.capacity = capacity
        self.priority: dict[int, int] = {}
        """Of pages in a line."""
        self.in_use: set[int] = set()

    def queued(self) -> list[int]:
        return [page for line in self.lines for page in line if page not in self.in_use]

    def head(self, line: int) -> int | None:
        """Among the pages of the lowest priority of all lines."""
        lowest = min(self.priority.values())
        return next((page for page in self.lines[line] if self.priority[page] == lowest), None)

    def leave(self, page: int) -> int:
        line = next(line for line in range(len(self.lines)) if page in self.lines[line])
        self.lines[line].remove(page)
        del self.priority[page]
        return line

    def enter(self, page: int, priority: int, line: int, first: bool = False) -> None:
        self.lines[line].insert(0 if first else len(self.lines[line]), page)
        self.priority[page] = priority

    def requeue(self, page: int, priority: int) -> None:
        self.enter(page, priority, self.leave(page))

    def defer(self, page: int, priority: int, below: int) -> None:
        """Right behind ``below`` where that is in a line of the same priority."""
        if self.priority.get(below) != priority:
            self.requeue(page, priority)
            return
        self.leave(page)
        line = next(line for line in self.lines if below in line)
        line.insert(line.index(below) + 1, page)
        self.priority[page] = priority

    def set_capacity(self, num_slots: int) -> None:
        self.capacity = num_slots

    @abstractmethod
    def push(self, page: int, priority: int) -> None: ...

    def push_run(self, pages: list[int], priorities: list[int]) -> None:
        for page, priority in zip(pages, priorities, strict=True):
            self.push(page, priority)

    @abstractmethod
    def push_first(self, page: int, priority: int) -> None: ...

    @abstractmethod
    def use(self, page: int) -> None: ...

    @abstractmethod
    def remove(self, page: int) -> None: ...

    @abstractmethod
    def evict(self, page: int) -> None: ...

    @abstractmethod
    def first(self) -> int: ...


class NaiveLru(NaiveQueue):
    def __init__(self, capacity: int) -> None:
        super().__init__(1, capacity)

    def push(self, page: int, priority: int) -> None:
        self.enter(page, priority, 0)

    def push_first(self, page: int, priority: int) -> None:
        self.enter(page, priority, 0, first=True)

    def use(self, page: int) -> None:
        self.leave(page)

    def remove(self, page: int) -> None:
        self.leave(page)

    def evict(self, page: int) -> None:
        self.leave(page)

    def defer(self, page: int, priority: int, below: int) -> None:
        self.requeue(page, priority)

    def first(self) -> int:
        page = self.head(0)
        assert page is not None
        return page


class NaiveLfu(NaiveQueue):
    """One line per number of uses, 31 and more in the last."""

    def __init__(self, capacity: int) -> None:
        super().__init__(32, capacity)
        self.uses: dict[int, int] = {}

    def push(self, page: int, priority: int) -> None:
        self.enter(page, priority, min(self.uses.setdefault(page, 0), 31))

    def push_first(self, page: int, priority: int) -> None:
        self.uses[page] = 0
        self.enter(page, priority, 0, first=True)

    def use(self, page: int) -> None:
        self.leave(page)
        self.uses[page] += 1

    def defer(self, page: int, priority: int, below: int) -> None:
        super().defer(page, priority, below)
        self.uses[page] = next(line for line in range(32) if page in self.lines[line])

    def remove(self, page: int) -> None:
        self.leave(page)
        del self.uses[page]

    def evict(self, page: int) -> None:
        self.remove(page)

    def first(self) -> int:
        for line in range(32):
            page = self.head(line)
            if page is not None:
                return page
        raise AssertionError


class NaiveArc(NaiveQueue):
    """Line 0 once, line 1 again. A page's content is its number: ghosts are pages that were evicted."""

    def __init__(self, capacity: int) -> None:
        super().__init__(2, capacity)
        self.ghosts: list[list[int]] = [[], []]
        self.limits = [max(capacity, 1)] * 2
        self.target = 0
        self.known: dict[int, bool] = {}
        """Pages that have been pushed and are still there: whether they go to the second line."""

    def set_capacity(self, num_slots: int) -> None:
        super().set_capacity(num_slots)
        self.target = min(self.target, num_slots)
        self.limits = [max(num_slots, 1)] * 2
        for ghosts in self.ghosts:
            del ghosts[: max(0, len(ghosts) - max(num_slots, 1))]

    def learn(self, page: int) -> None:
        if page in self.known:
            return
        once, again = self.ghosts
        self.known[page] = page in once or page in again
        if page in once:
            self.target = min(self.capacity, self.target + max(1, len(again) // len(once)))
            once.remove(page)
        elif page in again:
            self.target = max(0, self.target - max(1, len(once) // len(again)))
            again.remove(page)

    def push(self, page: int, priority: int) -> None:
        self.learn(page)
        self.enter(page, priority, int(self.known[page]))

    def push_first(self, page: int, priority: int) -> None:
        self.learn(page)
        self.enter(page, priority, 0, first=True)

    def use(self, page: int) -> None:
        self.leave(page)
        self.known[page] = True

    def remove(self, page: int) -> None:
        self.leave(page)
        del self.known[page]

    def evict(self, page: int) -> None:
        line = self.leave(page)
        del self.known[page]
        ghosts = self.ghosts[line]
        if page in ghosts:
            ghosts.remove(page)
        elif len(ghosts) == self.limits[line]:
            del ghosts[0]
        ghosts.append(page)
        limit = max(self.capacity - len(self.lines[0]), 1)
        self.limits[0] = limit
        del self.ghosts[0][: max(0, len(self.ghosts[0]) - limit)]
        limit = max(2 * self.capacity - len(self.queued()) - len(self.ghosts[0]), 1)
        self.limits[1] = limit
        del self.ghosts[1][: max(0, len(self.ghosts[1]) - limit)]

    def first(self) -> int:
        page, other = self.head(0), self.head(1)
        if page is not None and (len(self.lines[0]) > self.target or other is None):
            return page
        assert other is not None
        return other


class NaiveS3Fifo(NaiveQueue):
    """Line 0 small, line 1 main. A page in use stays in its line until it is at the head."""

    def __init__(self, capacity: int) -> None:
        super().__init__(2, capacity)
        self.ghosts: list[int] = []
        self.uses: dict[int, int] = {}

    def set_capacity(self, num_slots: int) -> None:
        super().set_capacity(num_slots)
        most = max(num_slots - num_slots // 10, 1)
        del self.ghosts[: max(0, len(self.ghosts) - most)]

    def push(self, page: int, priority: int) -> None:
        if page in self.in_use:
            self.in_use.remove(page)
            if self.priority.get(page, priority) != priority:
                self.requeue(page, priority)
            elif page not in self.priority:
                self.enter(page, priority, 1)
            return
        self.uses[page] = 0
        self.enter(page, priority, 1 if page in self.ghosts else 0)
        if page in self.ghosts:
            self.ghosts.remove(page)

    def push_first(self, page: int, priority: int) -> None:
        self.in_use.discard(page)
        if page in self.priority:
            self.leave(page)
        self.uses[page] = 0
        self.enter(page, priority, 0, first=True)

    def use(self, page: int) -> None:
        self.uses[page] = min(3, self.uses[page] + 1)
        self.in_use.add(page)

    def remove(self, page: int) -> None:
        self.leave(page)
        del self.uses[page]

    def evict(self, page: int) -> None:
        line = self.leave(page)
        del self.uses[page]
        if line == 0:
            if page in self.ghosts:
                self.ghosts.remove(page)
            self.ghosts.append(page)
            most = max(self.capacity - self.capacity // 10, 1)
            del self.ghosts[: max(0, len(self.ghosts) - most)]

    def first(self) -> int:
        while True:
            small, main = self.head(0), self.head(1)
            line = 0 if main is None or (small is not None and len(self.lines[0]) > self.capacity // 10) else 1
            page = small if line == 0 else main
            assert page is not None
            if page in self.in_use:
                self.leave(page)
            elif line == 0 and self.uses[page] > 1:
                self.uses[page] = 0
                priority = self.priority[page]
                self.leave(page)
                self.enter(page, priority, 1)
            elif line == 1 and self.uses[page] > 0:
                self.uses[page] -= 1
                self.requeue(page, self.priority[page])
            else:
                return page


class NaiveLearned(NaiveQueue):
    """Lines: 0 and 1 by kind, 2 first of all. Worth is what `ReuseRates` says, and when recency rules what `RecencyShadow` does.

    A ghost is found in the bucket of its content, which remembers the last four; where a bucket ends is the table's business.
    """

    def __init__(self, capacity: int, content_key: Callable[[int], int]) -> None:
        super().__init__(3, capacity)
        self.rates = ReuseRates()
        self.rates.set_capacity(capacity)
        self.shadow = RecencyShadow()
        self.shadow.set_capacity(capacity)
        self.content_key = content_key
        self.ghosts: dict[int, list[tuple[int, int, int] | None]] = {}
        """By bucket: page, kind and stamp, the youngest first; None where one has been taken."""
        self.kind: dict[int, int] = {}
        """Of pages that have been pushed or used, and are still there."""
        self.stamp: dict[int, int] = {}
        self.old: set[int] = set()
        """Pages of line 0 that are known not to be young."""

    def leave(self, page: int) -> int:
        self.old.discard(page)
        return super().leave(page)

    def set_capacity(self, num_slots: int) -> None:
        """Ghosts of another number of buckets are forgotten; a part that has more pushes than one of the new size is over."""
        if num_slots != self.capacity:
            self.ghosts.clear()
        super().set_capacity(num_slots)
        stamp = int(self.rates.clock)
        self.rates.set_capacity(num_slots)
        self.shadow.set_capacity(num_slots)
        if self.rates.clock > stamp:
            self.shadow.end_part(stamp, self.rates.num_pushed)
            self.shadow.is_behind = True

    def learn(self, page: int) -> bool:
        """Whether it is known by now."""
        if page in self.kind:
            return True
        self.kind[page] = 0
        ghosts = self.ghosts.get(bucket_of(self.content_key(page), self.capacity), [])
        for place, ghost in enumerate(ghosts):
            if ghost is not None and ghost[0] == page:
                self.rates.note_return(ghost[1], ghost[2])
                self.shadow.note_miss(ghost[2])
                self.kind[page] = 1
                ghosts[place] = None
                return True
        return False

    def push_run(self, pages: list[int], priorities: list[int]) -> None:
        """The far end of a path first: what is below eight contents that were not there was not there either."""
        fresh = [page for page in reversed(pages) if page not in self.kind]
        num_unknown = 0
        for page in fresh:
            if num_unknown == 8:
                self.kind[page] = 0
            else:
                num_unknown = 0 if self.learn(page) else num_unknown + 1
        super().push_run(pages, priorities)

    def young(self, priority: int) -> list[int]:
        """Those not known to be old."""
        return [page for page in self.lines[0] if self.priority[page] == priority and page not in self.old]

    def age(self, priority: int) -> None:
        """So many at a time."""
        for page in self.young(priority)[:MOST_AGED]:
            if self.stamp[page] > self.rates.last_old:
                return
            self.old.add(page)

    def push(self, page: int, priority: int) -> None:
        self.learn(page)
        self.stamp[page] = self.rates.note_pushes(1, self.kind[page])
        self.enter(page, priority, self.kind[page])
        self.shadow.is_behind = True
        if self.rates.num_in_part == 0:
            self.shadow.end_part(self.stamp[page], self.rates.num_pushed)

    def push_first(self, page: int, priority: int) -> None:
        self.enter(page, priority, 2, first=True)

    def requeue(self, page: int, priority: int) -> None:
        line = self.leave(page)
        if line == 2:
            self.enter(page, priority, 2)
            return
        self.shadow.note_left(self.stamp[page])
        self.stamp[page] = int(self.rates.clock)
        self.enter(page, priority, self.kind[page])
        self.shadow.note_come(self.stamp[page])

    def defer(self, page: int, priority: int, below: int) -> None:
        if page not in self.lines[2]:
            self.shadow.note_left(self.stamp[page])
        if self.priority.get(below) == priority:
            super().defer(page, priority, below)
        else:
            super().requeue(page, priority)
        self.stamp[page] = self.stamp.get(below, int(self.rates.clock))
        self.kind.setdefault(page, 0)
        if page not in self.lines[2]:
            self.shadow.note_come(self.stamp[page])
        if page in self.lines[0] and page in self.young(priority)[:1]:
            # Before all that may be young, or nothing else may be.
            self.old.add(page)

    def use(self, page: int) -> None:
        if self.leave(page) != 2:
            self.rates.note_return(self.kind[page], self.stamp[page])
            self.shadow.note_hit(self.stamp[page])
        self.kind[page] = 1
        self.stamp.pop(page, None)

    def remove(self, page: int) -> None:
        if self.leave(page) != 2:
            self.shadow.note_left(self.stamp[page])
        self.kind.pop(page, None)
        self.stamp.pop(page, None)

    def evict(self, page: int) -> None:
        self.trim()
        if self.leave(page) != 2:
            self.shadow.note_gone(self.stamp[page])
            ghosts = self.ghosts.setdefault(bucket_of(self.content_key(page), self.capacity), [])
            ghosts.insert(0, (page, self.kind[page], self.stamp[page]))
            del ghosts[4:]
        self.kind.pop(page, None)
        self.stamp.pop(page, None)

    def trim(self) -> None:
        if self.shadow.is_behind:
            num_pages = len(self.lines[0]) + len(self.lines[1]) - self.rates.num_in_part
            self.shadow.trim(num_pages, self.rates.clock)

    def first(self) -> int:
        self.trim()
        page = self.head(2)
        if page is not None:
            return page
        priority = min(self.priority.values())
        self.age(priority)
        old = [page for page in self.lines[0] if self.priority[page] == priority and page in self.old]
        again = [page for page in self.lines[1] if self.priority[page] == priority]
        worths: list[tuple[int, int, int]] = []
        for place, pages in enumerate((old, again, self.young(priority))):
            for page in pages[:1]:
                stamp = self.stamp[page]
                worths.append((stamp if self.shadow.rules else self.rates.worth(int(place == 1), stamp), place, page))
        return min(worths)[2]
