"""The scratch blocks of a sequence, which have no pages of their own, and the slots that they share."""

from collections.abc import Sequence
from typing import Final, final


from ..base.ranges import HalfOpenRange
from ..base.value import Value


@final
class ScratchDesc(Value):
    """Block ordinals ``range`` of one layer group share ``slot_ids``. A value; false when the range is empty.

    In the base page indices these blocks are `BAD_PAGE_INDEX`; a `PageIndexConverter` fills them in for each layer. The layers
    share the slots: each overwrites the bytes of the layer before it.
    """

    __slots__ = ("range", "slot_ids")

    def __init__(self, range: HalfOpenRange, slot_ids: Sequence[int]) -> None:
        self.range: Final[HalfOpenRange] = range
        self.slot_ids: Final[tuple[int, ...]] = tuple(slot_ids)

    def __bool__(self) -> bool:
        return bool(self.range)
