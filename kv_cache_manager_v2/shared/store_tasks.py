"""What the threads of a shared level do: look names up, load pages and verify them, store pages."""

from collections.abc import Callable
from typing import Final

from ..base.ids import TokenIdExt
from ..base.package_log import PackageLog
from ..reuse.reuse_scope import ReuseScope
from .block_names import BlockName, NameChain, name_blocks, name_root
from .guarded_store import GuardedConnection
from .known_pages import KnownPages
from .line_limit import LineLimit
from .page_needs import PageNeeds
from .page_record import RecordLayout
from .placement import Placement, segment_begin
from .shared_statistics import SharedCounters
from .shared_store import MISSING
from .staging_slots import StagingSlots
from .store_workers import EndpointCalls, Task

_LEAST_PART: Final = 4
"""Pages: fewer are not divided."""
_MOST_CHOICES: Final = 4
ASKED_FIRST: Final = 8
"""Blocks of a prompt: a look-up asks for so many, if all are there for twice as many more, and so on."""
MOST_ASKED_AT_ONCE: Final = 64

_logger: Final = PackageLog("kv_cache_manager_v2")


class RecordSpace:
    """What all tasks of a level share."""

    def __init__(
        self,
        layouts: list[RecordLayout],
        placement: Placement,
        needs: PageNeeds,
        counters: SharedCounters,
        block_tokens: int,
        key: bytes | None,
        epoch: int,
        asks: bool,
    ) -> None:
        self.layouts: Final = layouts
        self.placement = placement
        self.needs: Final = needs
        self.counters: Final = counters
        self.block_tokens: Final = block_tokens
        self.key: Final = key
        self.epoch = epoch
        """Of the weights: part of all names."""
        self.asks: Final = asks
        """Whether look-ups ask the store; else another rank's do."""
        self.wrong_records: Final = LineLimit()

    def begin_chain(self, scope: ReuseScope) -> NameChain:
        return NameChain(scope, self.block_tokens, self.key, self.epoch)

    def choices(self, names: list[BlockName], block: int) -> list[str]:
        """Where the block of that path may be. ``names``: from its root on."""
        return self.placement.choices(names[segment_begin(block)].digest)


class StagedPage:
    """A page of one block and life cycle, in a staging slot. ``endpoint``: that has it."""

    __slots__ = ("endpoint", "life_cycle", "name", "ordinal", "slot")

    def __init__(self, life_cycle: int, ordinal: int, name: BlockName, slot: int, endpoint: str) -> None:
        self.endpoint: Final = endpoint
        self.life_cycle: Final = life_cycle
        self.ordinal: Final = ordinal
        self.name: Final = name
        self.slot: Final = slot


class LookUpTask(Task):
    """Name the blocks of a prompt, and ask which pages of them there are. ``present``: blocks by life cycle; ``absent``: keys without one.

    ``places``: by key of those that are present, the endpoint.
    """

    def __init__(self, space: RecordSpace, scope: ReuseScope, tokens: bytes | list[TokenIdExt], begin: int) -> None:
        super().__init__()
        self._space: Final = space
        self._scope: Final = scope
        self.epoch: Final = space.epoch
        self._tokens: Final = tokens
        self._first: Final = begin
        self.names: list[BlockName] = []
        self.present: Final[list[set[int]]] = [set() for _layout in space.layouts]
        self.places: Final[dict[bytes, str]] = {}
        self.absent: Final[list[bytes]] = []
        self.lengths: list[int] = []

    def run(self, calls: EndpointCalls) -> None:
        space = self._space
        self.names = name_blocks(name_root(self._scope, space.key, self.epoch), self._tokens, space.block_tokens)
        end = len(self.names)
        if not space.asks:
            # The rank that asks says which of these there are.
            self.lengths = list(range(self._first + 1, end + 1))
            return
        needs = space.needs
        cycles = range(needs.num_life_cycles)
        unbounded = [life_cycle for life_cycle in cycles if needs.is_unbounded(life_cycle)]
        for life_cycle in unbounded:
            end = self._find_end(calls, life_cycle, end)
        for life_cycle in cycles:
            if life_cycle not in unbounded:
                # What the longest prefix needs, and only if that is not there what shorter ones do.
                wanted = needs.list_blocks(life_cycle, self._first, end)
                if len(unbounded) == 0 or not self._ask(calls, life_cycle, wanted):
                    self._ask(calls, life_cycle, [block for block in range(self._first, end) if block not in self.present[life_cycle]])
        self.lengths = needs.list_lengths(self.present, self._first, end)
        space.counters.add("lookups")

    def _find_end(self, calls: EndpointCalls, life_cycle: int, end: int) -> int:
        """Ask for blocks in their order, some at a time; returns where the first one is missing, ``end`` if none is."""
        block = self._first
        count = ASKED_FIRST
        while block < end:
            part = range(block, min(end, block + count))
            count = min(2 * count, MOST_ASKED_AT_ONCE)
            if not self._ask(calls, life_cycle, list(part)):
                return next(missing for missing in part if missing not in self.present[life_cycle])
            block = part.stop
        return end

    def _ask(self, calls: EndpointCalls, life_cycle: int, blocks: list[int]) -> bool:
        """Ask for the blocks where they should be, and for the others where they may be; whether all are there."""
        space = self._space
        layout = space.layouts[life_cycle]
        found = self.present[life_cycle]
        missing = [block for block in blocks if layout.fits(self.names[block])]
        num_unfit = len(blocks) - len(missing)
        for choice in range(_MOST_CHOICES):
            by_endpoint: dict[str, list[int]] = {}
            for block in missing:
                places = space.choices(self.names, block)
                if choice < len(places):
                    by_endpoint.setdefault(places[choice], []).append(block)
            for endpoint, part in by_endpoint.items():
                keys = [layout.key(self.names[block]) for block in part]
                space.counters.add("looked_up_pages", len(keys))
                for block, key, is_present in zip(part, keys, _look_up(self, calls, endpoint, keys)):
                    if is_present:
                        found.add(block)
                        self.places[key] = endpoint
            missing = [block for block in missing if block not in found]
        space.counters.add("found_pages", len(blocks) - num_unfit - len(missing))
        self.absent.extend([layout.key(self.names[block]) for block in missing])
        return num_unfit + len(missing) == 0


class ClaimTask(Task):
    """Ask for pages that should be there. ``claims``: keys with their endpoints; ``seen``: those that are there; ``absent``: the others."""

    def __init__(self, claims: list[tuple[bytes, str]]) -> None:
        super().__init__()
        self._claims: Final = claims
        self.seen: Final[list[bytes]] = []
        self.absent: Final[list[bytes]] = []

    def run(self, calls: EndpointCalls) -> None:
        by_endpoint: dict[str, list[bytes]] = {}
        for key, endpoint in self._claims:
            by_endpoint.setdefault(endpoint, []).append(key)
        for endpoint, keys in by_endpoint.items():
            for key, is_present in zip(keys, _look_up(self, calls, endpoint, keys)):
                (self.seen if is_present else self.absent).append(key)


def _look_up(task: Task, calls: EndpointCalls, endpoint: str, keys: list[bytes]) -> list[bool]:
    """Which of the keys the endpoint has; nothing if it does not answer, or the task is not wanted any more."""
    answers: list[bool] = []

    def ask(connection: GuardedConnection) -> None:
        answers[:] = connection.lookup(keys)

    is_answered = not task.is_cancelled and calls.call(task, endpoint, ask, len(keys))
    return answers if is_answered else []


class LoadTask(Task):
    """Load the pages that one endpoint has into their slots, and verify them. ``whole``: those that are what was stored."""

    def __init__(self, space: RecordSpace, staging: StagingSlots, endpoint: str, pages: list[StagedPage]) -> None:
        super().__init__()
        self._space: Final = space
        self._staging: Final = staging
        self._endpoint: Final = endpoint
        self._pages: Final = pages
        self.whole: Final[list[StagedPage]] = []

    def run(self, calls: EndpointCalls) -> None:
        space = self._space
        layouts = [space.layouts[page.life_cycle] for page in self._pages]
        keys = [layout.key(page.name) for layout, page in zip(layouts, self._pages, strict=True)]
        views = [self._staging.view(page.slot, layout.num_bytes) for layout, page in zip(layouts, self._pages, strict=True)]
        sizes: list[int] = []

        def load(connection: GuardedConnection) -> None:
            sizes[:] = connection.load(keys, views)

        if not calls.call(self, self._endpoint, load, len(keys), sum([layout.num_bytes for layout in layouts])):
            return
        wrong: list[bytes] = []
        whole: list[StagedPage] = []
        for position, page in enumerate(self._pages):
            layout = layouts[position]
            if sizes[position] == MISSING:
                space.counters.add("missing_pages")
                continue
            fault = "it has another size"
            if sizes[position] == layout.num_bytes:
                fault = layout.find_fault(views[position], self._staging.address(page.slot), page.name)
            if fault == "":
                whole.append(page)
                space.counters.add("loaded_pages")
                space.counters.add("loaded_bytes", layout.num_bytes)
            else:
                key = keys[position]
                wrong.append(key)
                space.counters.add("corrupt_pages")
                if space.wrong_records.is_due():
                    _logger.warning("the shared store %s has a wrong record under %s, which is removed: %s", self._endpoint, key, fault)
        self.whole.extend(whole)
        if len(wrong) > 0:
            calls.call(self, self._endpoint, lambda connection: connection.remove(wrong), len(wrong))


class StoreTask(Task):
    """Name pages, and store those that are neither known to be there nor found there, with heads before them, in order: parents first.

    ``pages``: by their numbers (`CommittedPages`), each in one of ``slots``; ``rows``, ``contents``: where each was, and what it has.
    ``point``: behind their copies; until then no thread gets the task. By position: ``keys``, of those that have one; ``failed``: keys that
    were not stored; ``stored``: (life cycle, block, key) of those that are there, ``places``: their endpoints.
    """

    def __init__(
        self,
        space: RecordSpace,
        staging: StagingSlots,
        known: KnownPages,
        chain: NameChain,
        pages: list[int],
        slots: list[int],
        rows: list[int],
        contents: list[int],
        point: int,
    ) -> None:
        super().__init__()
        self._space: Final = space
        self._staging: Final = staging
        self._known: Final = known
        self._chain: Final = chain
        self._pages: Final = pages
        self.slots: Final = slots
        self.rows: Final = rows
        self.contents: Final = contents
        self.point: Final = point
        self.is_submitted = False
        self.keys: Final[dict[int, bytes]] = {}
        self.stored: Final[list[tuple[int, int, bytes]]] = []
        self.places: Final[dict[bytes, str]] = {}
        self.failed: Final[list[bytes]] = []

    @property
    def names(self) -> list[BlockName]:
        return self._chain.names

    @property
    def epoch(self) -> int:
        return self._chain.epoch

    @property
    def salt(self) -> int | str | None:
        """Of the scope."""
        return self._chain.scope.salt

    def run(self, calls: EndpointCalls) -> None:
        space = self._space
        num_life_cycles = len(space.layouts)
        self._chain.extend()
        shares: dict[str, list[tuple[int, int, int]]] = {}
        for position, page in enumerate(self._pages):
            block, life_cycle = divmod(page, num_life_cycles)
            name = self.names[block]
            layout = space.layouts[life_cycle]
            if not layout.fits(name):
                continue
            key = layout.key(name)
            self.keys[position] = key
            if key not in self._known:
                self._known.expect(key)
                places = space.choices(self.names, block)
                shares.setdefault(calls.workers.choose(places), []).append((position, life_cycle, block))
        for endpoint, share in shares.items():
            self._store(calls, endpoint, share)

    def _store(self, calls: EndpointCalls, endpoint: str, share: list[tuple[int, int, int]]) -> None:
        space = self._space
        keys = [self.keys[position] for position, _life_cycle, _block in share]
        present = _look_up(self, calls, endpoint, keys)
        is_answered = len(present) == len(keys)
        missing = [place for place, is_present in zip(share, present) if not is_present] if is_answered else share
        is_stored: list[bool] = [is_answered and len(missing) == 0]
        sources: list[list[memoryview]] = []
        num_bytes = 0
        for position, life_cycle, block in missing:
            layout = space.layouts[life_cycle]
            slot = self.slots[position]
            view = self._staging.view(slot, layout.num_bytes)
            layout.write_head(view, self._staging.address(slot), self.names[block])
            sources.append([view])
            num_bytes += layout.num_bytes

        def store(connection: GuardedConnection) -> None:
            connection.store([self.keys[position] for position, _life_cycle, _block in missing], sources)
            is_stored[0] = True

        if is_answered and len(missing) > 0:
            calls.call(self, endpoint, store, len(missing), num_bytes)
            if is_stored[0]:
                space.counters.add("stored_pages", len(missing))
                space.counters.add("stored_bytes", num_bytes)
        there = share if is_stored[0] else [place for place in share if place not in missing]
        for position, life_cycle, block in there:
            self.stored.append((life_cycle, block, self.keys[position]))
            self.places[self.keys[position]] = endpoint
        if not is_stored[0]:
            self.failed.extend([self.keys[position] for position, _life_cycle, _block in missing])
            space.counters.add_dropped("store", len(missing))


def share_out(pages: list[StagedPage], num_parts: int, make: Callable[[str, list[StagedPage]], Task]) -> list[Task]:
    """Up to ``num_parts`` tasks for each endpoint that has some of the pages: one thread receives while another one verifies."""
    by_endpoint: dict[str, list[StagedPage]] = {}
    for page in pages:
        by_endpoint.setdefault(page.endpoint, []).append(page)
    tasks: list[Task] = []
    for endpoint, share in by_endpoint.items():
        size = max(_LEAST_PART, (len(share) + num_parts - 1) // num_parts)
        tasks.extend([make(endpoint, share[begin : begin + size]) for begin in range(0, len(share), size)])
    return tasks
