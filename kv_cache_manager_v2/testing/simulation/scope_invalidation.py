"""Scope actions: invalidate a scope, and check that all of its blocks are gone and no others."""

from ...base.errors import LogicError
from ...manager.kv_cache_manager import KVCacheManager
from ...reuse.reuse_scope import ReuseScope
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement


def invalidate_scope(manager: KVCacheManager, model: ReferenceModel, scope: ReuseScope) -> None:
    """Invalidate a scope. It may be refused only if a sequence or lease of the scope is open."""
    name = (scope.lora_id, scope.salt)
    others = [dump for dump in manager.describe()["tree"] if (dump["lora_id"], dump["salt"]) != name]
    try:
        manager.invalidate_reuse_scope(scope)
    except LogicError:
        if name not in [sequence.scope for sequence in model.sequences.values()] and not manager.open_leases:
            raise
        return
    if manager.describe()["tree"] != others:
        raise ModelDisagreement(f"{scope} was invalidated, and blocks of it are left, or other blocks have gone")
    # The model would report pages that disappeared without a reason; they have been checked here.
    model.make_room()
