"""Pages as float8 numbers: e4m3, with a scale that is a power of two for each run."""

from typing import Final

import numpy as np

from .scaled_codec import Codes, Floats, ScaledCodec, Scales, largest_of_runs

_NAN: Final = 127
_VALUES: Final = np.concatenate(
    [np.arange(8) * 2.0**-9, np.ldexp(1 + np.arange(8) / 8, np.arange(-6, 9)[:, None]).reshape(-1)[:-1], [np.nan]]
).astype(np.float32)
"""By code without its sign: 0 to 448, and no number."""
_MOST: Final = 448.0
_MIDDLES: Final = (_VALUES[1:_NAN] + _VALUES[: _NAN - 1]) / 2
_SIGN: Final = 128


class Float8Codec(ScaledCodec):
    """Half the bytes of float16 and bfloat16 pages, a quarter of float32, and two bytes for each scale.

    A number ``x`` comes back within ``max(|x| / 16, m / 229376)``, where ``m`` is the largest finite magnitude of its run; infinities come
    back finite, and no number stays none. Where ``m`` is under ``2**-121``, of float32 and bfloat16, numbers may come back as 0. A run per
    head and page is ``tokens_per_block * head_size`` numbers, where pages are heads of tokens.
    """

    @property
    def identity(self) -> str:
        return f"float8_e4m3/1 {self._parameters()}"

    def _to_codes(self, values: Floats) -> tuple[Scales, Codes]:
        mantissa, exponent = np.frexp(largest_of_runs(values) / np.float32(_MOST))
        exponent = np.maximum(exponent - (mantissa == 0.5), self.least_exponent + 9)
        magnitudes = np.minimum(np.ldexp(np.abs(values), -exponent), np.float32(_MOST))
        codes = np.searchsorted(_MIDDLES, magnitudes).astype(np.uint8)
        codes[np.isnan(values)] = _NAN
        return exponent.astype(np.int16), codes | (np.signbit(values).astype(np.uint8) * _SIGN)

    def _to_values(self, scales: Scales, codes: Codes) -> Floats:
        values: Floats = np.ldexp(_VALUES[codes & _NAN], scales.astype(np.int32))
        return np.where(codes >= _SIGN, -values, values)
