"""A refusal: why a call found no room; made only when one does not."""

from typing import Final, final


from ..base.value import Value


@final
class Refusal(Value):
    """The pool group that bound. ``asked`` slots more were needed than the call itself would have freed."""

    __slots__ = ("level", "pool_group", "asked", "free", "evictable", "text")

    def __init__(self, level: int, pool_group: int, asked: int, free: int, evictable: int, text: str) -> None:
        self.level: Final[int] = level
        self.pool_group: Final[int] = pool_group
        self.asked: Final[int] = asked
        self.free: Final[int] = free
        self.evictable: Final[int] = evictable
        self.text: Final[str] = text

    def __repr__(self) -> str:
        return f"Refusal({self.text})"
