"""torch, numpy and CuPy see the pools' own memory: no copy, the right strides, any type, no way to crash with it."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    BufferId,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    PageIndexMode,
    SwaScratchReuseConfig,
)

SHARED, PER_LAYER = PageIndexMode.SHARED, PageIndexMode.PER_LAYER


def import_torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed; it is a dependency of these tests only")


def two_layers(**settings: Any) -> KVCacheManagerConfig:
    """Keys and values of 64 bytes in one pool; layer 1's scales of 2 * 8 bytes for kernels with blocks of half the
    size."""
    layers = [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64), BufferConfig("value", 64)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", 64), BufferConfig("value", 64), BufferConfig("scale", 8, 2)]),
    ]
    return KVCacheManagerConfig(4, [GpuCacheTierConfig(20 * (4 * 64 + 16))], layers, **settings)


def test_rows_are_page_indices_and_addresses_agree() -> None:
    with KVCacheManager(two_layers(reserve_null_slot=True), device=HostDevice()) as manager:
        for buffer_id in manager.all_buffer_ids:
            for mode in (SHARED, PER_LAYER):
                view = manager.pool_view(*buffer_id, index_mode=mode)
                pages = np.asarray(view)
                stride = manager.get_page_stride(*buffer_id)
                assert pages.dtype == np.uint8 and pages.shape == view.shape and pages.strides == (stride, 1)
                assert pages.__array_interface__["data"][0] == manager.get_mem_pool_base_address(*buffer_id, mode)
                if mode is SHARED:
                    assert len(pages) == manager.get_page_index_upper_bound(*buffer_id)
                with run_prompt(manager, list(range(9))) as kv_cache:
                    converter = manager.get_page_index_converter(*buffer_id)
                    slots = kv_cache.get_base_page_indices(0)
                    indices = converter(slots, mode)
                    pages[indices] = np.arange(len(indices), dtype=np.uint8)[:, None] + 100
                    by_slot = np.asarray(manager.pool_view(*buffer_id, by_slot=True))
                    expected = np.repeat(np.arange(len(indices)) + 100, stride).reshape(3, -1)
                    assert (by_slot[np.asarray(slots)] == expected).all()


def test_views_of_neighbours_do_not_overlap() -> None:
    with KVCacheManager(two_layers(), device=HostDevice()) as manager:
        views = [np.asarray(manager.pool_view(*buffer_id, by_slot=True)) for buffer_id in manager.all_buffer_ids]
        for number, view in enumerate(views):
            view[:] = number
        for number, view in enumerate(views):
            assert (view == number).all() and view.shape[0] == 20


def test_default_mode_is_the_one_that_reaches_scratch_blocks() -> None:
    with manager_of([8], swa_scratch_reuse=SwaScratchReuseConfig()) as manager:
        view = manager.pool_view(0, "value")
        assert view.address == manager.get_mem_pool_base_address(0, "value", PER_LAYER)
        assert view.shape == (64 * 2, 32)


@pytest.mark.parametrize("name", ["int8", "uint16", "int32", "int64", "float16", "float32", "float64"])
def test_other_types(name: str) -> None:
    with manager_of() as manager:
        typed = np.asarray(manager.pool_view(0, "key", name))
        size = np.dtype(name).itemsize
        assert typed.dtype == np.dtype(name) and typed.shape == (127, 32 // size) and typed.strides == (32, size)


def test_numpy_by_dlpack() -> None:
    with manager_of() as manager:
        view = manager.pool_view(0, "key", "float16")
        assert view.__dlpack_device__() == (1, 0)
        array = np.from_dlpack(view)
        assert array.dtype == np.float16 and array.shape == (127, 16) and array.strides == (32, 2)
        assert array.__array_interface__["data"][0] == view.address
        np.asarray(manager.pool_view(0, "key", "uint16"))[5] = 0x3C00
        assert (array[5] == 1.0).all()
        del array
        view.release()


@pytest.mark.parametrize("name", ["uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("by_slot", [False, True])
def test_torch_wraps_without_a_copy(name: str, by_slot: bool) -> None:
    torch = import_torch()
    with manager_of([None, 8]) as manager:
        view = manager.pool_view(0, "value", name, by_slot=by_slot)
        tensor = torch.from_dlpack(view)
        assert tensor.dtype == getattr(torch, name) and tuple(tensor.shape) == view.shape
        assert tensor.data_ptr() == view.address and tensor.device.type == "cpu"
        assert tensor.stride() == (view.strides_bytes[0] // tensor.element_size(), 1)
        tensor.view(torch.uint8)[3] = 7
        assert (np.asarray(manager.pool_view(0, "value", by_slot=by_slot))[3] == 7).all()
        heads = tensor.view(len(tensor), 4, -1)
        assert heads.data_ptr() == view.address and heads.shape[1] == 4
        del tensor, heads
        view.release()


def test_what_does_not_fit_is_refused() -> None:
    with KVCacheManager(two_layers(), device=HostDevice()) as manager:
        with pytest.raises(ValueError):
            manager.pool_view(0, "key", "complex64")
        with pytest.raises(ValueError):
            manager.pool_view(0, "nothing")
        with pytest.raises(ValueError):
            manager.pool_view(7, "key")
        view = manager.pool_view(0, "key", "bfloat16")
        assert not hasattr(view, "__array_interface__"), "numpy has no bfloat16"
        assert not hasattr(view, "__cuda_array_interface__")
        with pytest.raises(BufferError):
            view.__dlpack__(copy=True)
        with pytest.raises(BufferError):
            view.__dlpack__(dl_device=(2, 0))
        view.release()
        view.release()
        with pytest.raises(LogicError):
            view.__dlpack__()


def test_a_view_keeps_the_memory_until_it_is_released() -> None:
    device = HostDevice()
    manager = KVCacheManager(KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 12)], [layer()]), device=device)
    array = np.asarray(manager.pool_view(0, "key"))
    array[:] = 9
    unused = manager.pool_view(0, "key")
    manager.shutdown()
    assert (array == 9).all()
    array[:] = 8
    assert (array == 8).all()
    with pytest.raises(LogicError):
        unused.__array_interface__
    with pytest.raises(LogicError):
        manager.pool_view(0, "key")
    with pytest.raises(LogicError):
        device.close()  # the memory is still there
    del array, unused
    device.close()


def layer() -> AttentionLayerConfig:
    return AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)])


def test_a_tensor_keeps_the_memory_until_the_view_is_released() -> None:
    torch = import_torch()
    device = HostDevice()
    manager = KVCacheManager(KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 12)], [layer()]), device=device)
    view = manager.pool_view(0, "key")
    tensor = torch.from_dlpack(view)
    tensor[:] = 5
    manager.shutdown()
    assert bool((tensor == 5).all())
    del tensor
    with pytest.raises(LogicError):
        device.close()
    view.release()
    device.close()


PROGRAM = """
import gc, sys
import numpy as np
from kv_cache_manager_v2 import *
how, order = sys.argv[1:]
layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)])
manager = KVCacheManager(KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 20)], [layer]), device=HostDevice())
if how == "torch":
    import torch
    make, sum_of = torch.from_dlpack, lambda tensor: int(tensor.long().sum())
else:
    make, sum_of = {"numpy": np.asarray, "dlpack": np.from_dlpack}[how], lambda array: int(array.sum())
view = manager.pool_view(0, "key")
array = make(view)
np.asarray(manager.pool_view(0, "key"))[:] = 1
if order == "shutdown":
    manager.shutdown()
elif order == "drop":
    del manager
elif order == "drop_view":
    del view
    manager.shutdown()
elif order == "cycle":
    holder = [array, view, manager]
    holder.append(holder)
    sys.modules["__main__"].holder = holder
gc.collect()
assert sum_of(array) == 1 << 20
print("fine")
class Late:
    def __del__(self, kept=array, total=sum_of):
        assert total(kept) == 1 << 20
        print("later")
sys.kept = Late()
"""


@pytest.mark.parametrize("order", ["shutdown", "drop", "drop_view", "cycle", "nothing"])
@pytest.mark.parametrize("how", ["numpy", "dlpack", "torch"])
def test_no_order_of_ends_crashes(how: str, order: str) -> None:
    """Arrays that outlive the view, the manager and the interpreter's end."""
    if how == "torch":
        import_torch()
    command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM, how, order]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("fine")
    assert "Error" not in ran.stderr and "Exception" not in ran.stderr, ran.stderr


SMALLER = """
import numpy as np
from kv_cache_manager_v2 import *
layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 4096)])
config = KVCacheManagerConfig(4, [GpuCacheTierConfig(64 * 4096)], [layer])
with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
    view = manager.pool_view(LayerId(0), "key")
    rows = np.asarray(view)
    rows[:] = 1
    assert manager.resize(0, 16 * 4096)
    assert int(rows.sum()) == 16 * 4096, int(rows.sum())
    rows[:] = 2
    assert manager.resize(0, 64 * 4096)
    assert int(rows[:16].sum()) == 2 * 16 * 4096
    rows[40:] = 3
    assert int(np.asarray(manager.pool_view(LayerId(0), "key"))[40:].sum()) == 3 * 24 * 4096
print("fine")
"""


def test_an_array_outlives_its_rows() -> None:
    """Level 0 was made smaller: rows without a page can be touched, and read as zeros; after growing they are there again."""
    ran = subprocess.run([sys.executable, "-P", "-c", SMALLER], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "fine\n"), ran.stderr


def test_pool_groups_and_byte_ranges_for_transfers() -> None:
    """Slots of 4 * 64 bytes in one pool and 2 * 8 in another; a range is what lies side by side."""
    with KVCacheManager(two_layers(), device=HostDevice()) as manager:
        (group,) = manager.pool_group_descs
        assert group.pool_group_index == 0 and group.num_slots == 20
        assert [pool.slot_bytes for pool in group.pools] == [256, 16]
        assert group.slot_desc.slot_size_list == (256, 16)
        keys = [pool.base_address for pool in group.pools]
        ranges = manager.get_aggregated_pages(manager.all_buffer_ids)
        assert [(found.base, found.size, found.stride) for found in ranges] == [(keys[0], 256, 256), (keys[1], 16, 16)]
        assert [found.layer_group_id for found in ranges] == [0, 0]
        chosen = [BufferId(LayerId(1), "value"), BufferId(LayerId(0), "value"), BufferId(LayerId(1), "key")]
        (found,) = manager.get_aggregated_pages(chosen)
        assert (found.base, found.size, found.stride) == (keys[0] + 64, 192, 256)
        assert [buffer.id for buffer in found.buffers] == [chosen[1], chosen[2], chosen[0]]
        assert len(manager.get_aggregated_pages([chosen[0], BufferId(LayerId(0), "key")])) == 2
        assert manager.get_aggregated_pages([]) == []
        with pytest.raises(ValueError):
            manager.get_aggregated_pages([BufferId(LayerId(0), "nothing")])
        view = np.asarray(manager.pool_view(1, "value", by_slot=True))
        assert view.__array_interface__["data"][0] == keys[0] + 192
