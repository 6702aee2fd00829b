"""The last published batches, kept for consumers that missed some."""

from collections import deque
from typing import Final, final

from mypy_extensions import mypyc_attr


@final
@mypyc_attr(native_class=True)
class PublishedBatch:
    __slots__ = ("sequence", "payload")

    sequence: Final[int]
    payload: Final[bytes]

    def __init__(self, sequence: int, payload: bytes) -> None:
        self.sequence = sequence
        self.payload = payload


@final
@mypyc_attr(native_class=True)
class ReplayBuffer:
    """Batches in the order of their sequence numbers; numbers may be skipped."""

    __slots__ = ("_batches", "_max_batches", "_is_complete_from")

    _batches: Final[deque[PublishedBatch]]
    _max_batches: Final[int]
    _is_complete_from: int
    """The oldest number from which on the buffer has everything."""

    def __init__(self, max_batches: int, first_sequence: int) -> None:
        self._batches = deque()
        self._max_batches = max_batches
        self._is_complete_from = first_sequence

    def add(self, batch: PublishedBatch) -> None:
        self._batches.append(batch)
        if len(self._batches) > self._max_batches:
            self._is_complete_from = self._batches.popleft().sequence + 1

    def forget_up_to(self, sequence: int) -> None:
        """A batch was lost: a replay must not begin before that number."""
        self._batches.clear()
        self._is_complete_from = sequence + 1

    def has_all_from(self, sequence: int) -> bool:
        return sequence >= self._is_complete_from

    def since(self, sequence: int) -> list[PublishedBatch]:
        return [batch for batch in self._batches if batch.sequence >= sequence]
