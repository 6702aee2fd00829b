"""Told of calls that bring pages up: `KVCache.resume`, `KVCache.prefetch` and `KVCacheManager.prefetch`; for traces."""

from abc import ABCMeta, abstractmethod
from typing import Final

from mypy_extensions import mypyc_attr

ONBOARD: Final = "onboard"
PREFETCH: Final = "prefetch"


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class MoveWatch(metaclass=ABCMeta):
    """Called outside the manager's guard, on the thread that makes the call; changes nothing, and must not raise."""

    __slots__ = ()

    @abstractmethod
    def begin(self) -> None:
        """The call is about to begin."""

    @abstractmethod
    def end(self, kind: str, sequence_id: int | None, is_done: bool, error: BaseException | None) -> None:
        """The call has ended. ``kind``: ONBOARD or PREFETCH; ``sequence_id`` None: of no sequence; ``is_done``: it found room."""
