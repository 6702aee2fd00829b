"""Everything that the library knows of one sequence; the `KVCache` handle and the calls' modules work on it.

Blocks of the sequence, by ordinal:

    [0, num_published)     published: shared, on the tree path that ends at ``path_end``, which this sequence pins
    num_published          if ``tail.is_published``: a published block of which only the leading tokens are ours, never written
                           and pinned by this sequence too; else private, like all that follow
    < forked_end           of these, blocks that a fork shares or shared: each private with several owners, or by now published
                           by another owner and pinned by this sequence (`forked_blocks`); or, if ``sharing.planned`` is there,
                           blocks of which some are planned (`planned_blocks`)

For each life cycle ``g`` a block is stale if ``num_sink_blocks[g] <= ordinal < window_begins[g]``, and may be scratch. Behind a
residency window it is *kept* instead: held, whatever the status, and locked only where `require_blocks` says so. While the
sequence is SUSPENDED or ACTIVE it holds the page of every other block, while ACTIVE it also locks them and their slots are in
``tables[g]``. ``num_committed <= history <= capacity <= num_blocks * tokens_per_block`` at every instant.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.checks import to_int
from ..base.ids import PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN, BlockOrdinal
from ..reuse.block import Block
from ..reuse.reuse_scope import ReuseScope
from ..stats.usage_counters import SequenceCounters
from ..storage.eviction.segment_traits import NO_HINT
from .given_tokens import GivenTokens
from .kind_ranges import KindRanges
from .learned_placement import PromptLook
from .page_table import PageTable
from .planned_blocks import PlannedLinks
from .priority_callback import PriorityCallback
from .retention_plan import RetentionPlan
from .retention_records import NotedBlock
from .scratch import Scratch
from .shared_state import NEVER, SharedState, Windows
from .snapshot_plan import SnapshotPlan

from librt.strings import BytesWriter

from ..reuse.token_packing import TOKEN_BYTES


@final
class TokenTail:
    """The committed tokens behind the published blocks, and the rules of the block that they are in.

    Packed little-endian, which is the native order of every machine that has a device for us.
    """

    __slots__ = ("writer", "is_published", "copies_on_resume", "publishes_at_close", "is_retired")

    def __init__(self) -> None:
        self.writer: Final = BytesWriter()
        self.is_published = False
        """Their block is published: only its leading tokens are ours."""
        self.copies_on_resume = False
        """The shared last block is a partial match: the first resume makes a private copy of it."""
        self.publishes_at_close = False
        """`stop_committing` has left the partial last block to `close`."""
        self.is_retired = False
        """The path is below a retired root: what is committed stays private, and these are all tokens that are not published."""

    @property
    def count(self) -> i64:
        return len(self.writer) // TOKEN_BYTES

    def take_back(self) -> None:
        """The last token was not appended."""
        self.writer.truncate(len(self.writer) - TOKEN_BYTES)

    def packed(self) -> bytes:
        return self.writer.getvalue()

    def clear(self) -> None:
        self.writer.truncate(0)


SUSPENDED: Final = 0
ACTIVE: Final = 1
CLOSED: Final = 2

NO_TIMELINE: Final = -1
UNPINNED: Final = Block(0)
"""Stands for the end of the path until the match is held."""


@final
class Request:
    """Request of one sequence: all that its caller has said, and how far it matched."""

    __slots__ = (
        "serial", "id", "scope", "priority_callback", "prompt_length", "kinds", "continues", "is_counted", "given", "given_end",
        "retention", "is_exact", "is_admitted", "priorities", "copied", "to_learn", "written_end", "windows", "counters",
        "attention_tokens", "planned_tokens", "lossy_tokens",
    )  # fmt: skip

    def __init__(
        self, serial: int, sequence_id: int, scope: ReuseScope, priority_callback: PriorityCallback | None, windows: Windows
    ) -> None:
        self.serial: Final = serial
        """Unique within the manager; `id` is the user's and need not be."""
        self.id: Final = sequence_id
        self.scope: Final = scope
        self.priority_callback: PriorityCallback | None = priority_callback
        self.prompt_length: i64 = 0
        """As given when the sequence was made, in tokens; what comes behind is generated."""
        self.kinds: KindRanges | None = None
        """None unless the caller has named kinds of its tokens."""
        self.continues: i64 = NO_HINT
        """Hint of the caller whether the sequence goes on later: NO_HINT, CONTINUES or ENDS."""
        self.is_counted = True
        """Whether what it needs is part of the mix by which `adjust` divides quotas; not for dummies."""
        self.given: GivenTokens | None = None
        """The tokens that the sequence was made with, until all of them are committed, or others are."""
        self.given_end: i64 = -1
        """How many of them were matched or committed by `commit_input`; -1, or not `num_committed`, if there were none or another call has
        committed tokens."""
        self.retention: RetentionPlan | None = None
        """None unless some of its blocks keep their priority for a while only."""
        self.is_exact = False
        """Whether it matches only what was never packed with loss."""
        self.is_admitted = False
        """Whether it, or the one that it is a fork of, was given room: until then it has only looked (`admission`)."""
        self.priorities: dict[int, int] | None = None
        """Until then, of the pages that it has found: what the callback said of them."""
        self.copied: Final[list[tuple[NotedBlock, int]]] = []
        """Until then, pages of published blocks that it has copied, by life cycle; ``priority``: what they take then, if they have less."""
        self.to_learn: PromptLook | None = None
        """Until then, its prompt, where snapshots are placed by what earlier ones came back for."""
        self.written_end: i64 = 0
        """What the steps of all lists that were taken have room for: no more is committed. NEVER where the manager copies itself."""
        self.counters: SequenceCounters | None = None
        """None if there are no statistics."""
        self.windows = windows
        """Those of the manager until the caller sets a residency window."""
        self.attention_tokens: i64 = 0
        """Up to which length pages for all attention layers were there when the sequence was made."""
        self.planned_tokens: i64 = 0
        """How many of them were planned by other sequences and not committed."""
        self.lossy_tokens: i64 = 0
        """How many matched tokens lay in or behind the first page that was packed with loss."""

    def fork(self, serial: int, sequence_id: int, priority_callback: PriorityCallback | None) -> "Request":
        """The request of a sequence, or of a beam, that goes on from this one's."""
        child = Request(serial, sequence_id, self.scope, priority_callback, self.windows)
        child.prompt_length = self.prompt_length
        child.kinds = self.kinds
        child.continues = self.continues
        child.is_counted = self.is_counted
        child.given = self.given
        child.given_end = self.given_end
        child.retention = self.retention
        child.is_exact = self.is_exact
        child.is_admitted = self.is_admitted
        child.attention_tokens = self.attention_tokens
        child.lossy_tokens = self.lossy_tokens
        return child


@final
class Recurrent:
    """Recurrent state of one sequence."""

    __slots__ = ("state_blocks", "snapshot_plan", "matched_snapshot", "state_tokens")

    def __init__(self) -> None:
        self.state_blocks: list[Block] = []
        """Private blocks that join no path: each has one page, a slot of recurrent state. None before the first resume."""
        self.snapshot_plan: SnapshotPlan | None = None
        """None where there is no recurrent state."""
        self.matched_snapshot: Block | None = None
        """The published block whose snapshot the first resume will copy; held until then."""
        self.state_tokens: i64 = 0
        """The length at which the sequence's recurrent state began."""


@final
class Sharing:
    """Other sequences that one shares blocks with: forks, beams, writers and readers of planned blocks, owners of equal pages."""

    __slots__ = ("forks", "beams", "planned", "twins", "branch_end")

    def __init__(self) -> None:
        self.forks: "dict[SequenceState, None] | None" = None
        """The open sequences that were forked from one another, this one included, oldest first: one dict for all of them."""
        self.beams: "list[SequenceState]" = []
        """Beams 1 and up of a sequence with more than one; this state is beam 0 then (`beams`)."""
        self.planned: PlannedLinks | None = None
        """Blocks that the sequence has promised to compute, or that others have; None if there are none."""
        self.twins: dict[int, int] | None = None
        """Where indices stay, the sequence's own pages of published blocks, by `twin_key`; a row without a page: it went on as the
        published one. Only while ACTIVE; None before the first."""
        self.branch_end: i64 = 0
        """Where the latest match ended or the path left that of others, in blocks: prompts part there, so windows before it are kept."""


@final
class Arrivals:
    """Pages of a resumed sequence that its stream does not wait for yet."""

    __slots__ = ("points", "awaits_reads")

    def __init__(self) -> None:
        self.points = vec[i64]()
        """After these the pages land; empty unless it was resumed so."""
        self.awaits_reads = False
        """Some of the pages come from a disk, and it is not known that they came; `points` is not empty then."""


@final
class SequenceState:
    __slots__ = (
        "tokens", "capacity", "history", "num_committed", "num_published", "next_window_move", "next_slow_capacity",
        "forked_end", "tail", "shared", "status", "num_blocks", "batch_number", "has_beams", "blocks", "path_end",
        "tables", "window_begins", "scratch", "stream", "timeline", "arrivals", "request", "recurrent", "sharing",
    )  # fmt: skip

    # What a step inside a block looks at comes first: compiled, it lies together, in two or three cache lines.
    tokens: BytesWriter | None
    """The tail's, so that a step that appends one looks at no object between; None after `stop_committing`."""
    capacity: i64
    history: i64
    num_committed: i64
    num_published: i64
    next_window_move: i64
    """The least history length at which some window begins later than now."""
    next_slow_capacity: i64
    """The least capacity behind the last block, where any other of that block changes nothing but the numbers; else 0. The bound is kept by
    the resize that finds it (`record_next_slow_capacity`), and taken away by whatever may make it untrue. 0 where a list of copies is taken
    between a resize and a commit, which has to look whether one was."""
    forked_end: i64
    """0 if nothing behind the published path is or was shared by a fork."""
    tail: TokenTail
    shared: Final[SharedState]
    status: i64
    num_blocks: i64
    batch_number: i64
    """The last batch call that listed this sequence."""
    has_beams: bool
    """Whether this is one of several beams."""
    # The rest.
    blocks: list[Block]
    path_end: Block
    tables: Final[list[PageTable]]
    window_begins: vec[i64]
    scratch: Final[Scratch]
    stream: int
    timeline: i64
    """The stream's timeline while ACTIVE, else NO_TIMELINE."""
    arrivals: Arrivals
    request: Final[Request]
    recurrent: Recurrent
    sharing: Sharing

    def __init__(self, shared: SharedState, request: Request, stream: int) -> None:
        """An empty, suspended sequence, not in the tree: `residency.hold_match` pins where its path ends."""
        self.shared = shared
        self.status = SUSPENDED
        self.capacity = 0
        self.history = 0
        self.num_blocks = 0
        self.num_committed = 0
        self.num_published = 0
        self.next_window_move = NEVER
        self.next_slow_capacity = 0
        self.forked_end = 0
        self.batch_number = 0
        self.has_beams = False
        self.tail = TokenTail()
        self.tokens = self.tail.writer
        self.blocks = []
        self.path_end = UNPINNED
        self.tables = [PageTable() for _ in shared.life_cycles]
        self.window_begins = shared.windows.least_begins[:]
        self.scratch = Scratch(shared)
        self.stream = stream
        self.timeline = NO_TIMELINE
        self.arrivals = Arrivals()
        self.request = request
        request.written_end = shared.traffic.first_written_end
        self.recurrent = Recurrent()
        self.sharing = Sharing()
        self.record_next_window_move()

    def reopen(self) -> None:
        """After `close`: empty and suspended, not in the tree. What the user has set stays."""
        self.status = SUSPENDED
        self.capacity = 0
        self.history = 0
        self.num_committed = 0
        self.request.written_end = self.shared.traffic.first_written_end
        self.num_published = 0
        self.forked_end = 0
        self.tail = TokenTail()
        self.tokens = self.tail.writer
        self.path_end = UNPINNED
        for table in self.tables:
            table.resize(0)
        self.window_begins = self.shared.windows.least_begins[:]
        self.scratch.clear()
        self.arrivals = Arrivals()
        self.request.continues = NO_HINT
        self.request.priorities = None
        self.request.copied.clear()
        self.recurrent = Recurrent()
        self.sharing = Sharing()
        self.record_next_window_move()

    def record_next_window_move(self) -> None:
        shared = self.shared
        earliest: i64 = NEVER
        for life_cycle in range(shared.num_life_cycles):
            move = self.request.windows.compute_next_move(life_cycle, self.window_begins[life_cycle])
            if move < earliest:
                earliest = move
        self.next_window_move = earliest

    def record_next_slow_capacity(self) -> None:
        self.next_slow_capacity = self.compute_next_slow_capacity()

    def compute_next_slow_capacity(self) -> i64:
        size = self.shared.tokens_per_block
        if (
            self.status != ACTIVE
            or self.has_beams
            or self.shared.has_state
            or self.shared.traffic.first_written_end < NEVER
            or self.tail.is_published
            or len(self.arrivals.points) > 0
            or self.scratch.is_enabled
            or self.scratch.num_blocks > 0
            or self.may_write_forked(self.history)
        ):
            return 0
        return self.num_blocks * size + 1

    def may_write_forked(self, history: i64) -> bool:
        """Whether a step that adds no block may write into one that is or was shared."""
        end = self.forked_end
        return end > 0 and (end >= self.num_blocks or history < end * self.shared.tokens_per_block)

    def record_arrival(self, point: i64) -> None:
        self.next_slow_capacity = 0
        points = self.arrivals.points
        if len(points) == 0 or points[len(points) - 1] != point:
            self.arrivals.points = append(points, point)

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def is_committing(self) -> bool:
        return self.tokens is not None

    def is_published(self, ordinal: i64) -> bool:
        """Whether the tree keeps its pages when the sequence releases them."""
        if self.tail.is_retired:
            return False
        if ordinal < self.num_published or (self.tail.is_published and ordinal == self.num_published):
            return True
        return ordinal < self.forked_end and self.blocks[ordinal].parent is not None

    def holds_page(self, life_cycle: i64, ordinal: i64) -> bool:
        """Whether the sequence holds a page for that block: it is neither stale nor scratch for the life cycle."""
        if ordinal < self.window_begins[life_cycle]:
            return ordinal < self.request.windows.num_sink_blocks[life_cycle]
        return self.scratch.num_blocks == 0 or not self.scratch.contains(life_cycle, ordinal)

    def keeps_page(self, life_cycle: i64, ordinal: i64) -> bool:
        """Whether that block lies behind a residency window: the sequence holds its page all the same, and does not lock it."""
        windows = self.request.windows
        return windows.keeps[life_cycle] != 0 and windows.num_sink_blocks[life_cycle] <= ordinal < self.window_begins[life_cycle]

    def has_page(self, life_cycle: i64, ordinal: i64) -> bool:
        """Whether the sequence holds a page for that block, behind a residency window or not."""
        return self.holds_page(life_cycle, ordinal) or self.keeps_page(life_cycle, ordinal)

    @property
    def is_further_beam(self) -> bool:
        """Beam 1 or later. Of a block that a commit fills only beam 0 has the bytes; its own page may hold another text's."""
        return self.has_beams and len(self.sharing.beams) == 0

    def twin_key(self, life_cycle: i64, ordinal: i64) -> int:
        return int(ordinal * self.shared.num_life_cycles + life_cycle)

    def page_of(self, life_cycle: i64, ordinal: i64) -> i64:
        """The page that the sequence holds for that block: the block's, or its own twin of that."""
        page = self.blocks[ordinal].first_page + life_cycle
        twins = self.sharing.twins
        if twins is not None:
            twin: i64 = twins.get(self.twin_key(life_cycle, ordinal), -1)
            if twin >= 0 and self.shared.storage.rows.has_page(twin):
                return twin
        return page

    def wait_for_block(self, ordinal: i64) -> None:
        """The stream waits for all that others do with the pages that the sequence holds of that block."""
        storage = self.shared.storage
        for life_cycle in range(self.shared.num_life_cycles):
            if self.holds_page(life_cycle, ordinal):
                slot = storage.rows.slot(self.page_of(life_cycle, ordinal))
                self.shared.order.wait(self.timeline, storage.allocators[storage.pool_group_of[life_cycle]].ready[slot])

    def ask_priority(self, ordinal: i64, life_cycle: i64) -> i64:
        """The user's priority for a page; `ValueError` if it is none. Called before anything changes."""
        callback = self.request.priority_callback
        if callback is None:
            return PRIORITY_DEFAULT
        answer: object = callback(BlockOrdinal(int(ordinal)), self.shared.life_cycles[life_cycle])
        priority = to_int(answer, "what custom_priority_callback returned")
        if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
            raise ValueError(
                f"custom_priority_callback({ordinal}, ...) returned {priority}; priorities are {PRIORITY_MIN} to {PRIORITY_MAX}"
            )
        self.shared.guard.journal.priority(priority)
        return priority
