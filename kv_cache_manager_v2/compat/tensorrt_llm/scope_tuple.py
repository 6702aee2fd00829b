"""`ReuseScope` as TensorRT-LLM has it, a tuple of two; and whatever else the engine gives as a scope."""

from typing import NamedTuple

from ...base.checks import has_attribute
from ...reuse import reuse_scope as core


class ReuseScope(NamedTuple):
    """Sequences of one scope share blocks. ``lora_id``: the adapter; ``salt``: the tenant; None: neither."""

    lora_id: int | None = None
    salt: int | str | None = None


def to_core_scope(reuse_scope: object) -> core.ReuseScope:
    """None, an adapter's id, a tuple of two, or an object with ``lora_id`` and ``salt``. `TypeError` for anything else."""
    if reuse_scope is None:
        return core.EMPTY_SCOPE
    if isinstance(reuse_scope, core.ReuseScope):
        return reuse_scope
    lora_id: object
    salt: object = None
    if isinstance(reuse_scope, tuple):
        if len(reuse_scope) != 2:
            raise TypeError(f"reuse_scope must be a tuple of lora_id and salt, not of {len(reuse_scope)}")
        lora_id, salt = reuse_scope
    elif isinstance(reuse_scope, int) and not isinstance(reuse_scope, bool):
        lora_id = reuse_scope
    elif has_attribute(reuse_scope, "lora_id") and has_attribute(reuse_scope, "salt"):
        lora_id = getattr(reuse_scope, "lora_id")
        salt = getattr(reuse_scope, "salt")
    else:
        raise TypeError(f"reuse_scope must be a ReuseScope, an adapter's id or None, not {type(reuse_scope).__name__}")
    return core.make_scope(lora_id, salt)


def to_scope_tuple(scope: core.ReuseScope) -> ReuseScope:
    return ReuseScope(scope.lora_id, scope.salt)
