"""What a block's history says of a missed token: one cause for each kind of removal."""

import pytest

from kv_cache_manager_v2.events import removal_cause
from kv_cache_manager_v2.reuse.miss_explainer import _cause_of
from kv_cache_manager_v2.reuse.removal_history import FIRST_DROPPED, IN_OTHER_SCOPE, IS_HERE, NOT_KNOWN
from kv_cache_manager_v2.stats import miss_cause

CAUSES = {
    "CAPACITY": miss_cause.EVICTED,
    "UNREACHABLE": miss_cause.UNREACHABLE,
    "SHRUNK": miss_cause.SHRUNK,
    "FAILURE": miss_cause.LOAD_FAILED,
}


@pytest.mark.parametrize("name", [name for name in vars(removal_cause) if name.isupper()])
def test_of_each_removal(name: str) -> None:
    value = getattr(removal_cause, name)
    if isinstance(value, int):
        assert _cause_of(FIRST_DROPPED + value) == CAUSES.get(name, miss_cause.DROPPED)


def test_of_blocks_that_were_not_removed() -> None:
    assert _cause_of(NOT_KNOWN) == miss_cause.NOT_REMEMBERED
    assert _cause_of(IN_OTHER_SCOPE) == miss_cause.OTHER_SCOPE
    assert _cause_of(IS_HERE) == miss_cause.EVICTED
