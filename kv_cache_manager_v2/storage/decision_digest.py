"""A rolling digest of every decision: which slot, which victim, which match, which refusal, how many slots a resized level has.

Equal calls make equal digests, compiled or interpreted, on any device, whenever copies finish; so 8 bytes tell whether the
ranks of a tensor-parallel engine still agree, and a journal can be checked when it is run again. Not cryptographic.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

_MULTIPLIER: Final = 1099511628211  # the FNV-1a prime of 64 bits; the low 62 bits of a product are the same with any wrap-around
_MASK: Final = (1 << 62) - 1

MATCH: Final = 1
REFUSAL: Final = 2
VICTIM: Final = 3
SLOT: Final = 4
REBASE: Final = 5
NUM_SLOTS: Final = 6


@final
@mypyc_attr(native_class=True)
class DecisionDigest:
    __slots__ = ("value",)

    value: i64

    def __init__(self) -> None:
        self.value = 0

    def record(self, kind: i64, decision: i64) -> None:
        self.value = ((self.value ^ (decision << 3 | kind)) * _MULTIPLIER + 1) & _MASK

    def record_run(self, kind: i64, decisions: vec[i64]) -> None:
        """`note` each of them, in order."""
        value = self.value
        for decision in decisions:
            value = ((value ^ (decision << 3 | kind)) * _MULTIPLIER + 1) & _MASK
        self.value = value

    def to_bytes(self) -> bytes:
        return int(self.value).to_bytes(8, "little")
