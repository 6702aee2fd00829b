"""Pools as torch tensors, with the rule that says which row is which block; tokens from torch tensors.

A `LayerView` is one object for one (layer, role): `LayerView.tensor` is the pool, and `LayerView.rows` are the rows of a sequence's
blocks, with scratch slots and without, in windowed layers and in recurrent ones. So an engine has one addressing.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..base.ids import DataRole, LayerId, PageIndexMode
from ..base.missing_package import missing_package
from ..config.layer_config import SsmLayerConfig
from ..layout.page_index import PageIndexConverter
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager

try:
    import torch
except ImportError as error:
    raise missing_package("kv_cache_manager_v2.integrations.torch", "torch", error) from error


class LayerView:
    """The pages of one layer and role as a torch tensor over the pool; made by `layer_view`.

    The pool's memory stays while `tensor`, or a tensor made from it, is used; it is freed when the last one is gone and the manager
    is shut down. On a GPU a sequence's pages are touched on its stream; on the CPU as soon as `resume`, `resize` or `commit` is back
    (not with ``HostDevice(calls_wait_for_disk=False)``). After `KVCacheManager.resize` of level 0 and after `adjust` make a new view: rows
    were added or moved.
    """

    __slots__ = ("tensor", "layer_id", "data_role", "layer_group_id", "_converter", "_is_state")

    def __init__(self, manager: KVCacheManager, layer_id: LayerId, data_role: DataRole, dtype: Any, shape: Sequence[int]) -> None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype, e.g. torch.bfloat16, not {type(dtype).__name__}")
        view = manager.pool_view(layer_id, data_role, index_mode=PageIndexMode.PER_LAYER)
        num_pages, page_bytes = view.shape
        items = 1
        for size in shape:
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"shape is {tuple(shape)!r}; it must be of ints of at least 1")
            items *= size
        if items * dtype.itemsize != page_bytes:
            raise ValueError(
                f"shape {tuple(shape)} of {dtype} has {items * dtype.itemsize} bytes; a page of layer {layer_id}, {data_role!r}, "
                f"has {page_bytes}"
            )
        # Through the array protocols rather than DLPack: the tensor keeps the view alive, which releases itself with the last of them.
        raw = torch.from_numpy(np.asarray(view)) if hasattr(view, "__array_interface__") else torch.as_tensor(view, device="cuda")
        self.tensor: Final[Any] = raw.view(dtype).view(num_pages, *shape)
        self.layer_id: Final = layer_id
        self.data_role: Final = data_role
        self._converter: Final[PageIndexConverter] = manager.get_page_index_converter(layer_id, data_role)
        self._is_state: Final = _is_state(manager, layer_id, data_role)
        group = manager.state_layer_group_id(layer_id) if self._is_state else manager.get_layer_group_id(layer_id)
        self.layer_group_id: Final[int] = group

    def rows(self, kv_cache: KVCache, beam_id: int = 0) -> npt.NDArray[np.int32]:
        """The row of `tensor` of each block of an ACTIVE sequence, as int32; -1 where the layer needs no page any more.

        Of a recurrent layer one row, the sequence's state. Valid until the next call that changes the sequence. `LogicError` unless the
        sequence is ACTIVE.
        """
        if self._is_state:
            slot = kv_cache.get_ssm_block_base_index(self.layer_group_id, beam_id)
            return self._converter([slot], PageIndexMode.PER_LAYER)
        indices = kv_cache.get_base_page_indices(self.layer_group_id, beam_id)
        return self._converter(indices, PageIndexMode.PER_LAYER, kv_cache.get_scratch_desc(self.layer_group_id))


def layer_view(manager: KVCacheManager, layer_id: LayerId, data_role: DataRole, dtype: Any, shape: Sequence[int]) -> LayerView:
    """A view of one layer's pages of one role as ``[rows, *shape]`` of ``dtype``, without a copy; on the pool's device.

    ``dtype``: any torch dtype, bfloat16 and the float8 ones included. ``shape``: of one page, e.g. ``(tokens_per_block, heads,
    head_dim)``; its bytes must be the page's, else `ValueError`.
    """
    return LayerView(manager, layer_id, data_role, dtype, shape)


def to_tokens(tokens: Any) -> npt.NDArray[np.int32]:
    """A one-dimensional torch tensor of token ids as int32 in host memory, which every call of the library takes.

    ``tokens``: of int32 or int64, ids from 0 to 2**31 - 1. From a GPU it is copied, and the host waits for that.
    """
    if not isinstance(tokens, torch.Tensor):
        raise TypeError(f"tokens must be a torch tensor, not {type(tokens).__name__}")
    if tokens.dim() != 1 or tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"tokens is a tensor of shape {tuple(tokens.shape)} and {tokens.dtype}; give one dimension of int32 or int64")
    ids: npt.NDArray[Any] = tokens.detach().cpu().numpy()
    if ids.size > 0 and not 0 <= int(ids.min()) <= int(ids.max()) < 2**31:
        raise ValueError(f"token ids are from {ids.min()} to {ids.max()}; they must be from 0 to {2**31 - 1}")
    return ids.astype(np.int32)


def _is_state(manager: KVCacheManager, layer_id: LayerId, data_role: DataRole) -> bool:
    for layer in manager.init_config.layers:
        if layer.layer_id == layer_id and any(buffer.role == data_role for buffer in layer.buffers):
            return isinstance(layer, SsmLayerConfig)
    raise ValueError(f"the manager has no buffer of layer {layer_id} and role {data_role!r}")
