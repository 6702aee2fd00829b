"""The fake engine's layer kernels on a GPU, compiled at run time from the source below.

Same work, same values, same order as on the host: per layer a kernel that writes and one that checks, one launch each for every
buffer. Their inputs (page indices, spans, token values) are copied once per batch, from a
pinned staging area; their findings are copied back once after the last layer, and read when that copy's event is done,
so that the host never waits. A staging area is reused once its batch is done.
"""

import ctypes
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from ..base.ids import CacheTier
from ..device.memory_range import MemoryRange
from ..device.port import CopyBatch, Device
from .kernel_launcher import BatchLaunch, KernelLauncher
from .layer_work import BufferWork, LayerWork
from .mismatch_log import MismatchLog
from .span_image import SpanImage

CUDA_SOURCE: Final = r"""
typedef unsigned char u8;
typedef unsigned long long u64;
typedef long long i64;

#ifndef LANES
#define LANES 32  // threads of a warp; 1 where this is compiled for a processor
#endif

// A block of threads takes one span, a warp one token at a time. Every argument has 64 bits.
// spans[3 * s ..]: index among the values of the page's first token; the span's first token in the page, and
// one past its last.

__device__ __forceinline__ i64 first_byte(i64 token, i64 page_bytes, i64 tokens_per_page) {
    return (token * page_bytes + tokens_per_page - 1) / tokens_per_page;
}

__device__ __forceinline__ u8 byte_of(u64 value, i64 position) {
    return (u8)(value >> (8 * (position & 7)));
}

extern "C" __global__ void write_tokens(u64 base, i64 stride, i64 num_pages, const i64* pages, const i64* spans,
                                        const u64* values, u64 key, i64 page_bytes, i64 tokens_per_page) {
    const i64 span = blockIdx.x;
    const i64 page = pages[span];
    if (page < 0 || page >= num_pages) return;
    u8* const bytes = (u8*)(base + page * stride);
    const u64* const page_values = values + spans[3 * span];
    const i64 end = spans[3 * span + 2];
    const int lane = threadIdx.x % LANES, num_warps = blockDim.x / LANES;
    for (i64 token = spans[3 * span + 1] + threadIdx.x / LANES; token < end; token += num_warps) {
        const u64 value = page_values[token] ^ key;
        const i64 beg = first_byte(token, page_bytes, tokens_per_page);
        const i64 num_bytes = first_byte(token + 1, page_bytes, tokens_per_page) - beg;
        for (i64 i = lane; i < num_bytes; i += LANES) bytes[beg + i] = byte_of(value, i);
    }
}

// results: wrong tokens; records taken (may be more than there is room for); then records of 4 numbers: tag, span,
// token in page or -1 for a page that is not there, and the 8 bytes around the first wrong one.
extern "C" __global__ void check_tokens(u64 base, i64 stride, i64 num_pages, const i64* pages, const i64* spans,
                                        const u64* values, u64 key, i64 page_bytes, i64 tokens_per_page, u64* results,
                                        u64 max_records, u64 tag) {
    const i64 span = blockIdx.x;
    const i64 page = pages[span];
    const i64 span_beg = spans[3 * span + 1], end = spans[3 * span + 2];
    if (page < 0 || page >= num_pages) {
        if (threadIdx.x == 0) {
            atomicAdd(results, (u64)(end - span_beg));
            const u64 record = atomicAdd(results + 1, 1ull);
            if (record < max_records) {
                u64* const out = results + 2 + 4 * record;
                out[0] = tag; out[1] = (u64)span; out[2] = ~0ull; out[3] = 0;
            }
        }
        return;
    }
    const u8* const bytes = (const u8*)(base + page * stride);
    const u64* const page_values = values + spans[3 * span];
    const int lane = threadIdx.x % LANES, num_warps = blockDim.x / LANES;
    for (i64 token = span_beg + threadIdx.x / LANES; token < end; token += num_warps) {
        const u64 value = page_values[token] ^ key;
        const i64 beg = first_byte(token, page_bytes, tokens_per_page);
        const i64 num_bytes = first_byte(token + 1, page_bytes, tokens_per_page) - beg;
        for (i64 piece = 0; piece < num_bytes; piece += LANES) {
            const i64 i = piece + lane;
            const bool differs = i < num_bytes && bytes[beg + i] != byte_of(value, i);
            const unsigned wrong = __ballot_sync(0xffffffffu, differs);
            if (wrong == 0) continue;
            if (lane == 0) {
                atomicAdd(results, 1ull);
                const u64 record = atomicAdd(results + 1, 1ull);
                if (record < max_records) {
                    const i64 around = (piece + __ffs(wrong) - 1) / 8 * 8;
                    u64 found = 0;
                    for (int j = 0; j < 8 && around + j < num_bytes; ++j)
                        found |= (u64)bytes[beg + around + j] << (8 * j);
                    u64* const out = results + 2 + 4 * record;
                    out[0] = tag; out[1] = (u64)span; out[2] = (u64)token; out[3] = found;
                }
            }
            break;
        }
    }
}
"""

_THREADS_PER_BLOCK: Final = 128
_MAX_RECORDS: Final = MismatchLog.MAX_KEPT
_RECORD_WORDS: Final = 4
_RESULT_WORDS: Final = 2 + _RECORD_WORDS * _MAX_RECORDS
_MISSING: Final = (1 << 64) - 1


@final
class CudaStaging:
    """Pinned host memory and as much device memory, copied to the same offsets."""

    __slots__ = ("host", "device")

    device: Final[MemoryRange]

    def __init__(self, device: Device, num_bytes: int) -> None:
        self.host: Final[MemoryRange] = _map(device, CacheTier.HOST_MEM, num_bytes)
        try:
            self.device = _map(device, CacheTier.GPU_MEM, num_bytes)
        except BaseException:
            self.host.close()
            raise

    @property
    def num_bytes(self) -> int:
        return min(self.host.mapped_bytes, self.device.mapped_bytes)

    def host_words(self, num_words: int) -> npt.NDArray[np.uint64]:
        """The first words, for the host to read and write."""
        memory: Any = (ctypes.c_ubyte * (8 * num_words)).from_address(self.host.address)
        words: npt.NDArray[np.uint64] = np.frombuffer(memory, dtype=np.uint64)
        return words

    def close(self) -> None:
        self.device.close()
        self.host.close()


def _map(device: Device, tier: CacheTier, num_bytes: int) -> MemoryRange:
    mapped = MemoryRange(device, tier, num_bytes)
    try:
        mapped.resize(num_bytes)
    except BaseException:
        mapped.close()
        raise
    return mapped


@final
class _Upload:
    """Arrays of 64-bit words one after another; an array that is added twice is copied once."""

    __slots__ = ("num_words", "_arrays", "_places")

    def __init__(self) -> None:
        self.num_words: int = _RESULT_WORDS
        self._arrays: Final[list[npt.NDArray[np.uint64]]] = []
        self._places: Final[dict[int, int]] = {}

    def add(self, array: npt.NDArray[Any]) -> None:
        if id(array) in self._places:
            return
        self._places[id(array)] = self.num_words
        self._arrays.append(np.ascontiguousarray(array).view(np.uint64))
        self.num_words += len(array)

    def place(self, array: npt.NDArray[Any]) -> int:
        """The array's offset in the staging area, in bytes."""
        return 8 * self._places[id(array)]

    def fill(self, words: npt.NDArray[np.uint64]) -> None:
        words[:_RESULT_WORDS] = 0
        beg = _RESULT_WORDS
        for array in self._arrays:
            words[beg : beg + len(array)] = array
            beg += len(array)


@final
class CudaBatchLaunch(BatchLaunch):
    """A batch whose arrays are on the device. Holds the arrays, so that their ids stay unique."""

    __slots__ = ("layers", "staging", "event", "_launcher", "_device", "_stream", "_upload", "_spans")

    def __init__(self, launcher: "CudaLauncher", device: Device, stream: int, layers: list[LayerWork]) -> None:
        self._launcher: Final[CudaLauncher] = launcher
        self._device: Final[Device] = device
        self._stream: Final[int] = stream
        self.layers: Final = layers
        self.event: int | None = None
        """Done when the batch is; None until it is wholly enqueued."""
        self._upload: Final[_Upload] = _Upload()
        self._spans: Final[dict[int, npt.NDArray[np.int64]]] = {}
        for layer in layers:
            self._upload.add(layer.rows.values)
            for work in layer.buffers:
                for image, pages in ((work.write_image, work.write_pages), (work.check_image, work.check_pages)):
                    self._upload.add(pages)
                    self._upload.add(self._spans_of(image))
        self.staging: Final[CudaStaging] = launcher.take_staging(8 * self._upload.num_words)

    def upload(self) -> None:
        self._upload.fill(self.staging.host_words(self._upload.num_words))
        batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.HOST_MEM, 8 * self._upload.num_words)
        batch.add(self.staging.device.address, self.staging.host.address)
        self._device.copy_batch(self._stream, batch)

    def launch_layer(self, layer_index: int) -> None:
        layer = self.layers[layer_index]
        if layer.is_state:
            self._check(layer, layer_index)
        for work in layer.buffers:
            if len(work.write_image) > 0:
                arguments = self._arguments(layer, work, work.write_image, work.write_pages)
                self._launch(self._launcher.write_kernel, len(work.write_image), arguments)
        if not layer.is_state:
            self._check(layer, layer_index)

    def finish(self) -> None:
        batch = CopyBatch(CacheTier.HOST_MEM, CacheTier.GPU_MEM, 8 * _RESULT_WORDS)
        batch.add(self.staging.host.address, self.staging.device.address)
        self._device.copy_batch(self._stream, batch)
        self.event = self._device.record_event(self._stream)

    def report(self, log: MismatchLog) -> None:
        """Log the kernels' findings, once the event is done."""
        results = self.staging.host_words(_RESULT_WORDS)
        log.count_more(int(results[0]))
        for record in range(min(int(results[1]), _MAX_RECORDS)):
            beg = 2 + _RECORD_WORDS * record
            tag, span, token, found_word = [int(word) for word in results[beg : beg + _RECORD_WORDS]]
            layer = self.layers[tag >> 32]
            work = layer.buffers[tag & 0xFFFFFFFF]
            if token == _MISSING:
                log.add(layer.mismatch(work, span, int(work.check_image.spans.beg[span]), None))
            else:
                layout = work.buffer.layout
                num_bytes = layout.first_byte(token + 1) - layout.first_byte(token)
                log.add(layer.mismatch(work, span, token, found_word.to_bytes(8, "little")[: min(num_bytes, 8)]))

    def _check(self, layer: LayerWork, layer_index: int) -> None:
        for buffer_index, work in enumerate(layer.buffers):
            if len(work.check_image) > 0:
                arguments = self._arguments(layer, work, work.check_image, work.check_pages)
                arguments += [self.staging.device.address, _MAX_RECORDS, layer_index << 32 | buffer_index]
                self._launch(self._launcher.check_kernel, len(work.check_image), arguments)

    def _launch(self, kernel: Any, num_spans: int, arguments: list[int]) -> None:
        words = [ctypes.c_uint64(argument) for argument in arguments]
        kernel.launch(self._stream, (num_spans, 1, 1), (_THREADS_PER_BLOCK, 1, 1), words)

    def _arguments(self, layer: LayerWork, work: BufferWork, image: SpanImage, pages: npt.NDArray[np.int64]) -> list[int]:
        """The arguments of both kernels, in the order of their parameters."""
        device_address, layout = self.staging.device.address, work.buffer.layout
        return [
            work.base_address,
            work.stride_bytes,
            work.num_pages,
            device_address + self._upload.place(pages),
            device_address + self._upload.place(self._spans_of(image)),
            device_address + self._upload.place(layer.rows.values),
            work.buffer.key,
            layout.page_bytes,
            layout.tokens_per_page,
        ]

    def _spans_of(self, image: SpanImage) -> npt.NDArray[np.int64]:
        spans = self._spans.get(id(image))
        if spans is None:
            spans = np.stack((image.value_offset, image.spans.beg, image.spans.end), axis=1).reshape(-1)
            self._spans[id(image)] = spans
        return spans


@final
class CudaLauncher(KernelLauncher):
    """Launches on a `CudaDevice`, or on a device that compiles and launches like it.

    Owns the kernels and the staging areas: each area is free or belongs to one running batch.
    """

    __slots__ = ("write_kernel", "check_kernel", "_device", "_log", "_running", "_free")

    def __init__(self, device: Device, log: MismatchLog) -> None:
        compiler: Any = device
        self.write_kernel: Final[Any] = compiler.compile(CUDA_SOURCE, "write_tokens")
        self.check_kernel: Final[Any] = compiler.compile(CUDA_SOURCE, "check_tokens")
        self._device: Final[Device] = device
        self._log: Final[MismatchLog] = log
        self._running: Final[list[CudaBatchLaunch]] = []
        self._free: Final[list[CudaStaging]] = []

    def prepare(self, stream: int, layers: list[LayerWork]) -> BatchLaunch:
        launch = CudaBatchLaunch(self, self._device, stream, layers)
        # First, so that the staging area is released even if a call on the device fails from here on.
        self._running.append(launch)
        launch.upload()
        return launch

    def take_staging(self, num_bytes: int) -> CudaStaging:
        """A free area that is large enough, else a new one with spare size."""
        for index, staging in enumerate(self._free):
            if staging.num_bytes >= num_bytes:
                return self._free.pop(index)
        return CudaStaging(self._device, 2 * num_bytes)

    def collect(self) -> None:
        still_running: list[CudaBatchLaunch] = []
        for launch in self._running:
            if launch.event is not None and self._device.is_event_done(launch.event):
                self._device.release_event(launch.event)
                launch.report(self._log)
                self._free.append(launch.staging)
            else:
                still_running.append(launch)
        self._running[:] = still_running

    def close(self) -> None:
        self.collect()
        # Launches still in the list failed before they were complete, and will never have an event.
        for launch in self._running:
            self._free.append(launch.staging)
        self._running.clear()
        for staging in self._free:
            staging.close()
        self._free.clear()
        self.write_kernel.close()
        self.check_kernel.close()
