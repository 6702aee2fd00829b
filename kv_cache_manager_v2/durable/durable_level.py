"""The durable level of a manager: which slots of its files have a page that the next process may find.

    a slot      means                                            way out
    unrecorded  the index says nothing of it                     a page was written whole: recorded
    recorded    the index has its page, with its checksums       a write begins, or a read found other bytes: unrecorded

What a write is for is *announced* before it is planned, and *retracted* right after: a write that was not announced makes its slots
unrecorded. Each write has a generation, given when it is planned: in the order of the decisions, whenever it ends. All that is recorded
goes through `IndexWriter`. Knows pages by the number of their block's node, and no tokens.
"""

from threading import Lock
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import StorageIOError
from ..base.package_log import PackageLog
from ..device.slot_watch import SlotTicket, SlotWatch
from .cache_folder import CacheFolder
from .index_writer import PAGE_RECORD, RECORD, IndexWriter
from .index_snapshot import IndexSnapshot
from .index_state import IndexState
from .live_nodes import LiveNodes
from .node_batch import WHOLE, NodeBatch
from .record_format import encode_clear_all, encode_clear_scope, encode_free, encode_order, encode_page, encode_weights
from .write_batch import NO_POSITION, WriteBatch

UNKNOWN: Final = 0
_ORDER_WORDS: Final = 3 * 4096
"""In one record."""

_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class DurableGroup:
    """One pool group of the level. ``announced``: while a write is planned. ``recorded``: by slot, whether it is."""

    __slots__ = ("index", "pools", "announced", "recorded", "num_chunks", "num_restored", "num_damaged")

    def __init__(self, index: i64, num_slots: i64) -> None:
        self.index: Final = index
        self.pools: Final[list["DurablePool"]] = []
        self.announced: WriteBatch | None = None
        self.recorded: Final = vec[bool]([False] * num_slots)
        self.num_chunks: i64 = 0
        """Chunks of a slot in all pools."""
        self.num_restored: i64 = 0
        """Pages that the last process has left."""
        self.num_damaged: i64 = 0
        """Pages that were read and are not what was written."""


@final
class DurablePool(SlotWatch):
    """The file of one pool: the checksums of its chunks."""

    __slots__ = ("_level", "_group", "checksums")

    def __init__(self, level: "DurableLevel", group: DurableGroup, slot_bytes: i64, num_slots: i64) -> None:
        super().__init__(slot_bytes)
        self._level: Final = level
        self._group: Final = group
        self.checksums = vec[i64]([UNKNOWN] * (num_slots * self.chunks_per_slot))

    def current_ticket(self) -> SlotTicket | None:
        return self._group.announced

    def begin_write(self, slot: i64) -> None:
        self._level.end_record(self._group, slot)

    def end_write(self, chunk: i64, checksum: i64, ticket: SlotTicket | None) -> None:
        self.checksums[chunk] = checksum
        if isinstance(ticket, WriteBatch):
            self._level.count_chunk(self._group, ticket, chunk // self.chunks_per_slot, False)

    def fail_write(self, chunk: i64, ticket: SlotTicket | None) -> None:
        # The bytes are kept in memory, or lost, and the device knows that.
        self.checksums[chunk] = UNKNOWN
        if isinstance(ticket, WriteBatch):
            self._level.count_chunk(self._group, ticket, chunk // self.chunks_per_slot, True)

    def checksum_of(self, chunk: i64) -> i64:
        return self.checksums[chunk]

    def report_mismatch(self, slot: i64) -> None:
        self._level.record_damage(self._group, slot)

    def list_checksums(self, slot: i64) -> list[int]:
        first = slot * self.chunks_per_slot
        return [int(self.checksums[chunk]) for chunk in range(first, first + self.chunks_per_slot)]


@final
class DurableLevel:
    """``index``: of the level. ``folder``: locked until `close`."""

    __slots__ = ("index", "folder", "is_read_only", "groups", "writer", "_lock", "_next_generation", "_has_damage", "_new_nodes")

    def __init__(self, index: i64, folder: CacheFolder, slot_bytes: list[tuple[int, ...]], num_slots: tuple[int, ...]) -> None:
        """``slot_bytes`` and ``num_slots`` by pool group."""
        self.index: Final = index
        self.folder: Final = folder
        self.is_read_only: Final[bool] = folder.is_read_only
        """Another process writes it, or has written it."""
        self.groups: Final[list[DurableGroup]] = []
        self._lock: Final = Lock()
        """The workers' lock."""
        self._next_generation: i64 = folder.state.next_generation
        self._has_damage = False
        """Whether the log has said so."""
        self._new_nodes = NodeBatch()
        """Blocks that the next pages are recorded with, not queued yet."""
        watches: list[SlotWatch] = []
        for number, sizes in enumerate(slot_bytes):
            group = DurableGroup(number, num_slots[number])
            for num_bytes in sizes:
                pool = DurablePool(self, group, num_bytes, num_slots[number])
                pool.stripe = folder.parts.stripe(num_bytes)
                pool.is_read_only = folder.is_read_only
                group.pools.append(pool)
                group.num_chunks += pool.chunks_per_slot
                watches.append(pool)
            self.groups.append(group)
        self.writer: Final = IndexWriter(folder, watches)

    def data_path(self, pool_group: int) -> str:
        """The beginning of the names of that pool group's files."""
        return f"{self.folder.path}/data-{pool_group}"

    # -- on the caller's thread ---------------------------------------------------------------------------------------

    def take_generations(self, count: i64) -> i64:
        """The first of so many generations, for as many writes that are planned now."""
        first = self._next_generation
        self._next_generation = first + count
        return first

    def announce(
        self,
        pool_group: i64,
        nodes: vec[i64],
        slots: vec[i64],
        pages: vec[i64],
        first_page: i64,
        num_life_cycles: i64,
        first_generation: i64,
    ) -> None:
        """The next batch of writes are the pages of those blocks, in those slots; node 0: a page that is not recorded. See `WriteBatch`."""
        self._queue_nodes()
        group = self.groups[pool_group]
        group.announced = WriteBatch(nodes, slots, pages, first_page, num_life_cycles, first_generation, group.num_chunks)

    def retract(self, pool_group: i64) -> None:
        """Take an announcement back: the write is planned, or refused."""
        self.groups[pool_group].announced = None

    def adopt(self, state: IndexState, page: i64) -> None:
        """The slot of that page has what the last process has recorded."""
        group = self.groups[state.pool_group_of(page)]
        slot = state.slots[page]
        position: i64 = 0
        for pool in group.pools:
            first = slot * pool.chunks_per_slot
            for chunk in range(first, first + pool.chunks_per_slot):
                pool.checksums[chunk] = state.checksum_of(page, position)
                position += 1
        recorded = group.recorded
        recorded[slot] = True
        group.num_restored += 1

    def disown(self, pool_group: i64, slot: i64) -> None:
        """A page that was adopted is not to be found again."""
        self.end_record(self.groups[pool_group], slot)

    def record_page(self, pool_group: i64, slot: i64, node: i64, life_cycle: i64) -> None:
        """The slot has that page, and no write is under way: it is recorded, unless it is already or its write has failed."""
        group = self.groups[pool_group]
        recorded = group.recorded
        if recorded[slot]:
            return
        checksums = self._list_checksums(group, slot)
        if UNKNOWN in checksums:
            return
        self._queue_nodes()
        with self._lock:
            recorded[slot] = True
            record = encode_page(node, self.take_generations(1), slot, life_cycle, pool_group, checksums)
            self.writer.put(PAGE_RECORD, record)

    def _list_checksums(self, group: DurableGroup, slot: i64) -> list[int]:
        checksums: list[int] = []
        for pool in group.pools:
            checksums.extend(pool.list_checksums(slot))
        return checksums

    def restart_generations(self, next_generation: i64) -> None:
        """Disown all restored pages of that generation or a later one."""
        self._next_generation = next_generation

    def record_weights(self, weights: bytes) -> None:
        self.writer.put(RECORD, encode_weights(weights))

    def record_order(self, pool_group: i64, words: list[int]) -> None:
        """Slot, generation and description of pages of that pool group. A slot without a recorded page counts for nothing."""
        for begin in range(0, len(words), _ORDER_WORDS):
            self.writer.put(RECORD, encode_order(pool_group, words[begin : begin + _ORDER_WORDS]))

    def record_root(self, record: bytes) -> None:
        """As `record_node`, with the whole record."""
        self._new_nodes.add(0, 0, record, 0, len(record), WHOLE)

    def record_node(self, node: i64, parent: i64, tokens: bytes, begin: i64, num_bytes: i64, form: i64) -> None:
        """Before the next page: the index gets what was collected until then at once. So many of the tokens' bytes, from there on."""
        self._new_nodes.add(node, parent, tokens, begin, num_bytes, form)

    def _queue_nodes(self) -> None:
        if len(self._new_nodes) > 0:
            # Interrupted between the two, the same records are queued again, which does no harm.
            self.writer.put_nodes(self._new_nodes)
            self._new_nodes = NodeBatch()

    def clear(self, scope: tuple[int | None, int | str | None] | None) -> None:
        """Nothing of that scope is to be found again; None: of any. Returns once that is safe, or cannot be: see `require_recorded`."""
        self._queue_nodes()
        self.writer.put(RECORD, encode_clear_all() if scope is None else encode_clear_scope(*scope))
        self.writer.flush()

    def require_recorded(self, call: str) -> None:
        """`StorageIOError` unless what the call has had cleared is safe."""
        if self.writer.failure != "":
            raise StorageIOError(
                f"{call}: it is forgotten in this process, but the next manager may find these tokens again: the index of the durable "
                f"level in {self.folder.path} records nothing more since {self.writer.failure}. Shut this manager down and remove the "
                f"level with kvcm cache rm {self.folder.path}, or make the call again after a restart",
                self.folder.path,
                is_write=True,
            )

    def start(self, snapshot: IndexSnapshot, live: LiveNodes) -> None:
        self.writer.start(snapshot, live)

    def close(self) -> None:
        """Write what is queued, and unlock the folder. The disk's work is done; the files are still open. Twice is fine."""
        self.writer.close()
        self.folder.close()

    # -- on the workers' threads --------------------------------------------------------------------------------------

    def end_record(self, group: DurableGroup, slot: i64) -> None:
        """The slot is unrecorded from now on."""
        recorded = group.recorded
        if recorded[slot]:
            with self._lock:
                if recorded[slot]:
                    recorded[slot] = False
                    self.writer.put(RECORD, encode_free(slot, group.index))

    def record_damage(self, group: DurableGroup, slot: i64) -> None:
        """The page in the slot is not what was written. Several chunks of it are one page."""
        with self._lock:
            recorded = group.recorded
            if not recorded[slot]:
                return
            recorded[slot] = False
            group.num_damaged += 1
            self.writer.put(RECORD, encode_free(slot, group.index))
            if self._has_damage:
                return
            self._has_damage = True
        _logger.warning(
            "the durable level in %s has pages that are not what was written there; each is lost when it is read, and computed again",
            self.folder.path,
        )

    def count_chunk(self, group: DurableGroup, batch: WriteBatch, slot: i64, has_failed: bool) -> None:
        """One chunk of the page is done; after the last one it is recorded, if all were written."""
        with self._lock:
            position = batch.count_chunk(slot, has_failed)
            if position == NO_POSITION:
                return
            checksums = self._list_checksums(group, slot)
            recorded = group.recorded
            recorded[slot] = True
            generation = batch.first_generation + position
            record = encode_page(batch.nodes[position], generation, slot, batch.life_cycle(position), group.index, checksums)
            self.writer.put(PAGE_RECORD, record)
