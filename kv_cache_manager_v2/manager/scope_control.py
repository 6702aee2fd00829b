"""Reuse scopes as a whole: what is kept for one can be declared void. Base of `KVCacheManager`."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from ..base.errors import LogicError
from ..base.given import Given
from ..reuse.reuse_scope import ReuseScope, to_scope
from .retention_hints import RetentionHints


@mypyc_attr(native_class=True)
class ScopeControl(RetentionHints):
    __slots__ = ()

    def invalidate_reuse_scope(self, reuse_scope: Given[ReuseScope | None] = None) -> None:
        """Forget everything that is kept for reuse in that scope: its adapter was loaded anew, say, or its tenant has left.

        Other scopes are left alone, with open sequences or without. Events and statistics say "scope_invalidated"; plans to drop
        published ends in the scope are void. `LogicError` while sequences of the scope, or leases on its pages, are open; then
        nothing has changed. A scope that has nothing is fine.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            scope = to_scope(reuse_scope)
            tree = self._shared.tree
            num_open = len([state for state in self._open_sequences.states() if state.scope == scope])
            if num_open > 0:
                raise LogicError(
                    f"invalidate_reuse_scope({scope!r}): {num_open} of its sequences {'are' if num_open > 1 else 'is'} still open; "
                    f"close() them first"
                )
            root = tree.find_root(scope)
            leases = self._shared.leases
            if len(leases) > 0 and root is not None and (tree.has_held_page(scope) or leases.has_block_below(root)):
                raise LogicError(
                    f"invalidate_reuse_scope({scope!r}): transfer leases have pages of it; settle() them once the other side is done, "
                    f"open_leases has them"
                )
            guard.begin_change()
            if root is not None:
                self._shared.drop_plans.void_of(root)
            tree.clear_scope(scope)
            guard.end_change()
            if self._shared.journal is not None:
                self._shared.journal.invalidate(scope.lora_id, scope.salt)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()
