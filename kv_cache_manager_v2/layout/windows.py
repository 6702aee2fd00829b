"""Scratch blocks: the input blocks of a step that need no page of their own.

While a step computes tokens ``H .. C-1``, the blocks that hold them are its *input blocks*, ``[ceil(H/T),
ceil(C/T))``; the block that tokens ``H`` shares with history is not one of them. Input blocks that are stale as soon
as the step ends are needed only while their own layer runs: *scratch blocks*. Speculative decoding may reject up to
``max_rewind_len`` tokens of the step, so "stale" is computed at history ``C - max_rewind_len``.
"""

from typing import SupportsIndex

from mypy_extensions import i64

from ..base.checks import to_count
from ..base.given import Given
from ..base.integer_math import ceil_div
from ..base.ranges import HalfOpenRange
from .life_cycle import LifeCycle


def compute_scratch_range(
    history_length: SupportsIndex,
    capacity: SupportsIndex,
    life_cycle: Given[LifeCycle],
    tokens_per_block: SupportsIndex,
    max_rewind_len: SupportsIndex = 0,
) -> HalfOpenRange:
    """The scratch blocks of a step from ``history_length`` to ``capacity`` tokens; empty has ``end == beg``."""
    history = to_count(history_length, "history_length")
    end = to_count(capacity, "capacity")
    if not isinstance(life_cycle, LifeCycle):
        raise TypeError(f"life_cycle must be a LifeCycle, not {type(life_cycle).__name__}")
    size = to_count(tokens_per_block, "tokens_per_block")
    rewind = to_count(max_rewind_len, "max_rewind_len")
    if history > end:
        raise ValueError(f"history_length is {history} and capacity {end}; history must be at most the capacity")
    if size < 1:
        raise ValueError("tokens_per_block is 0; a block has at least one token")
    beg = compute_scratch_beg(history, end, life_cycle, size, rewind)
    return HalfOpenRange(int(beg), int(compute_scratch_end(history, end, life_cycle, size, rewind)))


def compute_scratch_beg(history: i64, capacity: i64, life_cycle: LifeCycle, tokens_per_block: i64, max_rewind_len: i64) -> i64:
    """The first scratch block, if there is any; the arguments are not checked."""
    kept_length = capacity - max_rewind_len if capacity > max_rewind_len else 0
    first_input = ceil_div(history, tokens_per_block)
    stale_beg = life_cycle.compute_stale_beg(kept_length, tokens_per_block)
    return stale_beg if stale_beg > first_input else first_input


def compute_scratch_end(history: i64, capacity: i64, life_cycle: LifeCycle, tokens_per_block: i64, max_rewind_len: i64) -> i64:
    """One past the last scratch block; `compute_scratch_beg` if there is none, never less."""
    # A block is stale only if its last token is history, so the stale range never reaches past the input blocks.
    kept_length = capacity - max_rewind_len if capacity > max_rewind_len else 0
    beg = compute_scratch_beg(history, capacity, life_cycle, tokens_per_block, max_rewind_len)
    stale_end = life_cycle.compute_stale_end(kept_length, tokens_per_block)
    return stale_end if stale_end > beg else beg
