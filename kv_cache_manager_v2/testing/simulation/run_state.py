"""The state of a running history: the manager on its device, the fake engine, the model and the judges, the sequences."""

import hashlib
from collections.abc import Sequence
from typing import Final, final


from ...config.layer_config import AttentionLayerConfig
from ...config.manager_config import KVCacheManagerConfig
from ...device.port import Device
from ...events.event_manager import KVCacheEventManager
from ...manager.kv_cache_manager import KVCacheManager
from ...storage.page_fill import DebugFill
from ..event_follower import EventFollower
from ..fake_engine import FakeEngine
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement
from ..reference_state import group_layers
from ..simulated_device import SimulatedDevice
from . import failures
from .lost_sequences import LostSequences
from .open_leases import OpenLeases
from .planned_drops import PlannedDrops
from .policy_scenario import count_constraint_slots
from .room_judge import RoomJudge, count_slots
from .scenario import Scenario
from .simulated_sequence import SimulatedSequence
from .state_checks import check_state
from .text_source import TextSource


@final
class RunState:
    """``num_performed``: actions that had something to act on. ``num_refused``: calls refused for lack of slots."""

    __slots__ = (
        "scenario", "device", "simulated", "manager", "engine", "model", "judge", "streams", "texts", "sequences", "lost", "drops",
        "leases", "next_name", "num_performed", "num_refused", "num_decode_steps", "num_input_commits", "num_planned_tokens",
        "_pool_group_of", "_follower", "_digest",
    )  # fmt: skip

    def __init__(self, scenario: Scenario, device: Device | None = None) -> None:
        config = scenario.config
        self.scenario: Final = scenario
        self.device: Final[Device] = scenario.make_device() if device is None else device
        self.simulated: Final[SimulatedDevice | None] = self.device if isinstance(self.device, SimulatedDevice) else None
        """The same device, if it detects races and can be made to fail."""
        if self.simulated is None and scenario.fault_share > 0.0:
            raise ValueError(f"scenario {scenario.seed} plans failures, and {self.device.name} cannot be made to fail")
        events = KVCacheEventManager(scenario.max_event_entries)
        debug_fill = DebugFill.NAN if scenario.fills_pages and not config.is_external else None
        self.manager: Final = KVCacheManager(
            config, device=self.device, debug_fill=debug_fill, event_manager=events, cold_page_codec=scenario.codec
        )
        self._follower: Final = EventFollower(events)
        self.engine: Final = FakeEngine(config, self.device)
        self.model: Final = ReferenceModel(config, self.manager.layer_grouping)
        self.model.packs_with_loss = scenario.codec is not None and not scenario.codec.is_lossless
        statistics = self.manager.get_storage_statistics()
        slot_sizes = [counts.slot_sizes for counts in statistics]
        self._pool_group_of: Final[list[int]] = _find_pool_groups(config, self.manager.layer_grouping, slot_sizes)
        num_slots, num_all_slots = count_slots(self.manager)
        constraint_slots = count_constraint_slots(config, self._pool_group_of, len(num_slots))
        self.judge: Final = RoomJudge(
            self.model, self._pool_group_of, num_slots, num_all_slots, config.max_util_for_resume, constraint_slots
        )
        self.streams: Final[list[int]] = [self.device.default_stream()]
        while len(self.streams) < scenario.num_streams:
            self.streams.append(self.device.create_stream())
        self.texts: Final = TextSource(
            scenario.vocabulary, scenario.digest_share, scenario.max_kept_texts, scenario.max_cut, scenario.share_of_repeated
        )
        self.sequences: Final[list[SimulatedSequence]] = []
        self.lost: Final = LostSequences(self.manager, self.model)
        self.drops: Final = PlannedDrops()
        self.leases: Final = OpenLeases(self.manager, self.model, self.streams)
        self.next_name = 0
        self._digest: Final = hashlib.sha256()
        self.num_performed = 0
        self.num_refused = 0
        self.num_decode_steps = 0
        """Steps of a `DecodeBatch`."""
        self.num_input_commits = 0
        """Calls of `commit_input` with tokens."""
        self.num_planned_tokens = 0
        """Tokens that were matched before they were computed."""

    @property
    def num_faults(self) -> int:
        """Planned failures of the device that have happened."""
        return 0 if self.simulated is None else self.simulated.faults.num_fired

    @property
    def digest(self) -> str:
        """The digest of all state dumps so far: equal for equal decisions."""
        return self._digest.hexdigest()[:16]

    def record_early_copies(self) -> None:
        """Publishing calls evict on the level below for early copies."""
        if self.scenario.config.write_policy == "through":
            self.model.make_room()

    def check(self) -> None:
        """Check everything that can be checked after an action; in large worlds the slowest checks run less often."""
        if self.num_performed % self.scenario.steps_per_invariants == 0:
            self.manager.check_invariants()
        dump = self.manager.describe()
        self._digest.update(failures.decisions_in(dump, self.streams))
        self.model.see(dump)
        check_state(self.manager, self.model, self.judge, self.sequences, self._pool_group_of)
        if self.num_performed % self.scenario.steps_per_event_check == 0:
            self._follower.check(dump)
        if self.simulated is not None and self.simulated.races:
            raise self.simulated.races[0]


def _find_pool_groups(
    config: KVCacheManagerConfig, layer_grouping: Sequence[Sequence[int]], slot_sizes: Sequence[Sequence[int]]
) -> list[int]:
    """For each layer group the pool group, given the slot sizes of the pool groups: equal lists of sizes share one."""
    pool_group_of: list[int] = []
    known = [tuple(sizes) for sizes in slot_sizes]
    division = config.divide_into_equal_slots()
    for group, members in zip(layer_grouping, group_layers(config)):
        count_of_size: dict[int, int] = {}
        for layer in members:
            for buffer in layer.buffers:
                kernel_blocks = config.tokens_per_block // (buffer.tokens_per_block_override or config.tokens_per_block)
                size: int = buffer.size * kernel_blocks
                count_of_size[size] = count_of_size.get(size, 0) + 1
        sizes = tuple(sorted([size * count for size, count in count_of_size.items()], reverse=True))
        if division is not None and isinstance(members[0], AttentionLayerConfig):
            sizes = division.slot_bytes
        if known.count(sizes) != 1:
            raise ModelDisagreement(f"layer group {list(group)} needs slots of {sizes}; the pool groups have {known}")
        pool_group_of.append(known.index(sizes))
    return pool_group_of
