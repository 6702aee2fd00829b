"""`Float8Codec` on a GPU: kernels that read and write, byte for byte, what its numpy does.

Packed pages are in pinned host memory, which the kernels address as it is. One launch packs or unpacks the buffers that lie side by side
in one pool of up to `PAGES_PER_LAUNCH` pages; buffers that are kept as they are are copied. Nothing here waits.
"""

from collections.abc import Sequence
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..base.handle import Handle
from ..base.ids import CacheTier
from ..base.integer_math import ceil_div
from ..device.kernel_arguments import to_struct_argument, to_word_arguments
from ..device.port import CopyBatch, Device
from .numpy_codec import BufferSpan

PAGES_PER_LAUNCH: Final = 64
_THREADS: Final = 128
_LANES: Final = 32

CUDA_SOURCE: Final = r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef LANES
#define LANES 32  // threads of a warp; 1 where this is compiled for a processor
#endif

// A warp takes one run of numbers of one buffer of one page: a scale of two bytes, and a byte for each number. A packed buffer has the
// scales of all its runs first. Numbers are float32 (kind 0), float16 (1) or bfloat16 (2).
struct Pages { u64 hot[64]; u64 cold[64]; };
union Word { u32 bits; float value; };

__device__ __forceinline__ float as_float(u32 bits) { Word word; word.bits = bits; return word.value; }
__device__ __forceinline__ u32 as_bits(float value) { Word word; word.value = value; return word.bits; }
// Of an exponent from -126 to 127.
__device__ __forceinline__ float power_of_two(int exponent) { return as_float((u32)(exponent + 127) << 23); }

__device__ __forceinline__ float load_number(u64 address, i64 index, i64 kind) {
    if (kind == 0) return ((const float*)address)[index];
    const u32 half = ((const u16*)address)[index];
    if (kind == 2) return as_float(half << 16);
    const u32 sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31, rest = half & 1023;
    if (exponent == 31) return as_float(sign | 0x7f800000u | rest << 13);
    if (exponent > 0) return as_float(sign | (exponent + 112) << 23 | rest << 13);
    return as_float(sign | as_bits((float)rest * power_of_two(-24)));
}

// The type has this number exactly.
__device__ __forceinline__ void store_number(u64 address, i64 index, i64 kind, u32 bits) {
    if (kind == 0) { ((u32*)address)[index] = bits; return; }
    u32 half = bits >> 16;
    if (kind == 1) {
        const u32 sign = half & 0x8000u, rest = bits & 0x7fffffu;
        const int exponent = (int)(bits >> 23 & 255) - 127;
        if (exponent == 128) half = sign | 0x7c00u | rest >> 13;
        else if (exponent >= -14) half = sign | (u32)(exponent + 15) << 10 | rest >> 13;
        else half = sign | (u32)(as_float(bits & 0x7fffffffu) * power_of_two(24));
    }
    ((u16*)address)[index] = (u16)half;
}

// The nearest of e4m3's numbers to one from 0 to 448; of two the smaller one.
__device__ __forceinline__ u32 to_code(float magnitude) {
    if (magnitude >= power_of_two(-6)) return ((as_bits(magnitude) + 0x7ffffu) >> 20) - (120 << 3);
    const float scaled = magnitude * power_of_two(9);
    const int whole = (int)scaled;
    return (u32)whole + (scaled - (float)whole > 0.5f ? 1 : 0);
}

__device__ __forceinline__ float to_magnitude(u32 code) {
    return code < 8 ? (float)code * power_of_two(-9) : as_float((code + (120 << 3)) << 20);
}

extern "C" __global__ void pack_float8(Pages pages, i64 num_pages, i64 num_buffers, i64 buffer_bytes, i64 run, i64 runs, i64 kind,
                                       i64 least_exponent) {
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    const int lane = threadIdx.x % LANES;
    if (warp >= num_pages * num_buffers * runs) return;
    const i64 part = warp % runs, buffer = warp / runs % num_buffers, page = warp / runs / num_buffers;
    const u64 hot = pages.hot[page] + buffer * buffer_bytes;
    u8* const cold = (u8*)(pages.cold[page] + buffer * runs * (2 + run));
    u8* const codes = cold + 2 * runs + part * run;
    float largest = 0;
    for (i64 i = lane; i < run; i += LANES) {
        const float magnitude = as_float(as_bits(load_number(hot, part * run + i, kind)) & 0x7fffffffu);
        if (magnitude < as_float(0x7f800000u) && magnitude > largest) largest = magnitude;
    }
    for (int step = LANES / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, largest, step);
        largest = other > largest ? other : largest;
    }
    // The least power of two by which the largest number is at most 448. What is under the least exponent is far under it.
    const u32 bits = as_bits(largest / 448.0f);
    int exponent = bits == 0 ? 0 : (int)(bits >> 23) - 126 - ((bits & 0x7fffffu) == 0 ? 1 : 0);
    if (exponent < (int)least_exponent + 9) exponent = (int)least_exponent + 9;
    const float factor = power_of_two(-exponent);
    for (i64 i = lane; i < run; i += LANES) {
        const u32 number = as_bits(load_number(hot, part * run + i, kind));
        float magnitude = as_float(number & 0x7fffffffu);
        const bool is_number = magnitude == magnitude;
        magnitude *= factor;
        if (magnitude > 448.0f) magnitude = 448.0f;
        codes[i] = (u8)((is_number ? to_code(magnitude) : 127u) | (number >> 31) << 7);
    }
    if (lane == 0) { cold[2 * part] = (u8)exponent; cold[2 * part + 1] = (u8)(exponent >> 8); }
}

extern "C" __global__ void unpack_float8(Pages pages, i64 num_pages, i64 num_buffers, i64 buffer_bytes, i64 run, i64 runs, i64 kind,
                                         i64 largest) {
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    const int lane = threadIdx.x % LANES;
    if (warp >= num_pages * num_buffers * runs) return;
    const i64 part = warp % runs, buffer = warp / runs % num_buffers, page = warp / runs / num_buffers;
    const u64 hot = pages.hot[page] + buffer * buffer_bytes;
    const u8* const cold = (const u8*)(pages.cold[page] + buffer * runs * (2 + run));
    const u8* const codes = cold + 2 * runs + part * run;
    const float factor = power_of_two((short)(cold[2 * part] | cold[2 * part + 1] << 8));
    for (i64 i = lane; i < run; i += LANES) {
        const u32 code = codes[i] & 127u, sign = (u32)(codes[i] >> 7) << 31;
        float magnitude = to_magnitude(code) * factor;
        if (magnitude > as_float((u32)largest)) magnitude = as_float((u32)largest);
        store_number(hot, part * run + i, kind, sign | (code == 127 ? 0x7fc00000u : as_bits(magnitude)));
    }
}
"""


@final
@mypyc_attr(native_class=True)
class Float8Kernels(Handle):
    """Both kernels, loaded on one device, whose `close` unloads them."""

    __slots__ = ("device", "_pack", "_unpack")

    def __init__(self, device: Device) -> None:
        compiler: Any = device
        self.device: Final = device
        self._pack: Final[Any] = compiler.compile(CUDA_SOURCE, "pack_float8")
        self._unpack: Final[Any] = compiler.compile(CUDA_SOURCE, "unpack_float8")

    @property
    def is_closed(self) -> bool:
        """Whether the device is closed."""
        is_closed: bool = self._unpack.is_closed
        return is_closed

    def launch(
        self, stream: int, span: BufferSpan, is_packing: bool, run: int, kind: int, last_word: int, hot: Sequence[int], cold: Sequence[int]
    ) -> None:
        """Enqueue the packing, or unpacking, of one span of buffers of some pages. ``hot``: addresses of the pool's part of each page;
        ``cold``: of the packed pages. ``last_word``: the last argument of the kernel."""
        runs = (span.packed_bytes // (2 + run)) if span.is_packed else 0
        for begin in range(0, len(cold), PAGES_PER_LAUNCH):
            high = [address + span.hot_begin for address in hot[begin : begin + PAGES_PER_LAUNCH]]
            low = [address + span.cold_begin for address in cold[begin : begin + PAGES_PER_LAUNCH]]
            if not span.is_packed:
                self._copy(stream, span.num_buffers * span.buffer_bytes, is_packing, high, low)
                continue
            unused = [0] * (PAGES_PER_LAUNCH - len(high))
            pages = to_struct_argument([*high, *unused, *low, *unused])
            words = [len(high), span.num_buffers, span.buffer_bytes, run, runs, kind, last_word]
            num_blocks = ceil_div(len(high) * span.num_buffers * runs * _LANES, _THREADS)
            kernel = self._pack if is_packing else self._unpack
            kernel.launch(stream, (int(num_blocks), 1, 1), (_THREADS, 1, 1), [pages, *to_word_arguments(words)])

    def _copy(self, stream: int, num_bytes: int, is_packing: bool, high: list[int], low: list[int]) -> None:
        tiers = (CacheTier.HOST_MEM, CacheTier.GPU_MEM)
        batch = CopyBatch(tiers[0] if is_packing else tiers[1], tiers[1] if is_packing else tiers[0], num_bytes)
        for above, below in zip(high, low, strict=True):
            batch.add(below if is_packing else above, above if is_packing else below)
        self.device.copy_batch(stream, batch)
