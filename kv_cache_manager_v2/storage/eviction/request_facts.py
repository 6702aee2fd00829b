"""What a request tells the learned policies as it releases its pages: one for all queues of a manager.

`begin` before the pages are released, `end` after it. What is pushed in between is that request's; what is pushed otherwise (a page that
moved, one that is out of its window) has no request.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .segment_traits import NO_HINT

NO_REQUEST: Final = 0


@final
class RequestFacts:
    __slots__ = ("serial", "num_blocks", "num_generated_blocks", "num_generated_tokens", "continues", "kinds", "_num_requests")

    serial: i64
    """Of the request that releases its pages, or NO_REQUEST."""
    num_blocks: i64
    """Of its whole text."""
    num_generated_blocks: i64
    """Of these, the last ones, which it generated."""
    num_generated_tokens: i64
    continues: i64
    """What the caller said of it: NO_HINT, CONTINUES or ENDS."""
    kinds: vec[i64]
    """Levels of the kinds of its blocks, the last one first; empty where the caller named none."""

    def __init__(self) -> None:
        self._num_requests: i64 = 0
        self.end()

    def begin(self, num_blocks: i64, num_generated_blocks: i64, num_generated_tokens: i64, continues: i64 = NO_HINT) -> None:
        self._num_requests += 1
        self.serial = self._num_requests
        self.num_blocks = num_blocks
        self.num_generated_blocks = num_generated_blocks
        self.num_generated_tokens = num_generated_tokens
        self.continues = continues
        self.kinds = vec[i64]()

    def kind_at(self, block: i64) -> i64:
        """Of a block, counted from the last one."""
        return self.kinds[block] if block < len(self.kinds) else NO_HINT

    def end(self) -> None:
        self.begin(0, 0, 0)
        self.serial = NO_REQUEST
