"""What a request tells the learned policies as it releases its pages: one for all queues of a manager.

`begin` before the pages are released, `end` after it. What is pushed in between is that request's; what is pushed otherwise (a page that
moved, one that is out of its window) has no request.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

NO_REQUEST: Final = 0


@final
@mypyc_attr(native_class=True)
class RequestFacts:
    __slots__ = ("serial", "num_blocks", "num_generated_blocks", "num_generated_tokens", "_num_requests")

    serial: i64
    """Of the request that releases its pages, or NO_REQUEST."""
    num_blocks: i64
    """Of its whole text."""
    num_generated_blocks: i64
    """Of these, the last ones, which it generated."""
    num_generated_tokens: i64
    _num_requests: i64

    def __init__(self) -> None:
        self.serial = NO_REQUEST
        self.num_blocks = 0
        self.num_generated_blocks = 0
        self.num_generated_tokens = 0
        self._num_requests = 0

    def begin(self, num_blocks: i64, num_generated_blocks: i64, num_generated_tokens: i64) -> None:
        self._num_requests += 1
        self.serial = self._num_requests
        self.num_blocks = num_blocks
        self.num_generated_blocks = num_generated_blocks
        self.num_generated_tokens = num_generated_tokens

    def end(self) -> None:
        self.serial = NO_REQUEST
        self.num_blocks = 0
        self.num_generated_blocks = 0
        self.num_generated_tokens = 0
