"""Level actions: another quota, or the quota divided anew; sequences continue with pages that have moved."""

from collections.abc import Sequence
from random import Random
from typing import Final

from ...config.manager_config import KVCacheManagerConfig
from ...manager.kv_cache_manager import KVCacheManager
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement
from . import failures
from .large_worlds import QUOTA_FACTORS, SHARE_OF_ADJUSTED
from .room_judge import RoomJudge, count_slots
from .simulated_sequence import SimulatedSequence
from .state_checks import require_unchanged

_QUOTA_FACTORS: Final[Sequence[float]] = (0.3, 0.6, 1.0, 1.5)
_SHARE_OF_ADJUSTED: Final = 0.2


def change_level(
    manager: KVCacheManager, config: KVCacheManagerConfig, model: ReferenceModel, judge: RoomJudge, random: Random, is_large: bool
) -> None:
    """Change a level. If the device raises an error, every level keeps its size."""
    sizes = count_slots(manager)
    try:
        _change_level(manager, config, random, is_large)
    except failures.FAILURES as error:
        if count_slots(manager) != sizes:
            raise ModelDisagreement(f"a level was resized in a call that failed: {sizes}, now {count_slots(manager)}") from error
        raise
    model.make_room()
    judge.set_slots(*count_slots(manager))


def _change_level(manager: KVCacheManager, config: KVCacheManagerConfig, random: Random, is_large: bool) -> None:
    level = int(random.random() ** 2 * len(config.cache_tiers))
    if random.random() < (SHARE_OF_ADJUSTED if is_large else _SHARE_OF_ADJUSTED):
        manager.advance_clock(random.random() * 100)
        if random.random() < 0.5 or manager.need_adjustment:
            manager.adjust()
    else:
        dump = manager.describe()
        quota = int(config.cache_tiers[level].quota * random.choice(QUOTA_FACTORS if is_large else _QUOTA_FACTORS))
        try:
            passed = manager.resize(level, quota, random.random() < 0.5)
        except ValueError:
            passed = False
        if not passed:
            require_unchanged(dump, manager.describe())


def prefetch(
    manager: KVCacheManager, config: KVCacheManagerConfig, model: ReferenceModel, sequence: SimulatedSequence, random: Random
) -> None:
    dump = manager.describe()
    level = int(random.random() ** 2 * len(config.cache_tiers))
    if sequence.handle.prefetch(level):
        model.make_room()
    else:
        require_unchanged(dump, manager.describe())
