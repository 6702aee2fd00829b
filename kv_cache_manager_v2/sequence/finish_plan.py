"""A finish plan: the order in which sequences can finish one after the other, or what they lack; a value."""

from dataclasses import dataclass

from ..base.value import Value
from ..storage.refusal import Refusal


@dataclass(frozen=True)
class FinishPlan(Value):
    """True if all sequences can finish. ``print`` says how, or what binds.

    ``order``: positions in the list that was asked about, as many of them as can finish. ``refusal``: why the others cannot, of one that
    level 0 has no room for even alone, else of the one that lacks the fewest slots; None if all can. ``spare_slots``: per pool group, how
    many slots the sequences may take as they grow, all together and in any order, before the answer can become no; all 0 if it is no.
    """

    order: tuple[int, ...]
    refusal: Refusal | None
    spare_slots: tuple[int, ...]

    def __bool__(self) -> bool:
        return self.refusal is None

    def __repr__(self) -> str:
        order = ", ".join([str(position) for position in self.order])
        if self.refusal is None:
            return f"FinishPlan(all finish, in the order {order}; spare slots {list(self.spare_slots)})"
        finishing = "none finishes" if len(self.order) == 0 else f"only {order} {'finishes' if len(self.order) == 1 else 'finish'}"
        return f"FinishPlan({finishing}; {self.refusal.text})"
