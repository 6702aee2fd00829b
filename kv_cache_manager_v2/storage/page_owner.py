"""The page owner (the tree): what storage asks it and tells it when a published page is evicted.

Twin owner and drop watch are such listeners too. A *twin* is the page of an active sequence that equals a published page which another
active sequence has locked; it exists only where indices stay (`KVCacheManagerConfig.allow_seq_rebasing` is off). The drop watch hears of
pages that are about to be dropped under memory pressure; `PageStorage.drop_watch` is None without one, and that test is the whole cost.
"""

from abc import abstractmethod
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..stats.page_counters import PageCounters
from .victim_queue import ContentKeys

from abc import ABCMeta


class DropWatch(metaclass=ABCMeta):
    """Never fails, decides nothing, changes no page: it may order copies of the bytes, before the slot has its next user."""

    __slots__ = ()

    @abstractmethod
    def on_drop(self, page: i64) -> None:
        """A droppable page, still in its slot and with its block in the tree, goes for want of room, or with what does."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TwinOwner:
    __slots__ = ()

    @abstractmethod
    def has_twin(self, page: i64) -> bool:
        """Whether an active sequence keeps a page that equals that published one."""

    @abstractmethod
    def take_over(self, page: i64) -> bool:
        """``page`` has just lost its last lock, and is in no queue yet: its oldest twin goes on as ``page``, with the twin's slot, holds
        and locks. False, and nothing has changed, if it has none."""


ANY_LEVEL: Final = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class PageOwner(ContentKeys):
    __slots__ = ()

    @abstractmethod
    def is_published(self, page: i64) -> bool:
        """Whether the page's block is in the tree, so that its bytes never change."""

    @abstractmethod
    def durable_nodes(self, pages: vec[i64]) -> vec[i64]:
        """By position: the number of the page's block in the index of the durable level, where it is recorded by now; 0 for pages that are
        not to be found by another process."""

    @abstractmethod
    def find_page_below(self, page: i64, level: i64) -> i64:
        """A queued page that would become useless with ``page`` and must go before it, or NO_PAGE; of its pool group, on that level or
        on `ANY_LEVEL`."""

    @abstractmethod
    def on_page_dropped(self, page: i64, account: PageCounters | None) -> None:
        """``page`` has just lost its slot for good. Called during the eviction; the owner may drop further droppable pages
        of its own that are useless without this one."""

    @abstractmethod
    def drop_victims(self, level: i64, pool_group: i64, wanted: i64, cause: i64, account: PageCounters | None) -> None:
        """Drop the victims of a queue, one after another, until ``wanted`` slots are free or it is empty.

        For each: a page that `find_page_below` names goes first, the digest has the `VICTIM`, and then it is as with
        `on_page_dropped`. One call, as evicting for a prompt takes as many slots as the prompt has pages. Of several
        levels it ends early at a page that has others below it: the next page to drop may lie on another level then.
        """


@final
class OwnerKeys(ContentKeys):
    """Content keys from the owner of the published pages; queues have this object before there is an owner."""

    __slots__ = ("owner",)

    def __init__(self) -> None:
        self.owner: PageOwner | None = None

    def content_key(self, page: i64) -> i64:
        owner = self.owner
        assert owner is not None
        return owner.content_key(page)
