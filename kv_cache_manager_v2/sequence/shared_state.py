"""The state that all sequences of one manager share: storage, tree, matcher, the model's life cycles and a few settings."""

from abc import ABCMeta, abstractmethod
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.checks import MAX_COUNT
from ..base.errors import LogicError
from ..config.manager_config import KVCacheManagerConfig
from ..config.scratch_reuse_config import SwaScratchReuseConfig
from ..config.snapshot_policy import SnapshotPolicy
from ..device.port import Device
from ..device.stream_order import StreamOrder
from ..journal.call_records import CallRecords
from ..layout.life_cycle import LifeCycle
from ..layout.registry import LifeCycleRegistry
from ..layout.sizing import compute_constraint_slots
from ..reuse.block import Block
from ..reuse.drop_plans import DropPlans
from ..reuse.match import Matcher
from ..reuse.radix_tree import RadixTree
from ..reuse.state_match import StateMatcher
from ..storage.early_copies import EarlyCopies
from ..storage.onboarding import Onboarding
from ..storage.page_mover import PageMover
from ..storage.page_storage import PageStorage
from ..storage.room_count import RoomCount
from ..storage.slot_reclaimer import SlotReclaimer
from .call_guard import CallGuard
from .learned_placement import LearnedPlacement
from .planned_blocks import PlannedBlocks
from .retention_records import RetentionRecords
from .transfer_leases import TransferLeases
from .twin_pages import TwinPages

UNBOUNDED: Final = -1
NEVER: Final = 1 << 61
MOST_BLOCKS: Final = 2**24
"""Blocks of a sequence of which no layer keeps all tokens: a block takes some 170 bytes of host memory, whether it has pages or not."""


@final
class Windows:
    """Which blocks the life cycles keep pages of, by window, sinks and scratch reuse: arithmetic alone."""

    __slots__ = (
        "num_sink_blocks", "sizes", "least_begins", "keeps", "has_scratch", "max_rewind_len", "least_scratch_step", "tokens_per_block"
    )  # fmt: skip

    def __init__(self, life_cycles: list[LifeCycle], scratch_reuse: SwaScratchReuseConfig | None, tokens_per_block: i64) -> None:
        self.num_sink_blocks = vec[i64]([cycle.num_sink_blocks for cycle in life_cycles])
        self.sizes = vec[i64]([UNBOUNDED if cycle.window_size is None else cycle.window_size for cycle in life_cycles])
        """Per life cycle; UNBOUNDED where there is no window."""
        self.least_begins = vec[i64]([cycle.num_sink_blocks if cycle.has_page_per_block else NEVER for cycle in life_cycles])
        """Per life cycle, where the window of an empty sequence begins; NEVER where blocks have no pages."""
        self.keeps = vec[i64]([0] * len(self.sizes))
        """Per life cycle, 1 if the window is a residency window: the sequence still holds what lies behind it."""
        self.has_scratch: Final[bool] = scratch_reuse is not None
        """Whether scratch reuse is configured."""
        self.max_rewind_len: Final[i64] = 0 if scratch_reuse is None else scratch_reuse.max_rewind_len
        self.tokens_per_block: Final = tokens_per_block
        self.least_scratch_step: Final[i64] = self._compute_least_scratch_step()
        """A step of fewer input tokens has no scratch block in any life cycle."""

    def _compute_least_scratch_step(self) -> i64:
        """A step ``H .. C-1`` has a scratch block only if ``H + T <= (e)T <= C - rewind + 1 - W`` for its end ``e``."""
        windows = [window for window in self.sizes if window != UNBOUNDED]
        if not self.has_scratch or len(windows) == 0:
            return NEVER
        return self.tokens_per_block + min(windows) + self.max_rewind_len - 1

    def compute_begin(self, life_cycle: i64, history: i64) -> i64:
        """The first block after the sinks that the next token reads, whether or not the sequence is that long.

        So a block is stale iff ``num_sink_blocks <= ordinal < window begin``.
        """
        begin = self.least_begins[life_cycle]
        window = self.sizes[life_cycle]
        if window == UNBOUNDED or history + 1 <= window:
            return begin
        end = (history + 1 - window) // self.tokens_per_block
        return end if end > begin else begin

    def count_new_pages(self, life_cycle: i64, begin: i64, end: i64, window_begin: i64) -> i64:
        """How many blocks of ``[begin, end)`` get a page, once the window begins at ``window_begin``."""
        num_sinks = self.num_sink_blocks[life_cycle]
        if end <= begin:
            return 0
        if self.keeps[life_cycle] != 0:
            return end - begin
        num_sinks_among = (num_sinks if num_sinks < end else end) - begin
        first = window_begin if window_begin > begin else begin
        count: i64 = 0
        if end > first:
            count = end - first
        return count + num_sinks_among if num_sinks_among > 0 else count

    def compute_next_move(self, life_cycle: i64, window_begin: i64) -> i64:
        """The least history length at which the window begins later than at ``window_begin``."""
        window = self.sizes[life_cycle]
        if window == UNBOUNDED:
            return NEVER
        return (window_begin + 1) * self.tokens_per_block + window - 1


@final
class RecurrentRules:
    """How recurrent layers' state is kept and matched."""

    __slots__ = (
        "num_state_slots", "matcher", "snapshot_policy", "learned_placement", "max_snapshots_per_path", "commit_snapshots",
        "has_warned_of_snapshots",
    )  # fmt: skip

    def __init__(
        self, storage: PageStorage, tree: RadixTree, matcher: Matcher, life_cycle: int | None, config: KVCacheManagerConfig
    ) -> None:
        policy = config.snapshot_policy
        self.num_state_slots: Final[i64] = 0 if life_cycle is None else 1 + config.state_checkpoints
        """Slots of recurrent state that a sequence has per beam: the live one and its checkpoints."""
        self.matcher: Final[StateMatcher | None] = None if life_cycle is None else StateMatcher(tree, matcher, life_cycle, config)
        """None where there is no recurrent state."""
        self.snapshot_policy: Final[SnapshotPolicy] = policy
        learns = life_cycle is not None and policy.placement == "learned"
        self.learned_placement: Final = LearnedPlacement(storage, life_cycle or 0, config.tokens_per_block) if learns else None
        """None where there is no recurrent state, or the policy has another placement."""
        self.max_snapshots_per_path: Final[i64] = 0 if policy.max_per_path is None else policy.max_per_path
        """0: any number."""
        self.commit_snapshots: Final[dict[int, int]] = {}
        """By page, the serial of the sequence whose commit left its snapshot there where none was planned. An entry may outlive its page;
        the next snapshot in that row replaces or removes it."""
        self.has_warned_of_snapshots = False
        """Whether the user was told that a prefill passes all places where snapshots are planned: once is enough."""


class DemandSampler(metaclass=ABCMeta):
    """Who keeps the mix of pages that sequences need."""

    __slots__ = ()

    @abstractmethod
    def sample(self) -> None:
        """A sequence has got room."""


@final
class Traffic:
    """Pages that move between levels, and the slots that are made free for others."""

    __slots__ = (
        "mover", "room_count", "reclaimer", "onboarding", "early_copies", "takes_no_copies", "is_external", "first_written_end", "demand",
    )  # fmt: skip

    def __init__(self, storage: PageStorage, mover: PageMover, config: KVCacheManagerConfig) -> None:
        self.mover: Final = mover
        self.room_count: Final = RoomCount(storage)
        self.reclaimer: Final = SlotReclaimer(storage, mover, config.min_offload_priority)
        self.onboarding: Final = Onboarding(storage, self.reclaimer, mover)
        writes_durable = storage.durable is not None and not storage.durable.is_read_only
        writes_early = writes_durable or (config.write_policy == "through" and storage.last_level > 0)
        self.early_copies: Final = EarlyCopies(storage, self.reclaimer, config.min_offload_priority) if writes_early else None
        """None where pages are written down when they have to go, or there is no lower level."""
        self.takes_no_copies: Final[bool] = config.takes_no_copies
        self.is_external: Final[bool] = config.is_external
        """As in the configuration."""
        self.first_written_end: Final[i64] = 0 if config.copy_workers > 0 else NEVER
        """Of a sequence before a list of copies was taken: `Request.written_end`."""
        self.demand: DemandSampler | None = None
        """None until the manager is whole."""

    def require_copies(self, call: str, way_out: str) -> None:
        """`LogicError` where nothing is copied, and the call would."""
        if self.takes_no_copies:
            self.require_own_memory(call, way_out)

    def require_own_memory(self, call: str, way_out: str) -> None:
        """`LogicError` where the memory is the engine's: the call would move parts of slots, or needs their address."""
        if self.is_external:
            raise LogicError(f"{call}: level 0 is an ExternalCacheTierConfig, memory in which the manager moves no bytes; {way_out}")


@final
class Claims:
    """Claims on blocks beside those of the sequences that use them: leases, twins, planned blocks, retained ones, plans to drop."""

    __slots__ = ("drop_plans", "leases", "twin_pages", "planned", "retention", "num_windowed")

    def __init__(self, storage: PageStorage, tree: RadixTree, life_cycles: LifeCycleRegistry, config: KVCacheManagerConfig) -> None:
        self.drop_plans: Final = DropPlans(tree, life_cycles, config.tokens_per_block, config.reuse_match_backoff)
        self.leases: Final = TransferLeases(storage, tree)
        self.twin_pages: Final[TwinPages | None] = None if config.allow_seq_rebasing else TwinPages(storage, self.leases)
        """None where a commit may change indices."""
        storage.twin_owner = self.twin_pages
        self.num_windowed: i64 = 0
        """Sequences with a residency window: what one holds it may not lock."""
        self.planned: Final = PlannedBlocks(tree)
        self.retention: Final = RetentionRecords(storage, tree, _count_pinnable(storage, config.max_pinned_share))


@final
class SharedState:
    __slots__ = (
        "device", "order", "storage", "traffic", "tree", "matcher", "claims", "guard", "life_cycles", "num_life_cycles", "tokens_per_block",
        "windows", "has_state", "state_life_cycle", "recurrent", "most_tokens", "max_util_for_resume", "constraint_slots",
        "uses_priorities", "num_further_beams",
    )  # fmt: skip

    def __init__(
        self,
        device: Device,
        storage: PageStorage,
        mover: PageMover,
        tree: RadixTree,
        matcher: Matcher,
        life_cycles: LifeCycleRegistry,
        config: KVCacheManagerConfig,
        journal: CallRecords,
    ) -> None:
        self.device: Final = device
        self.order: Final[StreamOrder] = storage.order
        self.storage: Final = storage
        self.traffic: Final = Traffic(storage, mover, config)
        self.tree: Final = tree
        self.matcher: Final = matcher
        self.claims: Final = Claims(storage, tree, life_cycles, config)
        self.guard: Final = CallGuard(storage.changes, journal)
        if self.order.settles:
            self.guard.order = self.order
        self.life_cycles: Final[list[LifeCycle]] = list(life_cycles)
        self.num_life_cycles: Final[i64] = len(life_cycles)
        self.tokens_per_block: Final[i64] = config.tokens_per_block
        self.windows: Final = Windows(list(life_cycles), config.swa_scratch_reuse, config.tokens_per_block)
        state_life_cycle = life_cycles.state_life_cycle_id
        self.has_state: Final[bool] = state_life_cycle is not None
        """Whether some layer is recurrent."""
        self.state_life_cycle: Final[i64] = 0 if state_life_cycle is None else state_life_cycle
        """Life cycle of the recurrent layers; without meaning where there are none."""
        self.recurrent: Final = RecurrentRules(storage, tree, matcher, state_life_cycle, config)
        has_full_layer = any([cycle.has_page_per_block and cycle.window_size is None for cycle in life_cycles])
        self.most_tokens: Final[i64] = MAX_COUNT if has_full_layer else MOST_BLOCKS * config.tokens_per_block
        """Tokens of a sequence. Where each layer has a window or is recurrent, no number of slots bounds it."""
        self.max_util_for_resume: Final[float] = config.max_util_for_resume
        self.constraint_slots = vec[i64]([count for count in compute_constraint_slots(storage.layout, config)])
        """By pool group, the most level-0 slots that one of the configured constraints takes; 0 without constraints."""
        self.uses_priorities = False
        """Whether some sequence gave a priority callback: without one all pages have the default priority."""
        self.num_further_beams: i64 = 0
        """Beams of all open sequences, beside one beam each."""

    def is_overused(self, pool_group: i64, num_locked: i64) -> bool:
        """Whether so many locked slots are more than `max_util_for_resume` allows beside a resume, and than the constraints demand."""
        total = self.storage.allocators[pool_group].num_slots
        return num_locked > self.constraint_slots[pool_group] and total > 0 and float(num_locked) / float(total) > self.max_util_for_resume

    def count_whole_blocks(self, blocks: list[Block]) -> i64:
        """How many of them come before the first that has a page whose bytes a disk has lost."""
        if not self.storage.reads.is_idle:
            for count, block in enumerate(blocks):
                if self.storage.reads.has_lost(block.first_page, self.num_life_cycles):
                    return count
        return len(blocks)


def _count_pinnable(storage: PageStorage, share: float) -> int:
    """Blocks that may be retained after the fact: a share of the slots, over all levels, of the smallest pool group."""
    slots = [int(allocator.num_slots) for allocator in storage.allocators]
    return int(min([sum(slots[group :: int(storage.num_pool_groups)]) for group in range(storage.num_pool_groups)]) * share)
