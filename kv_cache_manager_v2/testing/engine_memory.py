"""The memory of an engine whose manager has none: each layer's buffers lie by themselves, as an engine allocates its tensors."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from ..base.ids import CacheTier
from ..base.integer_math import ceil_div
from ..device.port import Device
from .kernel_buffer import KernelBuffer


MAX_OF_STREAM: Final = 256
NUM_SCRATCH_PLACES: Final = 8 * MAX_OF_STREAM
"""For scratch blocks, which have no slots of the manager's."""


@final
@mypyc_attr(native_class=True)
class EngineMemory:
    """A range of the device for each buffer of each manager, from its first use to `close`."""

    __slots__ = ("_device", "_ranges", "_streams")

    _device: Final[Device]
    _ranges: Final[dict[tuple[int, int, str], tuple[int, int]]]
    """Address and bytes, by manager, layer and role."""
    _streams: Final[list[int]]
    """Those that have places for scratch blocks, behind the manager's slots."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._ranges = {}
        self._streams = []

    def take_scratch(self, stream: int, num_taken: int, num_blocks: int) -> int:
        """The first place for so many scratch blocks of a step on that stream; ``num_taken``: what the step has by now."""
        if stream not in self._streams:
            self._streams.append(stream)
        begin = self._streams.index(stream) * MAX_OF_STREAM
        assert num_taken + num_blocks <= MAX_OF_STREAM and begin < NUM_SCRATCH_PLACES, f"{num_blocks} scratch blocks are too many"
        return begin + num_taken

    def address_of(self, manager: int, buffer: KernelBuffer, num_bytes: int) -> int:
        key = (manager, buffer.layer_id, buffer.role)
        found = self._ranges.get(key)
        if found is None:
            granularity = self._device.granularity_bytes(CacheTier.GPU_MEM)
            mapped = int(ceil_div(num_bytes, granularity)) * granularity
            address = self._device.reserve_range(CacheTier.GPU_MEM, mapped)
            self._device.map_memory(CacheTier.GPU_MEM, address, mapped)
            found = self._ranges[key] = (address, mapped)
        return found[0]

    def close(self) -> None:
        """Nothing that was launched is running."""
        for address, mapped in self._ranges.values():
            self._device.unmap_memory(CacheTier.GPU_MEM, address, mapped)
            self._device.release_range(CacheTier.GPU_MEM, address, mapped)
        self._ranges.clear()
