"""Whose bytes a durable level has: whatever changes them is named by the user, since no library can see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from ..base.checks import to_int, to_text
from .config_value import ConfigValue, given, take_text, to_tuple


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class ModelId(ConfigValue):
    """A model, as far as the bytes of its KV cache depend on it. Managers with an equal one, and equal layers, read each other's pages.

    ``name`` and ``revision`` of the weights, ``dtype`` of the cache's values; ``details``: a mapping of whatever else changes bytes
    (rope scaling, KV scales, the kernels' layout); ``salt_domain``: keeps tenants apart. ``heads``: ``(first, end)`` of the KV
    heads that this rank has, if it has not all: ranks of one model share a path then, each with its own folder.
    """

    name: str
    revision: str = ""
    dtype: str = ""
    details: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    salt_domain: str = ""
    heads: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        take_text(self, "name", "ModelId.name")
        for field in ("revision", "dtype", "salt_domain"):
            object.__setattr__(self, field, to_text(given(self, field), f"ModelId.{field}"))
        object.__setattr__(self, "details", _to_pairs(given(self, "details")))
        heads = given(self, "heads")
        if heads is not None:
            object.__setattr__(self, "heads", _to_range(heads))


def _to_pairs(details: object) -> tuple[tuple[str, str], ...]:
    """Sorted, so that the order in which they were given does not matter."""
    pairs: list[tuple[str, str]] = []
    items = tuple(details.items()) if isinstance(details, Mapping) else to_tuple(details, "ModelId.details")
    for item in items:
        pair = to_tuple(item, "each item of ModelId.details")
        if len(pair) != 2:
            raise ValueError(f"an item of ModelId.details has {len(pair)} parts; give a name and a value for each")
        pairs.append((to_text(pair[0], "a name in ModelId.details"), to_text(pair[1], f"ModelId.details[{pair[0]!r}]")))
    names = [name for name, _value in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"ModelId.details names something twice: {sorted(names)}")
    return tuple(sorted(pairs))


def _to_range(heads: object) -> tuple[int, int]:
    pair = to_tuple(heads, "ModelId.heads")
    if len(pair) != 2:
        raise ValueError(f"ModelId.heads has {len(pair)} numbers; it is (first, end)")
    first = to_int(pair[0], "ModelId.heads[0]")
    end = to_int(pair[1], "ModelId.heads[1]")
    if not 0 <= first < end:
        raise ValueError(f"ModelId.heads is ({first}, {end}); it must be 0 <= first < end")
    return int(first), int(end)
