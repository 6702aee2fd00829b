"""Pages as integers of four bits, -7 to 7, with a scale for each run."""

from collections.abc import Sequence
from typing import Final, SupportsIndex

import numpy as np

from .scaled_codec import Codes, Floats, ScaledCodec, Scales, largest_of_runs

_MOST: Final = 7
_ZERO: Final = 8
"""The code of 0; code 0 is no number."""
_SCALE_BITS: Final = 5
"""Bits of a scale's integer: seven times it has eight, and bfloat16 has as many."""


class Int4Codec(ScaledCodec):
    """A quarter of the bytes of float16 and bfloat16 pages, and two bytes for each scale: with 32 values for each 3.6 times fewer.

    A number comes back within ``m / 13``, where ``m`` is the largest finite magnitude of its run, or ``m / 7`` where that is under
    ``2**-17`` in float16 and ``2**-119`` in the other types; infinities come back finite, and no number stays none. Subnormal
    numbers of float32 and bfloat16 may come back as 0.
    """

    bits_per_value = 4

    def __init__(self, dtype: str, values_per_scale: SupportsIndex = 32, roles: Sequence[str] | None = None) -> None:
        super().__init__(dtype, values_per_scale, roles)

    @property
    def identity(self) -> str:
        return f"int4/1 {self._parameters()}"

    def _to_codes(self, values: Floats) -> tuple[Scales, Codes]:
        least = largest_of_runs(values).astype(np.float64) / _MOST
        exponent = np.maximum(np.frexp(least)[1] - _SCALE_BITS, self.least_exponent)
        integer = np.maximum(np.ceil(np.ldexp(least, -exponent)), 1).astype(np.int32)
        # Of the least exponent, integers are powers of two: another largest number would have another scale the next time.
        is_small = integer < 1 << (_SCALE_BITS - 1)
        integer = np.where(is_small, 1 << np.ceil(np.log2(integer)).astype(np.int32), integer)
        # Rounded up to one bit more.
        is_wide = integer == 1 << _SCALE_BITS
        integer, exponent = np.where(is_wide, integer >> 1, integer), exponent + is_wide
        scale = np.ldexp(integer.astype(np.float64), exponent)
        rounded = np.clip(np.rint(values / scale), -_MOST, _MOST)
        is_number = ~np.isnan(values)
        codes = np.where(is_number, np.where(is_number, rounded, 0).astype(np.int32) + _ZERO, 0).astype(np.uint8)
        pairs = np.bitwise_or(codes[..., ::2], np.left_shift(codes[..., 1::2], np.uint8(4)))
        return ((exponent << _SCALE_BITS) | integer).astype(np.int16), pairs.astype(np.uint8)

    def _to_values(self, scales: Scales, codes: Codes) -> Floats:
        both = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], -1).astype(np.int32)
        wide = scales.astype(np.int32)
        integers = (both - _ZERO) * (wide & ((1 << _SCALE_BITS) - 1))
        values: Floats = np.ldexp(integers.astype(np.float32), wide >> _SCALE_BITS)
        return np.where(both == 0, np.float32(np.nan), values)
