"""Pages as float8 numbers: e4m3, with a scale that is a power of two for each run."""

from collections.abc import Sequence
from typing import Final, SupportsIndex

import numpy as np

from ..base.checks import has_attribute
from ..device.port import Device
from ..layout.slot_desc import SlotDescVariant
from .float8_kernels import Float8Kernels
from .scaled_codec import Codes, Floats, ScaledCodec, Scales, largest_of_runs

_NAN: Final = 127
_VALUES: Final = np.concatenate(
    [np.arange(8) * 2.0**-9, np.ldexp(1 + np.arange(8) / 8, np.arange(-6, 9)[:, None]).reshape(-1)[:-1], [np.nan]]
).astype(np.float32)
"""By code without its sign: 0 to 448, and no number."""
_MOST: Final = 448.0
_MIDDLES: Final = (_VALUES[1:_NAN] + _VALUES[: _NAN - 1]) / 2
_SIGN: Final = 128
_KINDS: Final = {"float32": 0, "float16": 1, "bfloat16": 2}
"""Of numbers, as the kernels call them."""


class Float8Codec(ScaledCodec):
    """Half the bytes of float16 and bfloat16 pages, a quarter of float32, and two bytes for each scale.

    A number ``x`` comes back within ``max(|x| / 16, m / 229376, 2**-127)``, where ``m`` is the largest finite magnitude of its run;
    infinities come back finite, and no number stays none. A run per
    head and page is ``tokens_per_block * head_size`` numbers, where pages are heads of tokens. On a `CudaDevice` kernels do the same.
    """

    def __init__(self, dtype: str, values_per_scale: SupportsIndex, roles: Sequence[str] | None = None) -> None:
        super().__init__(dtype, values_per_scale, roles)
        self._kernels: list[Float8Kernels] = []
        """One of each device."""

    def validate(self, device: Device) -> None:
        """On a CUDA device compile the kernels: `CudaError` without NVRTC."""
        if device.is_software or not has_attribute(device, "compile"):
            super().validate(device)
        else:
            self._kernels_of(device)

    def _kernels_of(self, device: Device) -> Float8Kernels:
        for kernels in self._kernels:
            if kernels.device is device:
                return kernels
        self._kernels = [kernels for kernels in self._kernels if not kernels.is_closed]
        self._kernels.append(Float8Kernels(device))
        return self._kernels[-1]

    @property
    def identity(self) -> str:
        return f"float8_e4m3/1 {self._parameters()}"

    def encode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        if device.is_software:
            super().encode(device, stream, page, hot_addresses, cold_addresses)
        else:
            self._launch(device, stream, page, hot_addresses, cold_addresses, True, self.least_exponent)

    def decode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        if device.is_software:
            super().decode(device, stream, page, hot_addresses, cold_addresses)
        else:
            bits = int(np.array([self.largest], np.float32).view(np.uint32)[0])
            self._launch(device, stream, page, hot_addresses, cold_addresses, False, bits)

    def _launch(
        self,
        device: Device,
        stream: int,
        page: SlotDescVariant,
        hot: Sequence[Sequence[int]],
        cold: Sequence[int],
        is_packing: bool,
        last_word: int,
    ) -> None:
        kernels = self._kernels_of(device)
        for span in self.spans(page):
            kernels.launch(stream, span, is_packing, self._run, _KINDS[self._dtype], last_word, hot[span.pool], cold)

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
