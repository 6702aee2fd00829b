"""Pools as torch tensors: every data type, no copy, released by themselves; wrong arguments are named."""

import gc
from contextlib import closing
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kv_cache_manager_v2 import (  # noqa: E402
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.integrations.torch import layer_view, to_tokens  # noqa: E402

T = 4


def config_of(token_bytes: int, window: int | None = None, scratch: bool = False) -> KVCacheManagerConfig:
    layers = [AttentionLayerConfig(LayerId(i), [BufferConfig("key", token_bytes * T)], window) for i in range(3)]
    return KVCacheManagerConfig(
        T, [GpuCacheTierConfig(3 * token_bytes * T * 16)], layers, swa_scratch_reuse=SwaScratchReuseConfig() if scratch else None
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_every_data_type_is_the_pool_itself(dtype: str) -> None:
    kind = getattr(torch, dtype)
    token_bytes = 6 * kind.itemsize
    with closing(HostDevice()) as device, KVCacheManager(config_of(token_bytes), device=device) as manager:
        view = layer_view(manager, LayerId(1), "key", kind, (T, 2, 3))
        with manager.create_kv_cache() as sequence:
            assert sequence.resume() and sequence.resize(6)
            rows = view.rows(sequence)
            assert len(rows) == 2
            view.tensor[rows[1], 3, 1, 2] = 1
            raw = np.asarray(manager.pool_view(LayerId(1), "key", by_slot=True))
            slot = sequence.get_base_page_indices(view.layer_group_id)[1]
            last = raw[slot].view(np.uint8)[-kind.itemsize :]
            assert bytes(last) == torch.ones(1, dtype=kind).view(torch.uint8).numpy().tobytes()
        del view, raw, last
        gc.collect()


@pytest.mark.parametrize("scratch", [False, True])
def test_one_rule_with_and_without_scratch(scratch: bool) -> None:
    """What each layer writes to its rows of a windowed prefill it reads there, layer by layer."""
    with closing(HostDevice()) as device, KVCacheManager(config_of(4, window=6, scratch=scratch), device=device) as manager:
        with manager.create_kv_cache() as sequence:
            assert sequence.resume() and sequence.resize(20, 0)
            for layer in range(3):
                write_and_read(manager, sequence, layer)


def write_and_read(manager: KVCacheManager, sequence: KVCache, layer: int) -> None:
    view = layer_view(manager, LayerId(layer), "key", torch.int32, (T, 1))
    rows = torch.from_numpy(view.rows(sequence).astype(np.int64))
    assert (rows >= 0).all() and len(set(rows.tolist())) == 5
    numbers = torch.arange(20, dtype=torch.int32).view(5, T, 1) + 100 * layer
    view.tensor[rows] = numbers
    assert torch.equal(view.tensor[rows], numbers)


def test_memory_stays_while_a_tensor_is_used_and_no_longer() -> None:
    device = HostDevice()
    manager = KVCacheManager(config_of(4), device=device)
    view = layer_view(manager, LayerId(0), "key", torch.int32, (T, 1))
    part = view.tensor[3:5]
    del view
    manager.shutdown()
    part.fill_(7)
    assert int(part.sum()) == 2 * T * 7
    del part
    gc.collect()
    device.close()  # LogicError while memory is mapped


def wrong(manager: Any, **changes: Any) -> None:
    arguments = {"layer_id": LayerId(0), "data_role": "key", "dtype": torch.int32, "shape": (T, 1), **changes}
    layer_view(manager, **arguments)


def test_wrong_arguments_are_named() -> None:
    with closing(HostDevice()) as device, KVCacheManager(config_of(4), device=device) as manager:
        for changes, error, words in (
            ({"dtype": "float32"}, TypeError, "dtype must be a torch.dtype"),
            ({"shape": (T, 2)}, ValueError, "has 32 bytes; a page of layer 0, 'key', has 16"),
            ({"shape": (T, 0)}, ValueError, "ints of at least 1"),
            ({"layer_id": LayerId(9)}, ValueError, "layer"),
            ({"data_role": "state"}, ValueError, "state"),
        ):
            with pytest.raises(error, match=words):
                wrong(manager, **changes)


def test_tokens_from_tensors() -> None:
    assert to_tokens(torch.tensor([1, 2, 3])).tolist() == [1, 2, 3]
    for tokens, error in (([1, 2], TypeError), (torch.tensor([[1]]), ValueError), (torch.tensor([1.0]), ValueError)):
        with pytest.raises(error, match="tokens"):
            to_tokens(tokens)
    for number in (-1, 2**31):
        with pytest.raises(ValueError, match="from 0 to 2147483647"):
            to_tokens(torch.tensor([5, number]))
