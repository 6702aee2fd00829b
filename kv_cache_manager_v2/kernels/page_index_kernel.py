"""The formulas of `PageIndexConverter` as a CUDA kernel: one launch for a batch of sequences and many layers."""

from typing import Final

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
