"""Codecs of a replay by their names: the sizes of real ones, without their work, as no byte is checked."""

from typing import Final, final


from .. import ColdPageCodec, SlotDescVariant
from ..codecs.float8_codec import Float8Codec
from ..codecs.int4_codec import Int4Codec
from ..testing.recorded_codec import SizesOnlyCodec

CODEC_NAMES: Final = ("float8", "int4")
_DTYPE: Final = "bfloat16"
_VALUES_PER_SCALE: Final = {"float8": 512, "int4": 32}
_ROLES: Final = ("key", "value")
"""What is packed; recurrent states are not."""


@final
class SizedCodec(SizesOnlyCodec):
    """The name and the sizes of another codec."""

    __slots__ = ("_codec",)

    def __init__(self, codec: ColdPageCodec) -> None:
        self._codec: Final = codec

    @property
    def identity(self) -> str:
        return self._codec.identity

    @property
    def is_lossless(self) -> bool:
        return self._codec.is_lossless

    def cold_bytes(self, page: SlotDescVariant) -> int:
        return self._codec.cold_bytes(page)


def make_codec(name: str | None) -> SizedCodec | None:
    if name is None:
        return None
    kind = Float8Codec if name == "float8" else Int4Codec
    return SizedCodec(kind(_DTYPE, _VALUES_PER_SCALE[name], _ROLES))
