"""Who may share with whom: sequences of one reuse scope see each other's blocks, others never."""

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class ReuseScope:
    """A root of the tree: nothing is ever shared across two scopes that differ in any field.

    ``lora_id`` names the adapter that computed the values (None: the base model); ``salt`` separates tenants (None: no
    salt). ``ReuseScope()`` is the scope of sequences that were given none. ``TypeError`` for other types: values that are
    equal but not the same (1, 1.0 and True) must not meet here.
    """

    lora_id: int | None = None
    salt: int | str | None = None

    def __post_init__(self) -> None:
        if self.lora_id is not None and (isinstance(self.lora_id, bool) or not isinstance(self.lora_id, int)):
            raise TypeError(f"ReuseScope.lora_id must be an int or None, not {type(self.lora_id).__name__}")
        if self.salt is not None and (isinstance(self.salt, bool) or not isinstance(self.salt, (int, str))):
            raise TypeError(f"ReuseScope.salt must be an int, a str or None, not {type(self.salt).__name__}")

    # Written out: those that `dataclass` makes stay interpreted, and every new sequence looks its scope up.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReuseScope):
            return NotImplemented
        return self.lora_id == other.lora_id and self.salt == other.salt

    def __hash__(self) -> int:
        return hash((self.lora_id, self.salt))


EMPTY_SCOPE = ReuseScope()


def to_scope(scope: ReuseScope | None) -> ReuseScope:
    if scope is None:
        return EMPTY_SCOPE
    if not isinstance(scope, ReuseScope):
        raise TypeError(f"reuse_scope must be a ReuseScope or None, not {type(scope).__name__}")
    return scope
