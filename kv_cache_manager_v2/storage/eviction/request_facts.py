"""What a request tells the learned policies as it releases its pages: one for all queues of a manager.

`begin` before the pages are released, `end` after it. What is pushed in between is that request's; what is pushed otherwise (a page that
moved, one that is out of its window) has no request.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from .segment_traits import NO_HINT

NO_REQUEST: Final = 0


@final
@mypyc_attr(native_class=True)
class RequestFacts:
    __slots__ = ("serial", "num_blocks", "num_generated_blocks", "num_generated_tokens", "continues", "has_kinds", "kinds", "_num_requests")

    serial: i64
    """Of the request that releases its pages, or NO_REQUEST."""
    num_blocks: i64
    """Of its whole text."""
    num_generated_blocks: i64
    """Of these, the last ones, which it generated."""
    num_generated_tokens: i64
    continues: i64
    """What the caller said of it: NO_HINT, CONTINUES or ENDS."""
    has_kinds: bool
    kinds: vec[i64]
    """Then: levels of the kinds of its blocks, the last one first."""
    _num_requests: i64

    def __init__(self) -> None:
        self.serial = NO_REQUEST
        self.num_blocks = 0
        self.num_generated_blocks = 0
        self.num_generated_tokens = 0
        self.continues = NO_HINT
        self.has_kinds = False
        self.kinds = vec[i64]()
        self._num_requests = 0

    def begin(self, num_blocks: i64, num_generated_blocks: i64, num_generated_tokens: i64, continues: i64 = NO_HINT) -> None:
        self._num_requests += 1
        self.serial = self._num_requests
        self.num_blocks = num_blocks
        self.num_generated_blocks = num_generated_blocks
        self.num_generated_tokens = num_generated_tokens
        self.continues = continues

    def reserve_kinds(self) -> vec[i64]:
        """`kinds`, with room for those of all blocks of the request that has begun; none has one yet."""
        self.has_kinds = True
        kinds = self.kinds
        if len(kinds) < self.num_blocks:
            kinds = vec[i64]([0] * self.num_blocks)
            self.kinds = kinds
        for block in range(self.num_blocks):
            kinds[block] = NO_HINT
        return kinds

    def kind_at(self, block: i64) -> i64:
        """Of a block, counted from the last one."""
        return self.kinds[block] if block < self.num_blocks else NO_HINT

    def end(self) -> None:
        self.serial = NO_REQUEST
        self.num_blocks = 0
        self.num_generated_blocks = 0
        self.num_generated_tokens = 0
        self.continues = NO_HINT
        self.has_kinds = False
