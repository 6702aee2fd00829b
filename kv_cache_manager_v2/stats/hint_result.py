"""What became of a hint: a value."""

from dataclasses import dataclass

from ..base.value import Value


@dataclass(frozen=True)
class HintResult(Value):
    """Tokens of the prefix that was named: ``num_accepted + num_clipped + num_missing`` are all of them.

    ``num_clipped``: the pin budget, or the room on the level, was used up before them. ``num_missing``: not in the cache.
    """

    num_accepted: int
    num_clipped: int
    num_missing: int
