"""Packing of numbers with one scale for each run of them: what `Float8Codec` and `Int4Codec` share.

A packed buffer is the scales, two bytes each, then the codes. A scale is a small integer times a power of two, so that numbers come out
that the page's type has exactly, and packing these again gives the same numbers.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from ..base.checks import to_int_within, to_short_list, to_text
from .numpy_codec import Bytes, NumpyCodec

Floats: TypeAlias = npt.NDArray[np.float32]
Codes: TypeAlias = npt.NDArray[np.uint8]
Scales: TypeAlias = npt.NDArray[np.int16]

_LARGEST: Final = {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "bfloat16": float(2.0**127 * (2 - 2.0**-7))}
_SCALE_BYTES: Final = 2
_MOST_ROLES: Final = 64


class ScaledCodec(NumpyCodec):
    """``dtype``: of the packed buffers' numbers. ``values_per_scale``: so many that lie side by side have one scale. ``roles``: of the
    buffers that are packed; None for all. The others are kept as they are."""

    bits_per_value: int = 8

    def __init__(self, dtype: str, values_per_scale: SupportsIndex, roles: Sequence[str] | None = None) -> None:
        super().__init__(dtype)
        self._run: Final = int(to_int_within(values_per_scale, "values_per_scale", 2, 1 << 20))
        if self._run % 2 != 0:
            raise ValueError(f"values_per_scale is {self._run}; it must be even, as codes may be half a byte")
        given = [] if roles is None else to_short_list(roles, "roles", _MOST_ROLES)
        self._roles: Final = None if roles is None else sorted({to_text(role, "one of roles") for role in given})
        if self._roles is not None and len(self._roles) == 0:
            raise ValueError("roles is empty, so nothing would be packed: name some, leave it out for all, or give no codec")

    @property
    def is_lossless(self) -> bool:
        return False

    @property
    def roles(self) -> Sequence[str] | None:
        return self._roles

    def _parameters(self) -> str:
        return f"{self._dtype} {self._run} {'all' if self._roles is None else self._roles}"

    def packs(self, role: str) -> bool:
        return self._roles is None or role in self._roles

    def packed_bytes(self, role: str, num_bytes: int) -> int:
        """`ValueError` if the numbers make no whole runs."""
        if not self.packs(role):
            return num_bytes
        run_bytes = self._run * self._item_bytes
        if num_bytes % run_bytes != 0:
            raise ValueError(
                f"a buffer of role {role!r} has {num_bytes} bytes in a page, no multiple of values_per_scale={self._run} numbers of type "
                f"{self._dtype}: give another number, or roles without it"
            )
        return num_bytes // run_bytes * (_SCALE_BYTES + self._run * self.bits_per_value // 8)

    def pack(self, hot: Bytes) -> Bytes:
        # Whatever lies behind a page's tokens is packed with them.
        with np.errstate(all="ignore"):
            scales, codes = self._to_codes(self._to_floats(hot).reshape(len(hot), -1, self._run))
        return np.concatenate((scales.reshape(len(hot), -1).view(np.uint8), codes.reshape(len(hot), -1)), axis=1)

    def unpack(self, cold: Bytes) -> Bytes:
        run_bytes = self._run * self.bits_per_value // 8
        num_runs = cold.shape[1] // (_SCALE_BYTES + run_bytes)
        scales = np.ascontiguousarray(cold[:, : num_runs * _SCALE_BYTES]).view(np.int16).reshape(len(cold), num_runs, 1)
        codes = cold[:, num_runs * _SCALE_BYTES :].reshape(len(cold), num_runs, run_bytes)
        with np.errstate(all="ignore"):
            values = self._to_values(scales, codes).reshape(len(cold), -1)
            return self._to_bytes(np.clip(values, -self.largest, self.largest))

    def _to_floats(self, hot: Bytes) -> Floats:
        hot = np.ascontiguousarray(hot)
        if self._dtype == "bfloat16":
            return (hot.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        floats: Floats = hot.view(self._dtype).astype(np.float32)
        return floats

    def _to_bytes(self, values: Floats) -> Bytes:
        if self._dtype == "bfloat16":
            # The numbers have eight bits at most: nothing is cut off.
            return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        data: Bytes = values.astype(self._dtype).view(np.uint8)
        return data

    @property
    def largest(self) -> float:
        """The largest finite number of the page's type."""
        return _LARGEST[self._dtype]

    @property
    def least_exponent(self) -> int:
        """Two to this power is a number of the page's type, and all its small multiples are."""
        return -24 if self._dtype == "float16" else -126

    @abstractmethod
    def _to_codes(self, values: Floats) -> tuple[Scales, Codes]:
        """Scales and codes of runs of numbers, by page and run."""

    @abstractmethod
    def _to_values(self, scales: Scales, codes: Codes) -> Floats:
        """The numbers of runs."""


def largest_of_runs(values: Floats) -> Floats:
    """The largest finite magnitude of each run."""
    largest: Floats = np.max(np.abs(values), axis=-1, keepdims=True, initial=0.0, where=np.isfinite(values))
    return largest
