"""Outgoing pages: copied to staging slots on a stream of their own, then named, hashed and stored by a thread.

    state     guaranteed                                                ways out
    COPYING   the pages' slots wait for the copy, nothing is sent       the copy is done, and `settle` sees it -> QUEUED
    QUEUED    the bytes are in staging slots, no page is needed         the thread has them stored, or the store fails -> OVER
    OVER      staging slots and what was found are for `settle`         `settle` -> gone, slots are free

What costs the caller: which pages there are, their tokens, one call of the device. Where staging slots are short, pages are dropped.
"""

from typing import Final

from ..base.ids import TokenIdExt
from ..base.package_log import PackageLog
from ..device.port import Device
from ..layout.registry import LifeCycleRegistry
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..reuse.leaving_paths import LeavingPaths
from ..reuse.token_packing import has_digest, unpack_tokens
from ..sequence.committed_pages import CommittedPages, copy_committed, list_committed, pack_blocks
from ..sequence.sequence_state import SequenceState
from ..storage.pages_out import PagesOut
from .block_names import NameChain
from .known_pages import KnownPages
from .line_limit import LineLimit
from .staging_slots import StagingSlots
from .store_tasks import RecordSpace, StoreTask
from .store_workers import STORES, StoreWorkers

_logger: Final = PackageLog("kv_cache_manager_v2")


class OutgoingPages:
    """Those of one manager, which take all slots of ``staging`` for good. ``free``: those that no page is in."""

    def __init__(
        self, manager: KVCacheManager, staging: StagingSlots, space: RecordSpace, known: KnownPages, workers: StoreWorkers
    ) -> None:
        self._device: Final[Device] = manager.device
        self._shared: Final = manager._shared
        self._staging: Final = staging
        self._space: Final = space
        self._known: Final = known
        self._workers: Final = workers
        self._heads: Final = [layout.head_bytes for layout in space.layouts]
        self._slot_lines: Final = LineLimit()
        self._outgoing: list[StoreTask] = []
        self._leaving: LeavingPaths | None = None
        self.free: Final = staging.take(staging.num_free)
        with self._shared.guard:
            self._out: Final = PagesOut(self._shared.storage, self._shared.traffic.mover.packer)

    def __len__(self) -> int:
        return len(self._outgoing)

    def follow_evictions(self, life_cycles: LifeCycleRegistry) -> None:
        """From now on what is evicted is copied out; `offer` is not used."""
        staging = self._staging
        with self._shared.guard:
            self._leaving = LeavingPaths(
                self._shared.tree, self._out, life_cycles, self._space.block_tokens, self._known.offered, self.free, staging.begin,
                staging.slot_bytes, self._heads
            )  # fmt: skip
            self._shared.storage.drop_watch = self._leaving

    def offer(self, kv_cache: KVCache, chain: NameChain, begin: int, end: int) -> tuple[int, int]:
        """Copy the pages of these blocks out, as far as staging slots are free; how many pages, and the block to go on with."""
        state = kv_cache._state_for_batch()
        if kv_cache.reuse_scope.lora_id is not None or state.tail.is_retired:
            return 0, end
        if len(state.arrivals.points) > 0 and not kv_cache.ready:
            return 0, begin
        counters = self._space.counters
        if self._workers.is_full:
            counters.add_dropped("full", end - begin)
            return 0, begin
        end = min(end, int(state.num_published))
        if len(self.free) < (end - begin) * len(self._heads) and len(self._outgoing) > 0:
            self.settle()
        with self._shared.guard:
            found = list_committed(state, begin, end, len(self.free), self._known.offered)
            slots = self._copy(state, found)
            reached = int(found.end)
            num_named = chain.num_blocks
            if len(slots) > 0 and num_named < reached:
                packed = pack_blocks(state, num_named, reached)
                tokens: bytes | list[TokenIdExt] = packed
                if self._shared.tree.has_digests and has_digest(packed):
                    tokens = unpack_tokens(packed, self._shared.tree.digests)
                chain.add(tokens, reached - num_named)
        if reached < end:
            counters.add_dropped("slots", end - reached)
            if self._slot_lines.is_due():
                _logger.warning("pages are not stored in the shared level, as all staging slots are in use: a larger store_bytes helps")
        count = len(slots)
        if count > 0:
            self._known.offered.update(zip(found.rows, found.contents, strict=True))
            self._outgoing.append(
                StoreTask(
                    self._space, self._staging, self._known, chain, found.pages, slots, found.rows, found.contents, int(self._out.last)
                )
            )
        return count, reached

    def _copy(self, state: SequenceState, found: CommittedPages) -> list[int]:
        """Take slots for the pages, and enqueue their copies; no slots if the device refuses."""
        count = len(found.pages)
        if count == 0:
            return []
        staging = self._staging
        slots = self.free[-count:]
        del self.free[-count:]
        try:
            copy_committed(state, self._out, found, slots, staging.begin, staging.slot_bytes, self._heads)
        except Exception as error:
            # Some copies may be under way all the same.
            self._device.synchronize_stream(self._out.stream)
            self.free.extend(slots)
            self._space.counters.add_dropped("copy", count)
            _logger.warning("pages are not stored, as the device does not copy them: %s", str(error))
            return []
        return slots

    def note_taken(self, kv_cache: KVCache, keys: dict[int, bytes], begin: int, end: int) -> None:
        """The sequence's blocks have come from the store just now. ``keys``: by page, as `CommittedPages` numbers them."""
        state = kv_cache._state_for_batch()
        found = list_committed(state, begin, min(end, int(state.num_published)), (end - begin) * len(self._heads), {})
        for page, row, content in zip(found.pages, found.rows, found.contents, strict=True):
            if page in keys:
                self._known.place(keys[page], row, content)

    def settle(self) -> None:
        """Queue what is copied, and free the slots of what is over."""
        if self._leaving is not None:
            self._accept(self._leaving)
        left: list[StoreTask] = []
        for task in self._outgoing:
            if not task.is_submitted and self._out.is_done(task.point):
                task.is_submitted = True
                self._workers.submit(STORES, task)
            if task.is_over:
                self._end(task)
            else:
                left.append(task)
        self._outgoing = left

    def _accept(self, leaving: LeavingPaths) -> None:
        """Take over what was copied since the last time."""
        leaving.is_paused = self._workers.is_full or self._workers.is_deaf
        if leaving.num_dropped > 0:
            self._space.counters.add_dropped("full" if leaving.is_paused else "slots", int(leaving.num_dropped))
            leaving.num_dropped = 0
        paths = leaving.paths
        if len(paths) == 0:
            return
        leaving.paths = []
        for path in paths:
            chain = self._space.begin_chain(path.scope)
            chain.add(path.tokens, int(path.num_blocks))
            pages = path.pages if path.is_copied else []
            self._outgoing.append(
                StoreTask(self._space, self._staging, self._known, chain, pages, path.slots, path.rows, path.contents, int(self._out.last))
            )

    def _end(self, task: StoreTask) -> None:
        known = self._known
        if task.epoch != self._space.epoch:
            known.forget(list(task.keys.values()))
            self.free.extend(task.slots)
            return
        known.confirm(task.salt, task.names, task.stored, task.places)
        known.forget(task.failed)
        for position, row in enumerate(task.rows):
            key = task.keys.get(position)
            if key is not None and key in known:
                known.place(key, row, task.contents[position])
            else:
                known.withdraw(row, task.contents[position])
        self.free.extend(task.slots)

    def check(self) -> None:
        """AssertionError if a staging slot is lost."""
        self._staging.check()
        slots = self.free + [slot for task in self._outgoing for slot in task.slots]
        if self._leaving is not None:
            slots += [slot for path in self._leaving.paths for slot in path.slots]
        assert len(slots) == len(set(slots)) == self._staging.num_slots, "a staging slot of stores is lost"

    def close(self) -> None:
        """Wait for the copies; after the manager's shutdown its order is closed already, and a broken manager has none."""
        if self._leaving is not None:
            self._shared.storage.drop_watch = None
        self._device.synchronize_stream(self._out.stream)
        if not self._shared.order.is_closed and not self._shared.guard.is_broken:
            with self._shared.guard:
                self._out.leave()
        self._device.destroy_stream(self._out.stream)
