"""The outcome of a hint (retain, prefetch, drop): a value."""

from dataclasses import dataclass

from ..base.value import Value


@dataclass(frozen=True)
class HintResult(Value):
    """Token counts of the named prefix: ``num_accepted + num_clipped + num_missing`` is its length.

    ``num_clipped``: the pin budget, or the slots of the level, did not suffice. ``num_missing``: in no cached
    block of the prefix. Those are whole blocks, and a shorter last one if it ends where the prefix does.
    """

    num_accepted: int
    num_clipped: int
    num_missing: int
