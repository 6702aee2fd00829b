"""The memory of an engine whose manager has none: each layer's buffers lie by themselves, as an engine allocates its tensors."""

from collections.abc import Callable, Iterable
from typing import Final, final


from ..base.errors import CopyListError
from ..base.ids import CacheTier, DataRole, LayerId
from ..base.integer_math import ceil_div
from ..device.copy_worker import CopyWorker
from ..device.port import CopyBatch, Device
from ..manager.kv_cache_manager import KVCacheManager
from .kernel_buffer import KernelBuffer
from .paged_sequence import PagedManager
from .reference_pages import ModelDisagreement
from .simulated_device import SimulatedDevice


def _find_missed(call: Callable[[], object]) -> int:
    """The number of the list that the call says is lost; 0 if it says nothing."""
    try:
        call()
    except CopyListError as error:
        return error.number
    return 0


MAX_OF_STREAM: Final = 256
NUM_SCRATCH_PLACES: Final = 8 * MAX_OF_STREAM
"""For scratch blocks, which have no slots of the manager's."""


@final
class SimulatedWorker(CopyWorker):
    """Executes lists on a stream of its own, whose copies run late, and on every buffer of a layer that is in the pool group."""

    __slots__ = ("stream", "_memory", "_manager", "_device", "_buffers", "_num_reported")

    def __init__(
        self, memory: "EngineMemory", manager: KVCacheManager, device: SimulatedDevice, model: list[list[KernelBuffer]], after: int
    ) -> None:
        super().__init__(manager.copy_layout, after)
        self._num_reported = after
        self._memory = memory
        self._manager = manager
        self._device = device
        self.stream = device.create_stream()
        group_of: dict[int, int] = {}
        for index, desc in enumerate(manager.pool_group_descs):
            for variant in desc.slot_desc.variants:
                group_of[int(variant.layer_group_id)] = index
        self._buffers: list[list[KernelBuffer]] = [[] for _ in manager.pool_group_descs]
        for buffers in model:
            for buffer in buffers:
                self._buffers[group_of[manager.get_layer_group_id(LayerId(buffer.layer_id))]].append(buffer)

    def report(self) -> None:
        """What was executed since the last report, for all workers of the manager."""
        if self._num_reported < self.num_done:
            for index in range(self._manager.init_config.copy_workers):
                self._manager.report_copies(self.num_done, index, self.layout)
            self._num_reported = self.num_done

    def copy(self, from_level: int, from_slot: int, to_level: int, to_slot: int, pool_group: int) -> None:
        for buffer in self._buffers[pool_group]:
            converter = self._manager.get_page_index_converter(LayerId(buffer.layer_id), DataRole(buffer.role))
            stride = int(self._manager.get_page_stride(LayerId(buffer.layer_id), DataRole(buffer.role)))
            num_bytes = converter.scale * converter.expansion * stride
            batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.GPU_MEM, num_bytes)
            target = self._address(buffer, to_level, pool_group, num_bytes) + to_slot * num_bytes
            batch.add(target, self._address(buffer, from_level, pool_group, num_bytes) + from_slot * num_bytes)
            self._device.copy_own(self.stream, batch)

    def _address(self, buffer: KernelBuffer, level: int, pool_group: int, num_bytes: int) -> int:
        most = self.layout[level][pool_group] + (NUM_SCRATCH_PLACES if level == 0 else 0)
        return self._memory.address_of(id(self._manager), buffer, most * num_bytes, level)


@final
class EngineMemory:
    """A range of the device for each buffer of each manager, from its first use to `close`."""

    __slots__ = ("_device", "_ranges", "_streams", "_workers", "_after")

    def __init__(self, device: Device) -> None:
        self._device: Final = device
        self._ranges: Final[dict[tuple[int, int, str, int], tuple[int, int]]] = {}
        """Address and bytes, by manager, layer, role and level."""
        self._streams: Final[list[int]] = []
        """Those that have places for scratch blocks, behind the manager's slots."""
        self._workers: Final[dict[int, SimulatedWorker]] = {}
        """By manager that lists copies."""
        self._after: Final[dict[int, int]] = {}
        """By manager whose last worker has missed a list, the number after which a new worker goes on."""

    def take_scratch(self, stream: int, num_taken: int, num_blocks: int) -> int:
        """The first place for so many scratch blocks of a step on that stream; ``num_taken``: what the step has by now."""
        if stream not in self._streams:
            self._streams.append(stream)
        begin = self._streams.index(stream) * MAX_OF_STREAM
        assert num_taken + num_blocks <= MAX_OF_STREAM and begin < NUM_SCRATCH_PLACES, f"{num_blocks} scratch blocks are too many"
        return begin + num_taken

    def address_of(self, manager: int, buffer: KernelBuffer, num_bytes: int, level: int = 0) -> int:
        key = (manager, buffer.layer_id, buffer.role, level)
        found = self._ranges.get(key)
        if found is None:
            granularity = self._device.granularity_bytes(CacheTier.GPU_MEM)
            mapped = int(ceil_div(num_bytes, granularity)) * granularity
            address = self._device.reserve_range(CacheTier.GPU_MEM, mapped)
            self._device.map_memory(CacheTier.GPU_MEM, address, mapped)
            found = self._ranges[key] = (address, mapped)
        return found[0]

    def execute_copies(self, manager: PagedManager, stream: int, streams: Iterable[int], model: list[list[KernelBuffer]]) -> None:
        """Take the next list of the manager's copies, if it lists them, and execute it: behind the kernels of all ``streams``, and before
        what is launched on ``stream`` from now on. The one before is reported."""
        if not isinstance(manager, KVCacheManager) or manager.init_config.copy_workers == 0:
            return
        device = self._device
        assert isinstance(device, SimulatedDevice), "lists of copies are executed on a simulated device"
        worker = self._workers.get(id(manager))
        if worker is None:
            worker = self._workers[id(manager)] = SimulatedWorker(self, manager, device, model, self._after.get(id(manager), 0))
        worker.report()
        for other in streams:
            self._order(other, worker.stream)
        number, copies = manager.take_copies(worker.num_done)
        worker.execute(number, copies)
        self._order(worker.stream, stream)

    def miss_copies(self, manager: KVCacheManager, is_reported: bool) -> bool:
        """A list of the manager's copies does not reach its worker, which must refuse the next one. False if there is no worker yet.

        ``is_reported``: the worker says that it has executed that next one all the same, which the manager must refuse, as all that
        follows.
        """
        worker = self._workers.get(id(manager))
        if worker is None:
            return False
        worker.report()
        missed, _ = manager.take_copies(worker.num_done)
        number, copies = manager.take_copies(missed)
        found = _find_missed(lambda: worker.execute(number, copies))
        if is_reported and found == missed:
            found = _find_missed(lambda: manager.report_copies(number, 0, worker.layout))
            # From now on the manager lists no copies.
            found = _find_missed(lambda: manager.take_copies(number)) if found == missed else found
        if found != missed:
            raise ModelDisagreement(f"list {missed} of copies did not come, and {found} is named as lost (0: none)")
        return True

    def renew_worker(self, manager: KVCacheManager, after: int) -> None:
        """The next lists are for a new worker; ``after``: what `KVCacheManager.reset_copies` returned."""
        worker = self._workers.pop(id(manager))
        self._device.synchronize_stream(worker.stream)
        self._device.destroy_stream(worker.stream)
        self._after[id(manager)] = after

    def _order(self, before: int, after: int) -> None:
        event = self._device.record_event(before)
        self._device.wait_event(after, event)
        self._device.release_event(event)

    def close(self) -> None:
        """Nothing that was launched is running."""
        for worker in self._workers.values():
            self._device.synchronize_stream(worker.stream)
            self._device.destroy_stream(worker.stream)
        self._workers.clear()
        self._after.clear()
        for address, mapped in self._ranges.values():
            self._device.unmap_memory(CacheTier.GPU_MEM, address, mapped)
            self._device.release_range(CacheTier.GPU_MEM, address, mapped)
        self._ranges.clear()
