"""A rolling digest of every decision: which slot, which victim, which match, which refusal, how many slots a resized level has,
how many blocks are planned.

Equal calls make equal digests, compiled or interpreted, on any device, whenever copies finish; so 8 bytes tell whether the
ranks of a tensor-parallel engine still agree, and a journal can be checked when it is run again. Not cryptographic.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

_MULTIPLIER: Final = 1099511628211  # the FNV-1a prime of 64 bits; the low 62 bits of a product are the same with any wrap-around
_MASK: Final = (1 << 62) - 1

MATCH: Final = 1
REFUSAL: Final = 2
VICTIM: Final = 3
SLOT: Final = 4
REBASE: Final = 5
NUM_SLOTS: Final = 6
PLANNED: Final = 7


@final
class DecisionDigest:
    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: i64 = 0

    def mark(self) -> i64:
        """For `roll_back`: where the digest is before a call that may be undone."""
        return self._value

    def roll_back(self, mark: i64) -> None:
        """Forget the decisions since the mark: they were undone, and the next call decides the same again."""
        self._value = mark

    def record(self, kind: i64, decision: i64) -> None:
        self._value = ((self._value ^ (decision << 3 | kind)) * _MULTIPLIER + 1) & _MASK

    def record_run(self, kind: i64, decisions: vec[i64]) -> None:
        """`record` each of them, in order."""
        value = self._value
        for decision in decisions:
            value = ((value ^ (decision << 3 | kind)) * _MULTIPLIER + 1) & _MASK
        self._value = value

    def to_bytes(self) -> bytes:
        return int(self._value).to_bytes(8, "little")
