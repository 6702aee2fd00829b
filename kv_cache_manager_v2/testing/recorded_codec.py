"""A codec in the place of the one that a journal's manager had: which slot a page gets does not depend on its bytes."""

import json
from abc import ABCMeta
from collections.abc import Sequence
from typing import Any, Final, final


from ..device.cold_page_codec import ColdPageCodec
from ..device.port import Device
from ..layout.slot_desc import SlotDescVariant


class SizesOnlyCodec(ColdPageCodec, metaclass=ABCMeta):
    """A codec that leaves all bytes as they are, for runs in which none is read."""

    __slots__ = ()

    def encode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        pass

    def decode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        pass


@final
class RecordedCodec(SizesOnlyCodec):
    """What a journal says of a codec: its name and its sizes."""

    __slots__ = ("_identity", "_is_lossless", "_cold_bytes")

    def __init__(self, described: bytes) -> None:
        """``described``: by `describe_codec`. `ValueError` if it is not."""
        found: Any = json.loads(described)
        try:
            self._identity: Final[str] = str(found["identity"])
            self._is_lossless: Final[bool] = bool(found["is_lossless"])
            self._cold_bytes: Final[list[int]] = [int(size) for size in found["cold_bytes"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"this describes no codec: {error!r}") from error

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def is_lossless(self) -> bool:
        return self._is_lossless

    def cold_bytes(self, page: SlotDescVariant) -> int:
        if page.layer_group_id >= len(self._cold_bytes):
            raise ValueError(f"layer group {page.layer_group_id} is not among those of the codec, {len(self._cold_bytes)}")
        return self._cold_bytes[page.layer_group_id]
