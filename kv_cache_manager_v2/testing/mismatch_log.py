"""The log of wrong bytes that kernels found; the engine decides when to raise.

Kernels do not raise: on a device whose streams run later, the error would reach whichever call happens to run
them. The log counts every wrong (layer, role, beam, token), and keeps the first few in full.
"""

from typing import Final, final


from .kv_mismatch import KVMismatch


@final
class MismatchLog:
    """``count``: wrong tokens so far; ``first`` has up to `MAX_KEPT` of them."""

    __slots__ = ("count", "first", "_pending")

    MAX_KEPT: Final = 16

    def __init__(self) -> None:
        self.count = 0
        self.first: Final[list[KVMismatch]] = []
        self._pending: KVMismatch | None = None

    def add(self, mismatch: KVMismatch) -> None:
        """Keep one in full; `count_more` counts it."""
        if len(self.first) < MismatchLog.MAX_KEPT:
            self.first.append(mismatch)
        if self._pending is None:
            self._pending = mismatch

    def count_more(self, num_tokens: int) -> None:
        self.count += num_tokens

    def take_pending(self) -> KVMismatch | None:
        """The first mismatch kept since the last call of this method."""
        pending = self._pending
        self._pending = None
        return pending
