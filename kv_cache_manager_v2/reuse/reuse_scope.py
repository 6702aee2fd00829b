"""Who may share with whom: sequences of one reuse scope see each other's blocks, others never."""

from dataclasses import dataclass
from typing import Any

from mypy_extensions import mypyc_attr

from ..base.checks import to_int, to_plain_text
from ..config.config_value import given


@dataclass(frozen=True, eq=False)
@mypyc_attr(native_class=False)
class ReuseScope:
    """A root of the tree: nothing is ever shared across two scopes that differ in any field.

    ``lora_id`` names the adapter that computed the values (None: the base model); ``salt`` separates tenants (None: no
    salt). ``ReuseScope()`` is the scope of sequences that were given none. ``TypeError`` for other types: values that are
    equal but not the same (1, 1.0 and True) must not meet here.
    """

    lora_id: int | None = None
    salt: int | str | None = None

    def __post_init__(self) -> None:
        lora_id = given(self, "lora_id")
        if lora_id is not None:
            object.__setattr__(self, "lora_id", to_int(lora_id, "ReuseScope.lora_id"))
        salt = given(self, "salt")
        if isinstance(salt, str):
            object.__setattr__(self, "salt", to_plain_text(salt))
        elif salt is not None:
            object.__setattr__(self, "salt", to_int(salt, "ReuseScope.salt, unless a str or None,"))

    # Written out: those that `dataclass` makes stay interpreted, and take a scope of a subclass for another root.
    def __eq__(self, other: object) -> bool:
        return self.lora_id == other.lora_id and self.salt == other.salt if isinstance(other, ReuseScope) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.lora_id, self.salt))


EMPTY_SCOPE = ReuseScope()


def make_scope(lora_id: object, salt: object) -> ReuseScope:
    """The scope of a caller's values, whatever their types; `TypeError` for wrong ones."""
    scope_class: Any = ReuseScope
    scope: ReuseScope = scope_class(lora_id, salt)
    return scope


def to_scope(scope: object, name: str = "reuse_scope") -> ReuseScope:
    if scope is None:
        return EMPTY_SCOPE
    if not isinstance(scope, ReuseScope):
        hint = "; tokens are given by name: input_tokens=..." if isinstance(scope, (list, tuple)) else ", as in ReuseScope(salt=...)"
        raise TypeError(f"{name} must be a ReuseScope or None, not {type(scope).__name__}{hint}")
    return scope
