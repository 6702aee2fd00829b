"""How deep a call is in changes that cannot be undone. Whoever counts up and is interrupted never counts down: that is how it is seen."""

from typing import final

from mypy_extensions import i64, mypyc_attr


@final
@mypyc_attr(native_class=True)
class ChangeCount:
    """``num_begun``: changes that have begun and not ended; they nest."""

    __slots__ = ("num_begun",)

    num_begun: i64

    def __init__(self) -> None:
        self.num_begun = 0

    def begin(self) -> None:
        """From here on the call changes things; an exception before `end` leaves them half done."""
        self.num_begun += 1

    def end(self) -> None:
        self.num_begun -= 1
