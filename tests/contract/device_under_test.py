"""A device with what a test needs around it: memory that is mapped for it, ways to look into it, and the end of it.

Bytes are read and written as the device wants it: software devices by the host (the simulated one is told), CUDA
through its host tier. The device over the strict fake driver moves no bytes; there `check` only makes the calls.
"""

import ctypes
from typing import Any

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch, Device

GPU, HOST, DISK = CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK


class DeviceUnderTest:
    def __init__(
        self, device: Device, folder: str, *, moves_bytes: bool = True, fake_driver: Any = None
    ) -> None:
        self.device = device
        self.folder = folder
        self.moves_bytes = moves_bytes
        self.fake_driver = fake_driver
        self._ranges: list[MemoryRange] = []
        self._staging: MemoryRange | None = None
        self._stream = device.create_stream()

    def granules(self, tier: CacheTier, count: int) -> int:
        return count * self.device.granularity_bytes(tier)

    def memory(self, tier: CacheTier, num_bytes: int) -> int:
        """The address of at least this much mapped memory of a range of its own, unmapped when the test ends."""
        memory_range = self.memory_range(tier, num_bytes)
        memory_range.resize(num_bytes)
        return memory_range.address

    def memory_range(self, tier: CacheTier, max_bytes: int) -> MemoryRange:
        memory_range = MemoryRange(self.device, tier, max_bytes, self.folder if tier == DISK else None)
        self._ranges.append(memory_range)
        return memory_range

    def reserve(self, tier: CacheTier, num_bytes: int) -> int:
        """A bare range, which the test releases."""
        if tier == DISK:
            return self.device.reserve_disk_range(self.folder, num_bytes)
        return self.device.reserve_range(tier, num_bytes)

    def write(self, tier: CacheTier, address: int, data: bytes) -> None:
        if not self.moves_bytes:
            return
        if tier == DISK:
            staging = self._staging_address(len(data))
            self.write(HOST, staging, data)
            self._copy(DISK, address, HOST, staging, len(data))
        elif self.device.is_software:
            if hasattr(self.device, "host_write"):
                self.device.host_write(address, data)
            else:
                ctypes.memmove(address, data, len(data))
        elif tier == HOST:
            ctypes.memmove(address, data, len(data))
        else:
            staging = self._staging_address(len(data))
            ctypes.memmove(staging, data, len(data))
            self._copy(GPU, address, HOST, staging, len(data))

    def read(self, tier: CacheTier, address: int, num_bytes: int) -> bytes:
        """The caller has synchronised with the work that writes there."""
        if tier == DISK:
            staging = self._staging_address(num_bytes)
            self._copy(HOST, staging, DISK, address, num_bytes)
            return self.read(HOST, staging, num_bytes)
        if self.device.is_software:
            if hasattr(self.device, "host_read"):
                data: bytes = self.device.host_read(address, num_bytes)
                return data
            return ctypes.string_at(address, num_bytes)
        if tier == HOST:
            return ctypes.string_at(address, num_bytes)
        staging = self._staging_address(num_bytes)
        self._copy(HOST, staging, GPU, address, num_bytes)
        return ctypes.string_at(staging, num_bytes)

    def check(self, tier: CacheTier, address: int, expected: bytes) -> None:
        if self.moves_bytes:
            found = self.read(tier, address, len(expected))
            if found != expected:
                at = next(i for i in range(len(expected)) if found[i] != expected[i])
                raise AssertionError(f"byte {at} of {len(expected)} at {address:#x} is {found[at]}, not {expected[at]}")

    def close(self) -> None:
        """Everything the test left goes back, and the device ends with nothing left over."""
        self.device.synchronize_stream(self._stream)
        for memory_range in self._ranges:
            memory_range.close()
        if self._staging is not None:
            self._staging.close()
        self.device.destroy_stream(self._stream)
        self.device.close()
        if self.fake_driver is not None:
            assert self.fake_driver.live() == {}
            assert self.fake_driver.refusals == []

    def _staging_address(self, num_bytes: int) -> int:
        if self._staging is None:
            self._staging = MemoryRange(self.device, HOST, 64 << 20)
        if self._staging.mapped_bytes < num_bytes:
            self._staging.resize(num_bytes)
        return self._staging.address

    def _copy(self, dst_tier: CacheTier, dst: int, src_tier: CacheTier, src: int, num_bytes: int) -> None:
        batch = CopyBatch(dst_tier, src_tier, num_bytes)
        batch.add(dst, src)
        self.device.copy_batch(self._stream, batch)
        self.device.synchronize_stream(self._stream)
