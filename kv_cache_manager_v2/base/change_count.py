"""A counter of irreversible changes under way. An interrupted call leaves it above zero: that shows that state is half changed."""

from typing import final

from mypy_extensions import i64


@final
class ChangeCount:
    """``num_begun``: changes that have begun and not ended. Changes nest. An exception in ``with changes:`` leaves state half changed, and
    the count above zero."""

    __slots__ = ("num_begun",)

    def __init__(self) -> None:
        self.num_begun: i64 = 0

    def __enter__(self) -> None:
        self.num_begun += 1

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        if error is None:
            self.num_begun -= 1
