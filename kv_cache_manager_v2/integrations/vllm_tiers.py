"""A vLLM worker's slots: the blocks of its KV cache, rows of host memory, and rows of a file; whole blocks are copied between them.

All layers of a rank lie in one allocation. Of a block each layer has a page there, and a row has the pages of all layers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import Any, Final

# First: it says so when vLLM is missing, or of another version.
from .vllm_version import SUPPORTED

import torch

from ..base.package_log import PackageLog
from ..device.copy_worker import CopyWorker

HOST: Final = "host_bytes"
DISK: Final = "disk_bytes"
PATH: Final = "disk_path"
OPTIONS: Final = "kv_connector_extra_config"
MAX_STAGED_BYTES: Final = 64 << 20
"""Of the device's memory, for blocks on their way."""
_logger: Final = PackageLog("kv_cache_manager_v2")


def read_sizes(extra_config: dict[str, Any], kv_cache_config: Any) -> list[int]:
    """Rows of each tier below the KV cache, host memory first. `ValueError` that names the option which cannot be had."""
    names = set(extra_config)
    if names - {HOST, DISK, PATH} or HOST not in names or (DISK in names) != (PATH in names):
        raise ValueError(f"{OPTIONS} has {sorted(names)}; TieredConnector needs {HOST}, and takes {DISK} with {PATH}")
    row_bytes = sum(num_pages * page_bytes for _, num_pages, page_bytes in list_places(kv_cache_config))
    least = row_bytes * len(kv_cache_config.kv_cache_groups)
    sizes = []
    for name in (HOST, DISK) if DISK in names else (HOST,):
        given = extra_config[name]
        if type(given) is not int or given < least:
            raise ValueError(f"{OPTIONS} has the {name} {given!r}; it is bytes of each worker, at least {least}: a block a group")
        sizes.append(given // row_bytes)
    if PATH in names and not os.path.isdir(str(extra_config[PATH])):
        raise ValueError(f"{OPTIONS} has the {PATH} {extra_config[PATH]!r}; it is a folder that is there")
    return sizes


def list_places(kv_cache_config: Any) -> list[tuple[int, int, int]]:
    """Where the pages of block 0 lie: of those of one size the first byte, how many there are, and the size. The same page of the next
    block follows at once, and the next page when all blocks have had theirs."""
    num_blocks, tensors = kv_cache_config.num_blocks, kv_cache_config.kv_cache_tensors
    size = tensors[0].size
    pages: dict[int, int] = {}
    for tensor in tensors:
        if tensor.block_stride * num_blocks == size:
            # The pages of a block lie side by side, as one.
            return [(0, 1, tensor.block_stride)]
        for number in range(len(tensor.layers)):
            # Groups of layers have the same bytes, each for blocks of its own.
            pages[tensor.offset + number * tensor.layer_stride] = tensor.block_stride
    if sum(pages.values()) * num_blocks != size or any(tensor.size != size for tensor in tensors):
        raise ValueError(f"TieredConnector of vllm {SUPPORTED} supports blocks of whole pages, in one allocation; they lie as {tensors}")
    places: list[tuple[int, int, int]] = []
    for begin, page_bytes in sorted(pages.items()):
        if places and places[-1][2] == page_bytes:
            places[-1] = (places[-1][0], places[-1][1] + 1, page_bytes)
        else:
            places.append((begin, 1, page_bytes))
    return places


class TierWorker(CopyWorker):
    """Copies on the stream of the rank's kernels, in their order. ``kv_cache``: a tensor of the allocation."""

    def __init__(self, kv_cache: torch.Tensor, kv_cache_config: Any, extra_config: dict[str, Any]) -> None:
        num_blocks = kv_cache_config.num_blocks
        sizes = read_sizes(extra_config, kv_cache_config)
        counts = [num_blocks, *sizes, 2]
        super().__init__([(count,) for count in counts])
        self._device: Final = kv_cache.device
        self._pinned: Final[list[torch.Tensor]] = []
        places = list_places(kv_cache_config)
        self._most: Final = max(1, MAX_STAGED_BYTES // sum(num_pages * page_bytes for _, num_pages, page_bytes in places))
        blocks = torch.empty(0, dtype=torch.int8, device=self._device).set_(kv_cache.untyped_storage())
        self._levels: Final[list[list[torch.Tensor]]] = [[
            blocks.as_strided((num_blocks, num_pages, page_bytes), (page_bytes, page_bytes * num_blocks, 1), begin)
            for begin, num_pages, page_bytes in places
        ]]  # fmt: skip
        """By level and place: slots, a block's pages of that size, and bytes."""
        for level, count in enumerate(counts[1:], 1):
            path = extra_config[PATH] if PATH in extra_config and level == len(sizes) else None
            self._levels.append([self._make_rows(path, (count, *place[1:])) for place in places])
        self._way = (0, 0)
        self._moves: dict[int, int] = {}
        """Of slots of the second level of the way those of the first which are copied there."""

    def _make_rows(self, path: str | None, shape: tuple[int, int, int]) -> torch.Tensor:
        size = shape[0] * shape[1] * shape[2]
        if path is not None:
            with tempfile.NamedTemporaryFile(dir=path, prefix="kvcm-") as file:
                # All of it now, or an error; it has no name when this is done, and is gone with the process.
                os.posix_fallocate(file.fileno(), 0, size)
                return torch.from_file(file.name, shared=True, size=size, dtype=torch.int8).view(shape)
        rows = torch.empty(shape, dtype=torch.int8)
        if self._device.type == "cuda":
            if int(torch.cuda.cudart().cudaHostRegister(rows.data_ptr(), size, 0)) == 0:
                self._pinned.append(rows)
            else:
                _logger.warning("%d bytes of host memory cannot be pinned, so copies are slower, and steps wait for them", size)
        return rows

    def execute(self, number: Any, copies: Any) -> None:
        super().execute(number, copies)
        self._flush()

    def copy(self, from_level: int, from_slot: int, to_level: int, to_slot: int, pool_group: int) -> None:
        """Many at once, where none depends on another."""
        way = (from_level, to_level)
        if way != self._way or from_level == to_level or to_slot in self._moves or len(self._moves) >= self._most:
            self._flush()
            self._way = way
        self._moves[to_slot] = from_slot

    def _flush(self) -> None:
        moves, self._moves = self._moves, {}
        if not moves:
            return
        from_level, to_level = self._way
        if from_level > 0 and to_level > 0:
            self._wait()
        for source, target in zip(self._levels[from_level], self._levels[to_level], strict=True):
            if from_level > 0 and to_level == 0:
                staged = torch.empty((len(moves), *target.shape[1:]), dtype=torch.int8, device=self._device)
                for row, slot in enumerate(moves.values()):
                    staged[row].copy_(source[slot], non_blocking=True)
                target[self._to_index(moves)] = staged
            else:
                rows = source[self._to_index(moves.values())] if from_level == 0 else [source[slot] for slot in moves.values()]
                for slot, found in zip(moves, rows, strict=True):
                    target[slot].copy_(found, non_blocking=True)

    def _to_index(self, slots: Iterable[int]) -> torch.Tensor:
        # From pinned memory, as another copy would wait for the kernels that run.
        return torch.tensor(list(slots), pin_memory=self._device.type == "cuda").to(self._device, non_blocking=True)

    def _wait(self) -> None:
        """Rows are copied by the CPU, behind what the device has yet to read and write there."""
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize()

    def close(self) -> None:
        """Unpin the memory. Twice is fine."""
        self._levels.clear()
        if self._pinned:
            self._wait()
        for rows in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(rows.data_ptr())
        self._pinned.clear()
