"""`TokenCopies` beside plain slices of numpy: buffers of up to three sizes, with heads before or behind tokens, and blocks of their own."""

from random import Random

import numpy as np
import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from kv_cache_manager_v2.storage.token_copy import TokenCopies

T = 4
NUM_SLOTS = 6
BUFFERS: dict[str, list[BufferConfig]] = {
    "one size": [BufferConfig("key", 64), BufferConfig("value", 64)],
    "two sizes": [BufferConfig("key", 64), BufferConfig("value", 32)],
    "three sizes": [BufferConfig("key", 96), BufferConfig("value", 64), BufferConfig("scale", 16)],
    "smaller blocks": [BufferConfig("key", 64), BufferConfig("value", 16, 2)],
}


@pytest.mark.parametrize("num_heads", [1, 2, 4])
@pytest.mark.parametrize("name", BUFFERS)
def test_tokens_are_copied_in_all_buffers(name: str, num_heads: int) -> None:
    choices = Random(len(name) * num_heads)
    buffers = BUFFERS[name]
    layers = [AttentionLayerConfig(LayerId(0), buffers), AttentionLayerConfig(LayerId(1), buffers[:1])]
    num_bytes = sum(buffer.size * buffer.expansion(T) for layer in layers for buffer in layer.buffers)
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(NUM_SLOTS * num_bytes)], layers)
    device = HostDevice(granularity_bytes=4096)
    with KVCacheManager(config, device=device) as manager:
        views = {
            (layer.layer_id, buffer.role): (np.asarray(manager.pool_view(layer.layer_id, buffer.role, by_slot=True)), buffer)
            for layer in layers for buffer in layer.buffers
        }  # fmt: skip
        for view, _buffer in views.values():
            view[:] = np.array([choices.randrange(256) for _ in range(view.size)], np.uint8).reshape(view.shape)
        expected = {place: view.copy() for place, (view, _buffer) in views.items()}
        copies = TokenCopies(manager._shared_for_batch().storage, T, num_heads)
        stream = device.create_stream()
        for _batch in range(3):
            # Slots 0 to 2 are read and 3 to 5 written, so that no copy depends on another; the second batch begins empty.
            targets = choices.sample([(slot, token) for slot in range(3, NUM_SLOTS) for token in range(T)], choices.randrange(1, 8))
            for slot, token in targets:
                source_slot, source_token = choices.randrange(3), choices.randrange(T)
                copies.add(0, source_slot, source_token, slot, token)
                for place, (_view, buffer) in views.items():
                    # [slot, own block of the buffer, head, token in it, bytes]
                    own_tokens = T // buffer.expansion(T)
                    rows = expected[place].reshape(NUM_SLOTS, -1)[:, : buffer.size * buffer.expansion(T)]
                    shaped = rows.reshape(NUM_SLOTS, buffer.expansion(T), num_heads, own_tokens, -1).copy()
                    shaped[slot, token // own_tokens, :, token % own_tokens] = shaped[
                        source_slot, source_token // own_tokens, :, source_token % own_tokens
                    ]
                    expected[place] = shaped.reshape(expected[place].shape)
            copies.enqueue(stream)
            copies.enqueue(stream)
            device.synchronize_stream(stream)
            for place, (view, _buffer) in views.items():
                assert np.array_equal(view, expected[place]), place
        device.destroy_stream(stream)
