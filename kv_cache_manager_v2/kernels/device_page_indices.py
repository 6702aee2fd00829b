"""Page indices of a batch for many layers, computed on the GPU: one copy and one launch per step.

For engines with scratch reuse or dense pages in PER_LAYER mode, where each layer has page indices of its own: the host
collects the base page indices once per layer group, and the GPU computes the layers' from them. The result equals
`PageIndexConverter`'s on the host.
"""

from collections.abc import Sequence
from typing import Any, Final, SupportsIndex, final

import numpy as np
import numpy.typing as npt
from mypy_extensions import i64

from ..base.checks import has_attribute, to_instance, to_int, to_int_within, to_list
from ..base.errors import LogicError
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import BAD_PAGE_INDEX, CacheTier
from ..base.integer_math import ceil_div
from ..device.host_array import host_words
from ..device.kernel_arguments import to_word_arguments
from ..device.memory_range import MemoryRange
from ..device.port import CopyBatch, Device
from ..base.ids import INT32_MAX
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..sequence.sequence_state import ACTIVE, SequenceState
from .index_limits import IndexLimits
from .output_array import to_filler
from .page_family import DensePages, PageRule, resolve_family, validate_scratch


KERNEL_NAME: Final = "convert_page_indices"
RULE_WORDS: Final = 8
SCRATCH_WORDS: Final = 3

CUDA_SOURCE: Final = r"""
typedef unsigned long long u64;
typedef long long i64;

// One thread per (output, row, block). Every argument has 64 bits.
// base     [groups, num_rows, width]   base page indices, -1 where there is none
// lengths  [num_rows]                  blocks of each row; what lies behind is not written
// scratch  [groups, num_rows, 3]       first scratch block, one past the last, where the row's slots begin in slots
// rules    [num_outputs, 8]            group; scale; layer offset; expansion; scratch pages per block, 0: SHARED mode;
//                                      first entry of the output; entries per row of the output; filler
extern "C" __global__ void convert_page_indices(const int* base, const i64* lengths, const i64* scratch,
                                                const i64* slots, const i64* rules, int* out, i64 num_outputs,
                                                i64 num_rows, i64 width) {
    const i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= num_outputs * num_rows * width) return;
    const i64 block = thread % width;
    const i64 row = thread / width % num_rows;
    const i64* const rule = rules + 8 * (thread / width / num_rows);
    if (block >= lengths[row]) return;
    const i64 group = rule[0], scale = rule[1], offset = rule[2], expansion = rule[3], pages_per_block = rule[4];
    i64 slot = base[(group * num_rows + row) * width + block];
    i64 sub_page = pages_per_block > 0 ? offset : 0;
    const i64* const range = scratch + 3 * (group * num_rows + row);
    if (slot < 0 && pages_per_block > 0 && block >= range[0] && block < range[1]) {
        const i64 position = block - range[0];
        const i64 blocks_per_slot = scale / pages_per_block;
        slot = slots[range[2] + position / blocks_per_slot];
        sub_page = (position % blocks_per_slot * pages_per_block + offset) % scale;
    }
    int* const entry = out + rule[5] + row * rule[6] + block * expansion;
    const i64 page = (slot * scale + sub_page) * expansion;
    for (i64 sub = 0; sub < expansion; ++sub) entry[sub] = slot < 0 ? (int)rule[7] : (int)(page + sub);
}
"""


_THREADS: Final = 256
_NUM_STAGINGS: Final = 2
"""Steps whose inputs may be in flight at once; with one more, `update` waits for the first."""
_WORD: Final = 8


@final
class _Staging:
    """Pinned host memory, as much device memory, and the event after which the device has read it."""

    __slots__ = ("host", "device", "event")

    def __init__(self, host: MemoryRange, device: MemoryRange) -> None:
        self.host: Final = host
        self.device: Final = device
        self.event: int | None = None


@final
class DevicePageIndices(Handle):
    """The output at `address_of`: int32 ``[max_num_sequences, max_num_blocks * expansion]`` in GPU memory, at one address for
    the object's life.

    ``device`` is the manager's `CudaDevice`. Entries behind a sequence's last block are not written; blocks without a page are
    ``filler``. The caller calls `close` when no kernel that reads the output is running.
    """

    __slots__ = (
        "_manager",
        "_device",
        "_rules",
        "_limits",
        "_groups",
        "_max_num_rows",
        "_max_num_blocks",
        "_filler",
        "_kernel",
        "_output",
        "_stagings",
        "_next_staging",
        "_first_entries",
        "_is_closed",
    )

    def __init__(
        self,
        manager: Given[KVCacheManager],
        outputs: Sequence[DensePages],
        max_num_sequences: SupportsIndex,
        max_num_blocks: SupportsIndex,
        filler: SupportsIndex = BAD_PAGE_INDEX,
    ) -> None:
        self._is_closed = True
        manager = to_instance(manager, KVCacheManager, "manager")
        listed = to_list(outputs, "outputs")
        number = to_filler(filler)
        device: Any = manager.device
        if not has_attribute(device, "compile"):
            raise LogicError(f"{manager.device.name} launches no CUDA kernels; use BatchPageTable on the host")
        if len(listed) == 0:
            raise ValueError("outputs is empty; name at least one layer and role")
        self._manager: Final[KVCacheManager] = manager
        self._device: Final[Device] = manager.device
        self._limits: Final = IndexLimits(manager)
        self._rules: Final[list[PageRule]] = [resolve_family(manager, output) for output in listed]
        for rule in self._rules:
            self._limits.require(rule)
            self._limits.add(rule)
        self._groups: Final[list[int]] = sorted({int(rule.layer_group) for rule in self._rules})
        self._max_num_rows: Final = int(to_int_within(max_num_sequences, "max_num_sequences", 1, 1 << 20))
        self._max_num_blocks: Final = int(to_int_within(max_num_blocks, "max_num_blocks", 1, INT32_MAX // manager.tokens_per_block))
        self._filler: Final[int] = number
        self._first_entries: Final[list[int]] = []
        num_entries = 0
        for rule in self._rules:
            self._first_entries.append(num_entries)
            num_entries += self._max_num_rows * self._max_num_blocks * int(rule.expansion)
        self._kernel: Final[Any] = device.compile(CUDA_SOURCE, KERNEL_NAME)
        self._output: Final = MemoryRange(manager.device, CacheTier.GPU_MEM, 4 * num_entries)
        self._stagings: Final[list[_Staging]] = []
        self._next_staging = 0
        self._is_closed = False
        try:
            self._output.resize(4 * num_entries)
            for _ in range(_NUM_STAGINGS):
                self._add_staging()
        except BaseException:
            self.close()
            raise

    def _add_staging(self) -> None:
        # At most one scratch slot per block of a row and layer group.
        cells = len(self._groups) * self._max_num_rows * self._max_num_blocks
        num_row_words = self._max_num_rows * (1 + SCRATCH_WORDS * len(self._groups))
        num_bytes = _WORD * (cells * 2 + num_row_words + RULE_WORDS * len(self._rules))
        host = MemoryRange(self._device, CacheTier.HOST_MEM, num_bytes)
        device = MemoryRange(self._device, CacheTier.GPU_MEM, num_bytes)
        staging = _Staging(host, device)
        self._stagings.append(staging)
        host.resize(num_bytes)
        device.resize(num_bytes)

    def close(self) -> None:
        """Free the memory. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for staging in self._stagings:
            if staging.event is not None:
                self._device.release_event(staging.event)
                staging.event = None
            staging.host.close()
            staging.device.close()
        self._output.close()
        self._kernel.close()

    def address_of(self, output: SupportsIndex) -> int:
        """The address of an output's first row, by the output's position in ``outputs``."""
        return self._output.address + 4 * self._first_entries[output.__index__()]

    def update(self, kv_caches: Sequence[KVCache], stream: SupportsIndex) -> None:
        """Enqueue the conversion of these sequences, one per row, on ``stream``; valid for what is enqueued there
        afterwards.

        `LogicError` if one is not active, `ValueError` if they do not fit, if int32 does not hold the page indices of a level 0 that
        has grown, or if they have scratch blocks and an output is SHARED.
        """
        if self._is_closed:
            raise LogicError("these page indices are closed")
        given = [to_instance(kv_cache, KVCache, "each of kv_caches") for kv_cache in to_list(kv_caches, "kv_caches")]
        states = [kv_cache._state_for_batch() for kv_cache in given]
        stream = to_int(stream, "stream")
        self._validate(states)
        if len(states) == 0:
            return
        width = max([1, *[int(state.num_blocks) for state in states]])
        staging = self._stagings[self._next_staging]
        self._next_staging = (self._next_staging + 1) % len(self._stagings)
        if staging.event is not None:
            self._device.synchronize_event(staging.event)
            self._device.release_event(staging.event)
            staging.event = None
        places = self._fill(staging, states, width)
        batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.HOST_MEM, _WORD * places[-1])
        batch.add(staging.device.address, staging.host.address)
        addresses = [staging.device.address + _WORD * place for place in places[:-1]]
        num_threads = len(self._rules) * len(states) * width
        arguments = [*addresses, self._output.address, len(self._rules), len(states), width]
        grid = (int(ceil_div(num_threads, _THREADS)), 1, 1)
        try:
            self._device.copy_batch(stream, batch)
            self._kernel.launch(stream, grid, (_THREADS, 1, 1), to_word_arguments(arguments))
            staging.event = self._device.record_event(stream)
        except BaseException:
            # The copy may be enqueued, without an event that says when it has read the staging memory, which is reused.
            self._device.synchronize_stream(stream)
            raise

    def _validate(self, states: list[SequenceState]) -> None:
        self._limits.require_all()
        if len(states) > self._max_num_rows:
            raise ValueError(f"{len(states)} sequences; there is room for {self._max_num_rows}")
        for state in states:
            if state.status != ACTIVE:
                raise LogicError(f"sequence {state.id} is not active; resume() it first")
            if state.num_blocks > self._max_num_blocks:
                raise ValueError(f"sequence {state.id} has {state.num_blocks} blocks; there is room for {self._max_num_blocks}")
            validate_scratch(self._rules, state)

    def _fill(self, staging: _Staging, states: list[SequenceState], width: int) -> list[int]:
        """Write the inputs one after another; returns the first words of base, lengths, scratch, slots and rules, and the
        end."""
        num_rows = len(states)
        num_base_words = (len(self._groups) * num_rows * width + 1) // 2
        lengths_place = num_base_words
        scratch_place = lengths_place + num_rows
        slots_place = scratch_place + SCRATCH_WORDS * len(self._groups) * num_rows
        scratch: list[int] = []
        slots: list[int] = []
        for group in self._groups:
            for state in states:
                index: i64 = group
                scratch.extend((int(state.scratch.begins[index]), int(state.scratch.ends[index]), len(slots)))
                slots.extend(state.scratch.slots[group])
        rules_place = slots_place + len(slots)
        end = rules_place + RULE_WORDS * len(self._rules)
        words: npt.NDArray[np.int64] = host_words(staging.host.address, end)
        base = words[:num_base_words].view(np.int32)
        row_of_base = 0
        for group in self._groups:
            for state in states:
                entries = np.asarray(state.tables[group].view())
                base[row_of_base * width : row_of_base * width + len(entries)] = entries
                row_of_base += 1
        words[lengths_place:scratch_place] = [int(state.num_blocks) for state in states]
        words[scratch_place:slots_place] = scratch
        words[slots_place:rules_place] = slots
        words[rules_place:end] = self._rule_words()
        return [0, lengths_place, scratch_place, slots_place, rules_place, end]

    def _rule_words(self) -> list[int]:
        words: list[int] = []
        for output, rule in enumerate(self._rules):
            words.extend(
                (
                    self._groups.index(int(rule.layer_group)),
                    int(rule.scale),
                    int(rule.offset),
                    int(rule.expansion),
                    int(rule.scratch_pages_per_block) if rule.addresses_scratch else 0,
                    self._first_entries[output],
                    self._max_num_blocks * int(rule.expansion),
                    self._filler,
                )
            )
        return words
