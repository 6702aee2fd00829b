"""Who hears of pages that are about to be dropped under memory pressure: `PageStorage.drop_watch`, None without one.

The test for None is then the whole cost.
"""

from abc import ABCMeta, abstractmethod

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(native_class=True)
class DropWatch(metaclass=ABCMeta):
    """Never fails, decides nothing, changes no page: it may order copies of the bytes, before the slot has its next user."""

    __slots__ = ()

    @abstractmethod
    def on_drop(self, page: i64) -> None:
        """A droppable page, still in its slot and with its block in the tree, goes for want of room, or with what does."""
