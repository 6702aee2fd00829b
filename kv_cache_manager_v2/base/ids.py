"""Identifiers, indices and ordinals: one type for each kind of number.

An *id* names a thing, an *index* is a position in an array of the library, an *ordinal* counts the blocks of one
sequence from 0. The types exist for the type checker only; at run time each is a plain ``int``, ``str`` or ``bytes``.
"""

from enum import IntEnum
from typing import Final, NewType, TypeAlias

LayerId = NewType("LayerId", int)
"""The engine's number of a layer; any int, unique within a configuration."""

DataRole: TypeAlias = str
"""The contents of a buffer: "key", "value", "key_scale", ... The library gives no meaning to the text."""

LifeCycleId = NewType("LifeCycleId", int)
"""Dense index of a life cycle, in order of first appearance among the configured layers."""

LayerGroupId: TypeAlias = LifeCycleId
"""The public name of `LifeCycleId`: layers that share a life cycle are a layer group."""

PoolGroupIndex = NewType("PoolGroupIndex", int)
PoolIndex = NewType("PoolIndex", int)
SlotId = NewType("SlotId", int)
BlockOrdinal = NewType("BlockOrdinal", int)
BeamIndex = NewType("BeamIndex", int)
CacheLevel = NewType("CacheLevel", int)
CudaStream = NewType("CudaStream", int)
"""The address of a CUDA stream (``int(stream)``), or a software device's number for one of its streams."""

MemAddress = NewType("MemAddress", int)
Priority = NewType("Priority", int)
"""0 (evict first) to 100 (evict last)."""

TokenId = NewType("TokenId", int)
TokenIdExt: TypeAlias = int | bytes
"""A token id, ``0 <= id < 2**31``, or the content digest of a multimodal item."""

GPU_LEVEL: Final = CacheLevel(0)
BAD_PAGE_INDEX: Final = -1
INT32_MAX: Final = 2**31 - 1
"""The largest page index that kernels read."""

DEFAULT_BEAM_INDEX: Final = BeamIndex(0)
PRIORITY_MIN: Final = Priority(0)
PRIORITY_MAX: Final = Priority(100)
PRIORITY_DEFAULT: Final = Priority(35)


class CacheTier(IntEnum):
    """The kind of memory that a cache level is made of."""

    GPU_MEM = 0
    HOST_MEM = 1
    DISK = 2


class PageIndexMode(IntEnum):
    """Whether a page index counts from the layer's own base address or from its pool's.

    SHARED: the base address contains the layer's offset; layers of equal scale share one index array.
    PER_LAYER: the base address is the pool's; the index contains the layer's offset. The only mode that can address
    scratch blocks.
    """

    SHARED = 0
    PER_LAYER = 1
