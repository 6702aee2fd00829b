"""A batch's page tables in the shapes of attention kernels, kept up to date step by step; and the pool as an array.

Two sequences share a system prompt, so their first page is the same. No GPU needed.
"""

import numpy as np

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BatchPageTable,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    StridedPages,
)

T, HEADS, HEAD_SIZE = 16, 2, 64
size = T * HEADS * HEAD_SIZE * 4  # float32
layers = [AttentionLayerConfig(LayerId(i), [BufferConfig("key", size), BufferConfig("value", size)]) for i in range(2)]
config = KVCacheManagerConfig(T, [GpuCacheTierConfig(4 << 20)], layers)
prompts = [[*range(100, 116), 1, 2], [*range(100, 116), 7, 8, 9, 10]]

with KVCacheManager(config, device=HostDevice()) as manager:
    group = manager.get_layer_group_id(LayerId(0))
    batch = BatchPageTable(manager, max_num_sequences=4, max_num_blocks=8)
    block_table = batch.add_block_table(StridedPages(group))
    csr = batch.add_csr(StridedPages(group))
    slot_mapping = batch.add_slot_mapping(StridedPages(group), max_num_input_tokens=64)

    sequences: list[KVCache] = []
    for prompt in prompts:
        sequence = manager.create_kv_cache(input_tokens=prompt[:-1])
        assert sequence.resume() and sequence.resize(len(prompt))
        batch.add(sequence)
        batch.update([0] * len(sequences) + [len(prompt) - sequence.history_length])
        print("prefill writes to", slot_mapping.array[: batch.query_start_loc[len(batch)]].tolist())
        sequence.commit(prompt[sequence.num_committed_tokens :])
        sequences.append(sequence)

    assert manager.resize_batch(sequences, [sequence.capacity + 1 for sequence in sequences]) == 2
    batch.update()  # one token each
    print("block_table", block_table.rows[:, :3].tolist(), "seq_lens", batch.seq_lens[:2].tolist())
    print("indptr", csr.indptr[:3].tolist(), "indices", csr.indices[: csr.indptr[2]].tolist())
    print("last_page_len", csr.last_page_len[:2].tolist())

    # What a kernel is given: the keys of layer 1 as [slots, tokens, heads, head size], a view of the pool.
    keys = np.asarray(manager.pool_view(LayerId(1), "key", "float32", by_slot=True)).reshape(-1, T, HEADS, HEAD_SIZE)
    page, token = divmod(int(slot_mapping.array[0]), T)
    keys[page, token] = 1.0  # the first sequence's new token
    print("keys", keys.shape, "written at", (page, token))
    del keys  # the memory stays as long as somebody has it

    for sequence in sequences:
        batch.remove(sequence)
        sequence.close()
