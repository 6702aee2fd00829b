"""Questions before calls: what `find_refusal` says is what `resize` and `resize_batch` then do, and asking leaves no trace."""

from collections.abc import Sequence
from typing import Final, final


from ...manager.kv_cache import KVCache
from ...storage.refusal import Refusal
from ..reference_pages import ModelDisagreement
from .run_state import RunState
from .simulated_sequence import SimulatedSequence


@final
class Question:
    """An answer that the call must agree with."""

    __slots__ = ("refusal",)

    def __init__(self, refusal: Refusal | None) -> None:
        self.refusal: Final = refusal


def ask_before_resize(run: RunState, sequence: SimulatedSequence, capacity: int, history: int) -> Question | None:
    """None where the device may fail, and the call with it."""
    if run.scenario.fault_share > 0.0 or len(sequence.model.residency) > 0:
        return None
    before = _traces(run)
    question = Question(sequence.handle.find_refusal(capacity, history))
    _require_no_traces(run, before)
    return question


def ask_before_batch(run: RunState, handles: Sequence[KVCache], capacities: Sequence[int], histories: Sequence[int]) -> Question | None:
    """The same for `resize_batch`."""
    windowed = {one.handle.id for one in run.sequences if len(one.model.residency) > 0}
    if run.scenario.fault_share > 0.0 or any([handle.id in windowed for handle in handles]):
        return None
    before = _traces(run)
    question = Question(run.manager.find_refusal(handles, capacities, histories))
    _require_no_traces(run, before)
    return question


def judge_answer(run: RunState, question: Question | None, passed: bool) -> None:
    """The call was made. A refusal is the one that was foretold, to the number."""
    if question is not None and question.refusal != (None if passed else run.manager.last_refusal):
        raise ModelDisagreement(f"find_refusal said {question.refusal}, resize {passed}: {run.manager.last_refusal}")


def judge_answer_of_batch(run: RunState, question: Question | None, passed: bool) -> None:
    """The refusal of a batch names the level and the pool group; how many slots were evicted by then is not foretold."""
    if question is None:
        return
    refusal, made = question.refusal, run.manager.last_refusal
    if refusal is None and passed:
        return
    if refusal is None or made is None or passed or (refusal.level, refusal.pool_group) != (made.level, made.pool_group):
        raise ModelDisagreement(f"find_refusal said {refusal}, resize_batch {passed}: {made}")


def _traces(run: RunState) -> tuple[bytes, Refusal | None, list[int]]:
    levels = range(len(run.manager.cache_tier_list))
    refusals = [counts.refusals for level in levels for counts in run.manager.get_storage_statistics(level)]
    return run.manager.state_digest(), run.manager.last_refusal, refusals


def _require_no_traces(run: RunState, before: tuple[bytes, Refusal | None, list[int]]) -> None:
    if _traces(run) != before:
        raise ModelDisagreement(f"find_refusal left traces: {before} before, {_traces(run)} after")
