"""A host device that forwards every call, for tests that want to see or refuse some of them: a subclass overrides these."""

from collections.abc import Sequence

from kv_cache_manager_v2 import CacheTier, Device, HostDevice, StorageIOError
from kv_cache_manager_v2.device.port import CopyBatch, HostKernel


class ForwardingDevice(Device):
    """A host device under another name; see the module's docstring."""

    def __init__(self) -> None:
        self._device = HostDevice()

    @property
    def name(self) -> str:
        return "forwarding"

    @property
    def is_software(self) -> bool:
        return True

    def granularity_bytes(self, tier: CacheTier) -> int:
        return self._device.granularity_bytes(tier)

    def total_bytes(self, tier: CacheTier) -> int:
        return self._device.total_bytes(tier)

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        return self._device.reserve_range(tier, num_bytes)

    def reserve_disk_range(self, path: str, num_bytes: int) -> int:
        return self._device.reserve_disk_range(path, num_bytes)

    def disk_failure(self, address: int) -> StorageIOError | None:
        return self._device.disk_failure(address)

    def take_failed_reads(self) -> Sequence[StorageIOError]:
        return self._device.take_failed_reads()

    def release_range(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._device.release_range(tier, address, num_bytes)

    def map_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._device.map_memory(tier, address, num_bytes)

    def unmap_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._device.unmap_memory(tier, address, num_bytes)

    def default_stream(self) -> int:
        return self._device.default_stream()

    def create_stream(self) -> int:
        return self._device.create_stream()

    def destroy_stream(self, stream: int) -> None:
        self._device.destroy_stream(stream)

    def require_stream(self, stream: int) -> None:
        self._device.require_stream(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._device.synchronize_stream(stream)

    def record_event(self, stream: int) -> int:
        return self._device.record_event(stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._device.wait_event(stream, event)

    def is_event_done(self, event: int) -> bool:
        return self._device.is_event_done(event)

    def synchronize_event(self, event: int) -> None:
        self._device.synchronize_event(event)

    def release_event(self, event: int) -> None:
        self._device.release_event(event)

    def start_timer(self, stream: int) -> int:
        return self._device.start_timer(stream)

    def stop_timer(self, stream: int, timer: int) -> None:
        self._device.stop_timer(stream, timer)

    def read_timer(self, timer: int) -> float:
        return self._device.read_timer(timer)

    def release_timer(self, timer: int) -> None:
        self._device.release_timer(timer)

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        self._device.copy_batch(stream, batch)

    def copy_beside(self, stream: int, batch: CopyBatch) -> None:
        self._device.copy_beside(stream, batch)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self._device.fill(stream, address, num_bytes, value)

    def launch(self, stream: int, kernel: HostKernel) -> None:
        self._device.launch(stream, kernel)

    def close(self) -> None:
        self._device.close()
