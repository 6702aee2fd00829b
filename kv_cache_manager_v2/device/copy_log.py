"""Copies that a device lists instead of making: the engine's workers execute them, in order, before the kernels of the next step."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.handle import Handle


@final
class CopyLog(Handle):
    """Copies enqueued since the last list was taken, by address, in the order of the calls.

    The order of the lists is the device's only stream order: what was enqueued before list ``n`` was taken is done once it is executed.
    """

    __slots__ = ("targets", "sources", "num_taken", "num_done")

    def __init__(self) -> None:
        self.targets: Final[list[int]] = []
        self.sources: Final[list[int]] = []
        self.num_taken: i64 = 0
        """The number of the last list that was taken."""
        self.num_done: i64 = 0
        """The number of the last list that all workers have executed."""

    def add(self, targets: vec[i64], sources: vec[i64], count: i64) -> None:
        """List the first ``count`` copies."""
        for position in range(count):
            self.targets.append(int(targets[position]))
            self.sources.append(int(sources[position]))

    def clear(self) -> None:
        """Forget what is listed: a list was taken, or everything is void."""
        self.targets.clear()
        self.sources.clear()
