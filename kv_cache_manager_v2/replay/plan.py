"""A replay's plan: its options as a value, and the manager's configuration made of them.

Without `verify` nothing reads bytes, so the device has no memory unless another is asked for. With `verify` the
default device is used.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from .. import (
    BatchDesc,
    CacheTier,
    CacheTierConfig,
    Device,
    EvictionPolicy,
    ExternalDevice,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheDesc,
    KVCacheManagerConfig,
    ModelId,
    SnapshotPolicy,
    SwaScratchReuseConfig,
    default_device,
)
from ..config.equal_slots import SMALL_PADDING
from ..device.cuda_device import CudaDevice
from .decoding import Decoding
from .serving_limits import ServingLimits
from .served_model import ServedModel
from .service_clock import StepTime
from .tier_option import LowerTier
from .workload import Workload, WorkloadSummary

RECORDED: Final = "recorded"
AS_FAST: Final = "as-fast"
DEVICE_NAMES: Final = ("auto", "host", "cuda", "none")
TRACE_MEMORY_BYTES: Final = 40 << 30
"""Of a model in full size: about what an 80 GB GPU has left beside the weights."""
WORKLOAD_MEMORY_BYTES: Final = 8 << 30
"""The same for the small made workloads: scarce on purpose, so that pages are evicted and requests preempted."""
STATES_PER_REQUEST: Final = 4
"""Where memory is unlimited: of a model with recurrent layers, the live state and snapshots."""


@dataclass(frozen=True)
class ReplayPlan:
    """One replay. ``memory_bytes``, of the GPU tier, None: as much as it takes to keep everything."""

    workload: Workload
    model: ServedModel
    tokens_per_block: int = 32
    memory_bytes: int | None = TRACE_MEMORY_BYTES
    shrink: int = 1
    verify: bool = False
    check_invariants: bool = False
    limits: ServingLimits = field(default_factory=ServingLimits)
    device: str = "auto"
    lower_tiers: tuple[LowerTier, ...] = ()
    """Below the GPU, warmest first."""
    write_policy: str = "back"
    """When pages are written to the level below the GPU."""
    decoding: Decoding = field(default_factory=Decoding)
    """The way in which requests generate."""
    disaggregate: bool = False
    """A second manager of the same size decodes what the first one has computed the prompt of."""
    scratch: bool = False
    """Inputs of a step that are stale right after it share scratch slots."""
    seed: int | None = None
    """Of the workload, for the report."""
    skipped_lines: int = 0
    step_time: StepTime = StepTime()
    arrivals: str = AS_FAST
    """`RECORDED`: requests come at their time stamps, in simulated time. `AS_FAST`: as soon as there is room."""
    notes: tuple[str, ...] = ()
    """What the report must say of the requests: what was made up, assumed, left out."""
    pool_ratio: tuple[float, ...] | None = None
    """Shares of the bytes of each tier, by pool group; None: the manager's default."""
    equal_slots: bool = False
    """Attention layers are divided into groups of equal slots, which share one pool group (`SMALL_PADDING`)."""
    adjusts: bool = True
    """Whether the quota is divided between the pool groups anew when the manager asks for it."""
    eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED
    """Of every tier."""
    snapshot_placement: str | None = None
    """Of `SnapshotPolicy`; None: that of ``base``, or "fixed"."""
    codec: str | None = None
    """Packs the pages of the levels below the GPU, by its name (`CODEC_NAMES`); None: they stay as they are."""
    base: KVCacheManagerConfig | None = None
    """A whole configuration, of which all is taken that the plan does not say."""

    def __post_init__(self) -> None:
        if self.device not in DEVICE_NAMES:
            raise ValueError(f"no device {self.device!r}; there are {', '.join(DEVICE_NAMES)}")
        if self.verify and self.device == "none":
            raise ValueError("verify needs a device with memory; take host or cuda")
        if self.shrink < 1:
            raise ValueError(f"shrink is {self.shrink}; 1 is the full size, larger is smaller")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(f"memory_bytes is {self.memory_bytes}; give a positive number, or None for unlimited")

    def make_device(self) -> Device:
        if self.device == "host":
            return HostDevice()
        if self.device == "cuda":
            return CudaDevice()
        if self.device == "auto" and self.verify:
            return default_device()
        return ExternalDevice()

    @property
    def needs_temporary_folder(self) -> bool:
        return any([tier.kind == "disk" and tier.path is None for tier in self.lower_tiers])

    def manager_config(self, device: Device, temporary_folder: str = "") -> KVCacheManagerConfig:
        summary = self.workload.summary()
        num_bytes, constraints = self._memory(summary, device)
        policy = self.eviction_policy
        tiers: list[CacheTierConfig] = [GpuCacheTierConfig(quota=num_bytes, eviction_policy=policy)]
        model_id = ModelId(self.model.title, details={"shrink": str(self.shrink)})
        tiers.extend([tier.tier_config(temporary_folder, policy, model_id) for tier in self.lower_tiers])
        layers = self.model.layer_configs(self.tokens_per_block, self.shrink)
        scratch = SwaScratchReuseConfig() if self.scratch else None
        num_checkpoints = self.decoding.num_drafts if self.model.bytes_per_state(self.shrink) > 0 else 0
        longest = summary.longest_tokens if summary.longest_tokens > 0 else None
        base = self.base
        if base is not None:
            policy_of_base = base.snapshot_policy
            if self.snapshot_placement is not None:
                policy_of_base = replace(policy_of_base, placement=self.snapshot_placement)
            return replace(
                base,
                snapshot_policy=policy_of_base,
                cache_tiers=tiers,
                layers=layers,
                constraints=(*base.constraints, *constraints),
                initial_pool_ratio=self.pool_ratio,
                swa_scratch_reuse=base.swa_scratch_reuse if base.swa_scratch_reuse is not None else scratch,
                write_policy=self.write_policy,
                state_checkpoints=max(base.state_checkpoints, num_checkpoints),
                max_slot_padding=SMALL_PADDING if self.equal_slots else base.max_slot_padding,
                max_sequence_length=longest if base.max_sequence_length is None else base.max_sequence_length,
            )
        return KVCacheManagerConfig(
            tokens_per_block=self.tokens_per_block,
            cache_tiers=tiers,
            layers=layers,
            constraints=constraints,
            initial_pool_ratio=self.pool_ratio,
            max_sequence_length=longest,
            max_slot_padding=SMALL_PADDING if self.equal_slots else None,
            swa_scratch_reuse=scratch,
            write_policy=self.write_policy,
            snapshot_policy=SnapshotPolicy(at_close=True, placement=self.snapshot_placement or "fixed"),
            state_checkpoints=num_checkpoints,
        )

    def _memory(self, summary: WorkloadSummary, device: Device) -> tuple[int, list[BatchDesc]]:
        """Bytes of the GPU tier, and what must fit into them."""
        if self.memory_bytes is not None:
            return self.memory_bytes, []
        # One sequence as long as all requests together, without history, needs every block of every layer group: a
        # batch that must always fit, so that every pool group gets so many slots. Up to three blocks more per request:
        # the partial last one, and copies of it.
        num_tokens = summary.num_prompt_tokens + summary.num_output_tokens
        num_blocks = -(-num_tokens // self.tokens_per_block) + 3 * summary.num_requests + 1
        capacity = num_blocks * self.tokens_per_block
        slack = 64 * device.granularity_bytes(CacheTier.GPU_MEM)
        num_bytes = capacity * self.model.bytes_per_token(self.shrink) + slack
        if self.equal_slots:
            num_bytes += num_bytes // 9  # a tenth of which may be unused
        batch = [KVCacheDesc(capacity=capacity, history_length=0)]
        bytes_per_state = self.model.bytes_per_state(self.shrink)
        if bytes_per_state > 0:
            # Empty sequences have a state each: as many as there may be snapshots, of prompts' ends and branches, and live ones.
            num_states = STATES_PER_REQUEST * summary.num_requests
            num_bytes += (num_states + 1) * bytes_per_state
            batch.extend([KVCacheDesc(capacity=0, history_length=0)] * num_states)
        return num_bytes, [BatchDesc(batch)]
