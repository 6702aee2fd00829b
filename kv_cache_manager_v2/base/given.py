"""The type of an argument that the function itself checks: `Given[bool]` is a bool to callers and to mypy.

mypyc checks arguments against their types before the function begins. Its `TypeError` does not name the argument, and it accepts
a bool for an int. So for mypyc `Given` is any object (`setup_mypyc.py`): the function must convert the argument before use, or it
does not compile.
"""

from typing import Annotated, Final, TypeAlias, TypeVar

_T = TypeVar("_T")

ANY_OBJECT_IS_GIVEN: Final = False
"""True for mypyc only."""

if not ANY_OBJECT_IS_GIVEN:
    Given: TypeAlias = Annotated[_T, "checked when it is given"]
else:
    Given: TypeAlias = _T | object
