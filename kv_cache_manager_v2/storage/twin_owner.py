"""The owner of twin pages: what storage tells it when a published page loses its last lock.

A *twin* is the page of an active sequence that equals a published page which another active sequence has locked. It exists only where
indices stay (`KVCacheManagerConfig.allow_seq_rebasing` is off).
"""

from abc import abstractmethod

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class TwinOwner:
    __slots__ = ()

    @abstractmethod
    def has_twin(self, page: i64) -> bool:
        """Whether an active sequence keeps a page that equals that published one."""

    @abstractmethod
    def take_over(self, page: i64) -> bool:
        """``page`` has just lost its last lock, and is in no queue yet: its oldest twin goes on as ``page``, with the twin's slot, holds
        and locks. False, and nothing has changed, if it has none."""
