"""`CallGuard`: what a handle that was dropped leaves to the next call, and what an interruption of that leaves to the one after."""

import pytest

from kv_cache_manager_v2.base.change_count import ChangeCount
from kv_cache_manager_v2.journal.call_records import CallRecords
from kv_cache_manager_v2.sequence.call_guard import Abandoned, CallGuard


class Dropped(Abandoned):
    """Raises what it is given, once, when the next call closes it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
        self.num_closed = 0

    def close_abandoned(self) -> None:
        error = self.error
        self.error = None
        if error is not None:
            raise error
        self.num_closed += 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OSError("a callback's")])
def test_an_interrupted_look_leaves_the_guard_free(error: BaseException) -> None:
    guard = CallGuard(ChangeCount(), CallRecords())
    dropped = Dropped(error)
    guard.add_abandoned(dropped)
    with pytest.raises(type(error)), guard:
        pass
    assert not guard.is_broken and not guard.is_idle, "it still has something to close"
    with guard:
        assert dropped.num_closed == 1
    assert guard.is_idle
