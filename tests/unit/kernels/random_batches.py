"""Random models and batches for the kernel that converts page indices, and what the host makes of them."""

import random

import numpy as np

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DensePages,
    DevicePageIndices,
    GpuCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    PageIndexMode,
    SwaScratchReuseConfig,
)

T = 4
PER_LAYER, SHARED = PageIndexMode.PER_LAYER, PageIndexMode.SHARED


def random_model(rng, with_scratch):
    layers = []
    for index in range(rng.randrange(2, 7)):
        window = rng.choice([None, 7, 20])
        roles = ["key", "value", "extra"][: rng.randrange(1, 4)]
        buffers = [BufferConfig(role, 64) for role in roles]
        if rng.random() < 0.5:
            buffers.append(BufferConfig("scale", 8, 2))
        layers.append(AttentionLayerConfig(LayerId(index), buffers, window))
    scratch = SwaScratchReuseConfig() if with_scratch else None
    return KVCacheManagerConfig(T, [GpuCacheTierConfig(1 << 21)], layers, swa_scratch_reuse=scratch)


def check_random_steps(device, seed, read_words):
    """A batch through a few steps; ``read_words(address, count)`` gives int32 of the device."""
    rng = random.Random(seed)
    with_scratch = seed % 2 == 0
    with KVCacheManager(random_model(rng, with_scratch), device=device) as manager:
        outputs = []
        for layer_id, role in manager.all_buffer_ids:
            outputs.append(DensePages(layer_id, role, PER_LAYER))
            if not with_scratch:
                outputs.append(DensePages(layer_id, role, SHARED))
        filler = rng.choice([-1, 0])
        indices = DevicePageIndices(manager, outputs, 5, 80, filler)
        addresses = [indices.address_of(number) for number in range(len(outputs))]
        sequences = [manager.create_kv_cache() for _ in range(rng.randrange(1, 6))]
        assert all(kv_cache.resume() for kv_cache in sequences)
        for _ in range(5):
            for kv_cache in sequences:
                assert kv_cache.resize(kv_cache.capacity + rng.choice([1, 3, 60]), kv_cache.capacity)
            rng.shuffle(sequences)
            indices.update(sequences, manager.device.default_stream())
            for number, output in enumerate(outputs):
                check_output(manager, output, sequences, addresses[number], filler, read_words)
        for kv_cache in sequences:
            kv_cache.close()
        device.synchronize_stream(device.default_stream())
        indices.close()
        indices.close()


def check_output(manager, output, sequences, address, filler, read_words):
    converter = manager.get_page_index_converter(output.layer_id, output.data_role)
    group = manager.get_layer_group_id(output.layer_id)
    width = 80 * converter.expansion
    found = np.asarray(read_words(address, width * len(sequences))).reshape(len(sequences), width)
    for row, kv_cache in enumerate(sequences):
        scratch = kv_cache.get_scratch_desc(group) if output.index_mode is PER_LAYER else None
        expected = converter(kv_cache.get_base_page_indices(group), output.index_mode, scratch)
        assert (found[row, : len(expected)] == np.where(expected < 0, filler, expected)).all()
