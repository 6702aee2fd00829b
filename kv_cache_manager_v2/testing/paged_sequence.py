"""The interface that the fake engine needs of a sequence and its manager: that of an engine's adapter, public API only.

`KVCache` and `KVCacheManager` have it; any other object with these members works too.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from ..base.ids import BeamIndex, DataRole, LayerGroupId, LayerId, PageIndexMode


class PagedManager(Protocol):
    """The manager's side: constant per layer and role, but for the upper bound."""

    @property
    def layer_grouping(self) -> Sequence[Sequence[LayerId]]: ...

    def get_layer_group_id(self, layer_id: LayerId, /) -> LayerGroupId: ...

    def get_mem_pool_base_address(self, layer_id: LayerId, data_role: DataRole, index_mode: PageIndexMode | None, /) -> int: ...

    def get_page_stride(self, layer_id: LayerId, data_role: DataRole, /) -> int: ...

    def get_page_index_upper_bound(self, layer_id: LayerId, data_role: DataRole, /) -> int: ...

    def get_page_index_converter(self, layer_id: LayerId, data_role: DataRole, /) -> Any: ...


class PagedSequence(Protocol):
    """The sequence's side: changes with every call that changes the sequence.

    With scratch reuse it also has ``get_scratch_desc(layer_group_id)``, and for recurrent layers
    ``get_ssm_block_base_index(layer_group_id, beam_id)``; otherwise these are not called.
    """

    @property
    def id(self) -> Any: ...

    @property
    def manager(self) -> Any: ...

    @property
    def cuda_stream(self) -> Any: ...

    @property
    def is_active(self) -> bool: ...

    @property
    def capacity(self) -> int: ...

    @property
    def beam_width(self) -> int: ...

    def supports_index_mode(self, mode: PageIndexMode, /) -> bool: ...

    def get_base_page_indices(self, layer_group_id: LayerGroupId, beam_id: BeamIndex, /) -> Any: ...
