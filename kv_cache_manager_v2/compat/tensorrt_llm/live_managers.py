"""The managers of this process that are not shut down, and the first invariant that failed in one of them."""

from __future__ import annotations

from typing import Final

from ...sequence.call_guard import CallGuard

_guards: Final[list[CallGuard]] = []
_reasons: Final[list[str]] = []
"""The first reason of a manager that is shut down, if there was one."""


def register_manager(guard: CallGuard) -> None:
    _guards.append(guard)


def unregister_manager(guard: CallGuard) -> None:
    """Once is enough, more often is fine."""
    for position, other in enumerate(_guards):
        if other is guard:
            reason = guard.broken_reason
            if reason is not None and len(_reasons) == 0:
                _reasons.append(reason)
            del _guards[position]
            return


def num_live_managers() -> int:
    """Managers that were made and not shut down."""
    return len(_guards)


def poison_reason() -> str | None:
    """The first invariant that failed in a manager of this process; None if none did. Asking changes nothing."""
    if len(_reasons) > 0:
        return _reasons[0]
    for guard in _guards:
        reason = guard.broken_reason
        if reason is not None:
            return reason
    return None


def take_poison() -> str | None:
    """The same, and forget it; only once no manager is live: None until then."""
    if len(_guards) > 0 or len(_reasons) == 0:
        return None
    return _reasons.pop(0)
