"""What the threads of a shared level do: look names up, load pages and verify them, store pages."""

from collections.abc import Callable
from typing import Final

from ..base.ids import TokenIdExt
from ..base.package_log import PackageLog
from ..reuse.reuse_scope import ReuseScope
from .block_names import BlockName, NameChain, name_blocks, name_root
from .guarded_store import GuardedConnection
from .hash_ring import HashRing
from .known_pages import KnownPages
from .line_limit import LineLimit
from .page_needs import PageNeeds
from .page_record import RecordLayout, digest_of_key
from .shared_statistics import SharedCounters
from .shared_store import MISSING
from .staging_slots import StagingSlots
from .store_workers import EndpointCalls, Task

_LEAST_PART: Final = 4
"""Pages: fewer are not divided."""

_logger: Final = PackageLog("kv_cache_manager_v2")


class RecordSpace:
    """What all tasks of a level share."""

    def __init__(self, layouts: list[RecordLayout], ring: HashRing, needs: PageNeeds, counters: SharedCounters, block_tokens: int) -> None:
        self.layouts: Final = layouts
        self.ring: Final = ring
        self.needs: Final = needs
        self.counters: Final = counters
        self.block_tokens: Final = block_tokens
        self.wrong_records: Final = LineLimit()


class StagedPage:
    """A page of one block and life cycle, in a staging slot."""

    __slots__ = ("life_cycle", "name", "ordinal", "slot")

    def __init__(self, life_cycle: int, ordinal: int, name: BlockName, slot: int) -> None:
        self.life_cycle: Final = life_cycle
        self.ordinal: Final = ordinal
        self.name: Final = name
        self.slot: Final = slot


class LookUpTask(Task):
    """Name the blocks of a prompt, and ask which pages of them there are. ``present``: blocks by life cycle; ``absent``: keys without one.

    ``claims``: keys of other pages that should be there; ``seen``: those of them that are.
    """

    def __init__(
        self, space: RecordSpace, scope: ReuseScope, tokens: bytes | list[TokenIdExt], begin: int, claims: list[bytes]
    ) -> None:
        super().__init__()
        self._space: Final = space
        self._scope: Final = scope
        self._tokens: Final = tokens
        self._first: Final = begin
        self.names: list[BlockName] = []
        self.present: Final[list[set[int]]] = [set() for _layout in space.layouts]
        self._claims: Final = claims
        self.absent: Final[list[bytes]] = []
        self.seen: Final[list[bytes]] = []
        self.lengths: list[int] = []

    def run(self, calls: EndpointCalls) -> None:
        space = self._space
        self.names = name_blocks(name_root(self._scope), self._tokens, space.block_tokens)
        end = len(self.names)
        needs = space.needs
        for life_cycle in range(needs.num_life_cycles):
            if needs.is_unbounded(life_cycle):
                end = self._ask(calls, life_cycle, end, True)
        for life_cycle in range(needs.num_life_cycles):
            if not needs.is_unbounded(life_cycle):
                self._ask(calls, life_cycle, end, False)
        self.lengths = needs.list_lengths(self.present, self._first, end)
        space.counters.add("lookups")
        self._ask_claims(calls)

    def _ask_claims(self, calls: EndpointCalls) -> None:
        by_endpoint: dict[str, list[bytes]] = {}
        for key in self._claims:
            by_endpoint.setdefault(self._space.ring.endpoint_of(digest_of_key(key)), []).append(key)
        for endpoint, keys in by_endpoint.items():
            answers: list[bool] = []

            def ask(connection: GuardedConnection, keys: list[bytes] = keys, answers: list[bool] = answers) -> None:
                answers[:] = connection.lookup(keys)

            if calls.call(self, endpoint, ask):
                for key, is_present in zip(keys, answers, strict=True):
                    (self.seen if is_present else self.absent).append(key)

    def _ask(self, calls: EndpointCalls, life_cycle: int, end: int, stops: bool) -> int:
        """Ask for blocks before ``end``; returns where the first one is missing if ``stops``, else ``end``."""
        space = self._space
        layout = space.layouts[life_cycle]
        by_endpoint: dict[str, list[int]] = {}
        for block in range(self._first, end):
            if layout.fits(self.names[block]):
                by_endpoint.setdefault(space.ring.endpoint_of(self.names[block].digest), []).append(block)
        found = self.present[life_cycle]
        for endpoint, blocks in by_endpoint.items():
            keys = [layout.key(self.names[block]) for block in blocks]
            answers: list[bool] = []

            def ask(connection: GuardedConnection, keys: list[bytes] = keys, answers: list[bool] = answers) -> None:
                answers[:] = connection.lookup(keys)

            space.counters.add("looked_up_pages", len(keys))
            if calls.call(self, endpoint, ask):
                found.update([block for block, is_present in zip(blocks, answers, strict=True) if is_present])
                self.absent.extend([key for key, is_present in zip(keys, answers, strict=True) if not is_present])
        space.counters.add("found_pages", len(found))
        if not stops:
            return end
        for block in range(self._first, end):
            if block not in found:
                return block
        return end


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

        if not calls.call(self, self._endpoint, load):
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
            calls.call(self, self._endpoint, lambda connection: connection.remove(wrong))


class StoreTask(Task):
    """Name pages, put the heads before them, and store those that are not known to be there, in order, which is parents first.

    ``pages``: by their numbers (`CommittedPages`), each in one of ``slots``; ``rows``, ``contents``: where each was, and what it has.
    ``point``: behind their copies; until then no thread gets the task. By position: ``keys``, of those that have one; ``failed``: keys that
    were not stored; ``stored``: (life cycle, block, key) of those that were.
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
        self.failed: Final[list[bytes]] = []

    @property
    def names(self) -> list[BlockName]:
        return self._chain.names

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
                shares.setdefault(space.ring.endpoint_of(name.digest), []).append((position, life_cycle, block))
        for endpoint, share in shares.items():
            self._store(calls, endpoint, share)

    def _store(self, calls: EndpointCalls, endpoint: str, share: list[tuple[int, int, int]]) -> None:
        space = self._space
        sources: list[list[memoryview]] = []
        num_bytes = 0
        for position, life_cycle, block in share:
            layout = space.layouts[life_cycle]
            slot = self.slots[position]
            view = self._staging.view(slot, layout.num_bytes)
            layout.write_head(view, self._staging.address(slot), self.names[block])
            sources.append([view])
            num_bytes += layout.num_bytes
        keys = [self.keys[position] for position, _life_cycle, _block in share]
        is_stored: list[bool] = []

        def store(connection: GuardedConnection) -> None:
            connection.store(keys, sources)
            is_stored.append(True)

        calls.call(self, endpoint, store)
        if len(is_stored) > 0:
            self.stored.extend([(life_cycle, block, key) for key, (_position, life_cycle, block) in zip(keys, share, strict=True)])
            space.counters.add("stored_pages", len(keys))
            space.counters.add("stored_bytes", num_bytes)
        else:
            self.failed.extend(keys)
            space.counters.add_dropped("store", len(keys))


def share_out(
    space: RecordSpace, pages: list[StagedPage], num_parts: int, make: Callable[[str, list[StagedPage]], Task]
) -> list[Task]:
    """Up to ``num_parts`` tasks for each endpoint that has some of the pages: one thread receives while another one verifies."""
    by_endpoint: dict[str, list[StagedPage]] = {}
    for page in pages:
        by_endpoint.setdefault(space.ring.endpoint_of(page.name.digest), []).append(page)
    tasks: list[Task] = []
    for endpoint, share in by_endpoint.items():
        size = max(_LEAST_PART, (len(share) + num_parts - 1) // num_parts)
        tasks.extend([make(endpoint, share[begin : begin + size]) for begin in range(0, len(share), size)])
    return tasks
