"""Clearing the cache: all of it, or one reuse scope. Refused while sequences or leases are open; then nothing has changed."""

from ..base.errors import LogicError
from ..reuse.reuse_scope import ReuseScope
from ..sequence.shared_state import SharedState
from .open_sequences import OpenSequences


def clear_all(shared: SharedState, open_sequences: OpenSequences, call: str) -> None:
    """Drop all cached pages. Sequences whose handle is gone are closed first."""
    require_closed(shared, open_sequences, call)
    shared.guard.begin_change()
    shared.drop_plans.void_all()
    shared.tree.clear()
    shared.guard.end_change()


def require_closed(shared: SharedState, open_sequences: OpenSequences, call: str) -> None:
    """`LogicError` while sequences or leases are open. Sequences whose handle is gone are closed first."""
    open_sequences.close_forgotten()
    _require_none(call, len(open_sequences), "sequence", "close() them first")
    _require_none(call, len(shared.leases), "transfer lease", "settle() them once the other side is done, open_leases has them")


def _require_none(call: str, count: int, noun: str, way_out: str) -> None:
    if count > 0:
        raise LogicError(f"{call}: {count} {noun}{'s are' if count > 1 else ' is'} still open; {way_out}")


def clear_scope(shared: SharedState, open_sequences: OpenSequences, scope: ReuseScope) -> None:
    """Drop all cached pages of the scope."""
    tree = shared.tree
    num_open = len([state for state in open_sequences.states() if state.scope == scope])
    if num_open > 0:
        raise LogicError(
            f"invalidate_reuse_scope({scope!r}): {num_open} of its sequences {'are' if num_open > 1 else 'is'} still open; "
            f"close() them first"
        )
    root = tree.find_root(scope)
    leases = shared.leases
    if len(leases) > 0 and root is not None and (tree.has_held_page(scope) or leases.has_block_below(root)):
        raise LogicError(
            f"invalidate_reuse_scope({scope!r}): transfer leases have pages of it; settle() them once the other side is done, "
            f"open_leases has them"
        )
    shared.guard.begin_change()
    if root is not None:
        shared.drop_plans.void_of(root)
    tree.clear_scope(scope)
    shared.guard.end_change()
