"""The port of cold-page codecs: how pages are packed on their way from level 0 to a lower level, and unpacked on their way back.

Levels below level 0 hold packed pages, each in one slot of `cold_bytes`; what they exchange between them is copied as it is. A codec of
one's own is a subclass, which may be plain Python. What every codec guarantees:
- `cold_bytes` says the same whenever it is asked about the same slot, and no packed page takes more;
- `encode` and `decode` only *enqueue*, on the stream they are given: neither waits for the device. An error of theirs is a
  `PageMoveError` of the call that moves the pages, which stay where they are;
- `decode` writes every byte of the page that kernels use. With `is_lossless` they are those that were packed; without, packing what was
  unpacked and unpacking that changes nothing more: however often a full page is offloaded, its error is that of once. One that gets more
  tokens between two times is packed anew, bytes behind its tokens included.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from ..base.handle import Handle
from ..layout.slot_desc import SlotDescVariant
from .port import Device


@mypyc_attr(allow_interpreted_subclasses=True)
class ColdPageCodec(Handle, metaclass=ABCMeta):
    """One way of packing pages, for a manager's levels below level 0; the module's docstring has the guarantees of all codecs.

    ``page``, of all three methods: the slot as the pages' layer group uses it. Buffer ``i`` of pool ``p`` is the
    ``coalesced_buffers[p].single_buffer_size`` bytes at ``hot_addresses[p][n] + i * single_buffer_size`` of page ``n``.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def identity(self) -> str:
        """Name, version and parameters in one line, e.g. ``"float8_e4m3/1 bfloat16"``: what is packed under it, it alone can unpack."""
        raise NotImplementedError("ColdPageCodec.identity is for subclasses to define")

    @property
    @abstractmethod
    def is_lossless(self) -> bool:
        """Whether a page comes back as it went, byte for byte."""
        raise NotImplementedError("ColdPageCodec.is_lossless is for subclasses to define")

    @property
    def roles(self) -> Sequence[str] | None:
        """Roles of the buffers that it packs, None for all; a manager refuses one that no buffer has."""
        return None

    def validate(self, device: Device) -> None:
        """`ValueError`, with the way out, for a device on which this codec cannot work; a manager's constructor asks."""

    @abstractmethod
    def cold_bytes(self, page: SlotDescVariant) -> int:
        """Bytes of a packed page of this layer group; at least 1. `ValueError` for a page that the codec cannot pack.

        Packed pages of a pool lie as many bytes apart as the largest of the layer groups that share it: multiples of what the kernels
        of the codec need as alignment.
        """
        raise NotImplementedError("ColdPageCodec.cold_bytes is for subclasses to define")

    @abstractmethod
    def encode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        """Pack pages of level 0, whose addresses are by pool and page, into host memory, by page."""
        raise NotImplementedError("ColdPageCodec.encode is for subclasses to define")

    @abstractmethod
    def decode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        """Unpack what `encode` has packed, into pages of level 0."""
        raise NotImplementedError("ColdPageCodec.decode is for subclasses to define")
