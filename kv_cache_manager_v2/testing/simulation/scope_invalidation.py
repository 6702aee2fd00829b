"""Declare a scope void, and see that all of it is gone and nothing else."""

from ...base.errors import LogicError
from ...manager.kv_cache_manager import KVCacheManager
from ...reuse.reuse_scope import ReuseScope
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement


def invalidate_scope(manager: KVCacheManager, model: ReferenceModel, scope: ReuseScope) -> None:
    """A refusal must have a sequence, or a lease, to be for."""
    name = (scope.lora_id, scope.salt)
    others = [picture for picture in manager.describe()["tree"] if (picture["lora_id"], picture["salt"]) != name]
    try:
        manager.invalidate_reuse_scope(scope)
    except LogicError:
        if name not in [sequence.scope for sequence in model.sequences.values()] and not manager.open_leases:
            raise
        return
    if manager.describe()["tree"] != others:
        raise ModelDisagreement(f"{scope} is void, and blocks of it are left, or other blocks have gone")
    # The model would miss pages that went without a reason; here they have been looked for.
    model.make_room()
