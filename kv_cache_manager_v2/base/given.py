"""The type of an argument that is looked at when it is given: `Given[bool]` is a bool to whoever calls, and to mypy.

mypyc checks an argument against its type before the function begins, and its `TypeError` names no argument; a bool passes for an int
there. So mypyc is told another name (`setup_mypyc.py`): to it the argument is any object, and the function must check it before use,
or it does not compile.
"""

from typing import Annotated, Final, TypeAlias, TypeVar

_T = TypeVar("_T")

ANY_OBJECT_IS_GIVEN: Final = False
"""True for mypyc only."""

if not ANY_OBJECT_IS_GIVEN:
    Given: TypeAlias = Annotated[_T, "checked when it is given"]
else:
    Given: TypeAlias = _T | object
