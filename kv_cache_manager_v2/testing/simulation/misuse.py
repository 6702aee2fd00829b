"""Misuse actions: calls that must be refused as the caller's mistake, and must change nothing."""

from collections.abc import Sequence
from random import Random
from typing import Any, Final, cast, final

import numpy as np

from ...base.errors import LogicError
from ...manager.kv_cache_manager import KVCacheManager
from ..reference_pages import ModelDisagreement
from .simulated_sequence import SimulatedSequence


@final
class _Attempt:
    """A method's name, its arguments, and the error that it must raise."""

    __slots__ = ("method", "arguments", "error")

    def __init__(self, method: str, arguments: Sequence[object], error: type[Exception]) -> None:
        self.method: Final = method
        self.arguments: Final = arguments
        self.error: Final = error


def misuse_manager(manager: KVCacheManager, random: Random) -> None:
    attempts = [
        _Attempt("create_kv_cache", (None, [-1]), ValueError),
        _Attempt("create_kv_cache", (None, [1, 2**31]), ValueError),
        _Attempt("create_kv_cache", (None, ["a"]), TypeError),
        _Attempt("create_kv_cache", (None, "text"), TypeError),
        _Attempt("create_kv_cache", (3, [1]), TypeError),
        _Attempt("probe_reuse_batch", ([[1], np.array([1.5])],), TypeError),
        _Attempt("get_storage_statistics", (7,), ValueError),
        _Attempt("resize_batch", ([], [1]), ValueError),
        _Attempt("commit_batch", ([], [1]), ValueError),
    ]
    _attempt(manager, manager, random.choice(attempts))


def misuse_sequence(manager: KVCacheManager, sequence: SimulatedSequence, random: Random) -> None:
    model = sequence.model
    num_groups = len(manager.layer_grouping)
    attempts = [
        _Attempt("get_base_page_indices", (num_groups,), ValueError),
        _Attempt("get_base_page_indices", (0, len(sequence.other_texts) + 1), ValueError),
        _Attempt("set_base_page_index_buf", (0, 0, np.zeros(500).data), TypeError),
    ]
    if model.capacity > 0:
        attempts.append(_Attempt("set_base_page_index_buf", (0, 0, np.zeros(0, dtype=np.int32).data), ValueError))
    if len(sequence.other_texts) > 0:
        attempts += _misuse_beams(sequence)
    elif model.is_active:
        attempts += [
            _Attempt("resume", (), LogicError),
            _Attempt("resize", (model.capacity + 1, model.history - 1), ValueError),
            _Attempt("resize", (model.history - 1, None), ValueError),
            _Attempt("resize", (None, model.capacity + 1), ValueError),
            _Attempt("resize", ("many", None), TypeError),
        ]
        least_capacity = model.peak_capacity - manager.init_config.state_checkpoints
        if model.has_state and least_capacity > model.history:
            # The recurrent state cannot be rewound so far.
            attempts.append(_Attempt("resize", (least_capacity - 1, None), LogicError))
        takes_trees = model.is_committing and not model.has_state and not manager.init_config.is_external
        beyond = ValueError if takes_trees else LogicError
        attempts += [
            _Attempt("reserve_transfer", (sequence.handle.num_blocks + 1,), ValueError),
            _Attempt("reorder_beams", ([1],), ValueError),
            _Attempt("commit_tree", ([1], [model.capacity]), beyond),
        ]
        too_many = [0] * (model.capacity - len(model.committed) + 1)
        attempts.append(_Attempt("commit", (too_many,), ValueError if model.is_committing else LogicError))
        if model.is_committing and model.capacity > len(model.committed):
            attempts.append(_Attempt("commit", ([-5],), ValueError))
    else:
        attempts += [
            _Attempt("suspend", (), LogicError),
            _Attempt("resize", (model.capacity + 1, None), LogicError),
            _Attempt("commit", ([1],), LogicError),
            _Attempt("get_aggregated_page_indices", (0,), LogicError),
            _Attempt("reserve_transfer", (), LogicError),
            _Attempt("reorder_beams", ([0],), LogicError),
        ]
    if model.is_committing:
        attempts.append(_Attempt("plan_committed_block_drop", (), LogicError))
    attempts.append(_Attempt("shutdown", (), LogicError))
    attempt = random.choice(attempts)
    _attempt(manager, manager if attempt.method == "shutdown" else sequence.handle, attempt)


def misuse_copies(manager: KVCacheManager, sequence: SimulatedSequence, random: Random) -> None:
    """Calls that would copy, or need bytes, where the memory is the engine's."""
    layer = manager.layer_ids[0]
    attempts = [
        _Attempt("reserve_transfer", (), LogicError),
        _Attempt("commit_tree", ([1], [sequence.model.capacity]), LogicError),
        _Attempt("__setattr__", ("beam_width", 2), LogicError),
    ]
    if manager.init_config.takes_no_copies:
        attempts.insert(0, _Attempt("fork", (), LogicError))
    of_manager = [
        _Attempt("resize", (0, 1 << 20), LogicError),
        _Attempt("adjust", (), LogicError),
        _Attempt("pool_view", (layer, "key"), LogicError),
        _Attempt("get_mem_pool_base_address", (layer, "key"), LogicError),
    ]
    attempt = random.choice([*attempts, *of_manager])
    _attempt(manager, manager if attempt in of_manager else sequence.handle, attempt)


def _misuse_beams(sequence: SimulatedSequence) -> list[_Attempt]:
    """Calls that a sequence with several beams does not allow, active or not."""
    width = len(sequence.other_texts) + 1
    order = ValueError if sequence.model.is_active else LogicError
    return [
        _Attempt("fork", (), LogicError),
        _Attempt("reserve_transfer", (), LogicError),
        _Attempt("reorder_beams", ([0] * (width + 1),), order),
        _Attempt("reorder_beams", ([width] * width,), order),
        _Attempt("commit_tree", ([1], [sequence.model.capacity]), LogicError),
        _Attempt("resize", ("many", None), TypeError if sequence.model.is_active else Exception),
    ]


def _attempt(manager: KVCacheManager, target: object, attempt: _Attempt) -> None:
    before = manager.describe()
    method = cast(Any, getattr(target, attempt.method))
    call = f"{attempt.method}{tuple(attempt.arguments)}"
    try:
        method(*attempt.arguments)
    except Exception as error:
        if not isinstance(error, attempt.error):
            raise
        if manager.describe() != before:
            raise ModelDisagreement(f"{call} raised {type(error).__name__} and has changed something") from error
        return
    raise ModelDisagreement(f"{call} passed; it must raise {attempt.error.__name__}")
