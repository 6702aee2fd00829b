"""Published policies beside the manager's own, in the order of tables."""

from typing import Final, final


from ... import EvictionPolicy
from ...storage.page_rows import PageRows
from ...storage.victim_queue import ContentKeys, VictimQueue
from .arc import ArcQueue
from .lfu import LfuQueue
from .own_policy import ComparedPolicy, OwnPolicy
from .s3_fifo import S3FifoQueue


@final
class Published(OwnPolicy):
    __slots__ = ()

    def make_queue(self, rows: PageRows, keys: ContentKeys) -> VictimQueue:
        if self is LFU:
            return LfuQueue(rows)
        return ArcQueue(rows, keys) if self is ARC else S3FifoQueue(rows, keys)


LFU: Final = Published("lfu")
ARC: Final = Published("arc")
S3_FIFO: Final = Published("s3-fifo")
COMPARED: Final[tuple[ComparedPolicy, ...]] = (EvictionPolicy.LRU, LFU, ARC, S3_FIFO, EvictionPolicy.LEARNED)
