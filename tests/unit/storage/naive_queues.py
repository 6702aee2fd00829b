"""Eviction policies written down plainly, over lists: what the queues must do, in so many words."""

from abc import ABC, abstractmethod



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
