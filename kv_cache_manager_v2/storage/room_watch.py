"""Who counts what prompts miss for want of room: `PageStorage.room_watch`, None without one.

The test for None is then the whole cost.
"""

from abc import ABCMeta, abstractmethod

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(native_class=True)
class RoomWatch(metaclass=ABCMeta):
    """Never fails, decides nothing, changes no page."""

    __slots__ = ()

    @abstractmethod
    def on_page_gone(self, page: i64, cause: i64) -> None:
        """A droppable page, its block still in the tree, goes for want of room, or with what does; ``cause`` is a `removal_cause`."""
