"""Life cycles: the rule by which a layer group needs or no longer needs a block. Pure arithmetic on lengths.

A window of ``W`` tokens includes the token that is being computed. With a history of ``H`` tokens the next token sits
at position ``H`` and reads positions ``H + 1 - W .. H``, and the sinks. So, with ``T`` tokens per block and ``S``
sink blocks, the *stale* blocks, which no layer reads again, are

    block     0 .. S-1 | S .......... e-1 | e ......... floor(H/T)          S = min(S, ceil(H / T))
              sinks    | stale            | window                          e = floor((H + 1 - W) / T)

or none if that is no range. Without a window nothing is ever stale. Recurrent state is one value per sequence and not a
page per block; such a life cycle has no blocks that could become stale.

Layers with equal life cycles form a layer group; which layers those are is the registry's matter. A part number divides layers that
need the same blocks into several groups, and changes nothing in the arithmetic.
"""

from abc import ABCMeta, abstractmethod
from typing import Final, final

from mypy_extensions import i64

from ..base.checks import MAX_COUNT, to_count, to_int
from ..base.given import Given
from ..base.integer_math import ceil_div
from ..base.ranges import HalfOpenRange
from ..base.value import Value


# Not `ABC` as a base: compiled classes would accept weak references through it and then never clear them.
class LifeCycle(Value, metaclass=ABCMeta):
    """The rule that says how long a layer group needs a block. A value: equal ones are the same life cycle."""

    __slots__ = ()

    @property
    @abstractmethod
    def has_page_per_block(self) -> bool:
        """Whether each block has a page of its own; if not, there is one state per sequence and beam."""
        raise NotImplementedError("LifeCycle.has_page_per_block is for subclasses to define")

    @property
    @abstractmethod
    def window_size(self) -> int | None:
        """Tokens that the next token reads, itself included; None if it reads all."""
        raise NotImplementedError("LifeCycle.window_size is for subclasses to define")

    @property
    @abstractmethod
    def num_sink_blocks(self) -> int:
        """Blocks at the start of the sequence that a windowed layer never stops reading."""
        raise NotImplementedError("LifeCycle.num_sink_blocks is for subclasses to define")

    @abstractmethod
    def compute_stale_beg(self, history_length: i64, tokens_per_block: i64) -> i64:
        """The first stale block, if there is one."""
        raise NotImplementedError("LifeCycle.compute_stale_beg is for subclasses to define")

    @abstractmethod
    def compute_stale_end(self, history_length: i64, tokens_per_block: i64) -> i64:
        """One past the last stale block; `compute_stale_beg` if there is none, never less."""
        raise NotImplementedError("LifeCycle.compute_stale_end is for subclasses to define")

    def compute_stale_range(self, history_length: Given[int], tokens_per_block: Given[int]) -> HalfOpenRange:
        """The blocks that no layer will read again once ``history_length`` tokens are there."""
        history = to_count(history_length, "history_length")
        size = to_count(tokens_per_block, "tokens_per_block")
        if size < 1:
            raise ValueError(f"tokens_per_block is {size}; it must be at least 1")
        beg = self.compute_stale_beg(history, size)
        return HalfOpenRange(beg, self.compute_stale_end(history, size))

    def get_stale_range(self, history_length: Given[int], tokens_per_block: Given[int]) -> HalfOpenRange:
        """The name that `compute_stale_range` has in TensorRT-LLM."""
        return self.compute_stale_range(history_length, tokens_per_block)


@final
class AttnLifeCycle(LifeCycle):
    """Attention to all tokens, or to the last ``window_size`` and to the first ``num_sink_blocks`` blocks. Other ``part``, other group."""

    __slots__ = ("_has_window", "_window", "_sinks", "_part")

    def __init__(self, window_size: Given[int | None] = None, num_sink_blocks: Given[int] = 0, part: Given[int] = 0) -> None:
        window = 0 if window_size is None else to_int(window_size, "window_size")
        num_sinks = to_int(num_sink_blocks, "num_sink_blocks")
        if window > MAX_COUNT or num_sinks > MAX_COUNT:
            raise ValueError(f"window_size is {window}, num_sink_blocks {num_sinks}; neither may be over {MAX_COUNT}")
        if window_size is not None and window < 1:
            raise ValueError(f"window_size is {window}; it must be at least 1, or None for no window")
        if num_sinks < 0:
            raise ValueError(f"num_sink_blocks is {num_sinks}; it must not be negative")
        if window_size is None and num_sinks > 0:
            raise ValueError(f"num_sink_blocks is {num_sinks} without a window; leave the sinks out")
        self._has_window: Final[bool] = window_size is not None
        self._window: Final[i64] = window
        self._sinks: Final[i64] = num_sinks
        self._part: Final[i64] = to_count(part, "part")

    @staticmethod
    def make(
        window_size: Given[int | None], num_sink_tokens: Given[int | None], tokens_per_block: Given[int], part: Given[int] = 0
    ) -> "AttnLifeCycle":
        """The life cycle of a layer as it is configured, in tokens."""
        num_sinks = 0 if num_sink_tokens is None else to_count(num_sink_tokens, "num_sink_tokens")
        size = to_count(tokens_per_block, "tokens_per_block")
        if size < 1:
            raise ValueError(f"tokens_per_block is {size}; it must be at least 1")
        if window_size is None and num_sinks > 0:
            raise ValueError(f"num_sink_tokens is {num_sinks}, and window_size None: without a window leave the sinks out")
        return AttnLifeCycle(window_size, int(ceil_div(num_sinks, size)), part)

    @property
    def has_page_per_block(self) -> bool:
        return True

    @property
    def window_size(self) -> int | None:
        return int(self._window) if self._has_window else None

    @property
    def num_sink_blocks(self) -> int:
        return int(self._sinks)

    @property
    def part(self) -> int:
        """The number that `AttentionLayerConfig.part` gave its layers."""
        return int(self._part)

    def compute_stale_beg(self, history_length: i64, tokens_per_block: i64) -> i64:
        num_history_blocks = ceil_div(history_length, tokens_per_block)
        return self._sinks if self._sinks < num_history_blocks else num_history_blocks

    def compute_stale_end(self, history_length: i64, tokens_per_block: i64) -> i64:
        beg = self.compute_stale_beg(history_length, tokens_per_block)
        if not self._has_window or history_length < self._window:
            return beg
        # The first block with a token in the window; the blocks before it, but for the sinks, are stale.
        window_beg = (history_length + 1 - self._window) // tokens_per_block
        return window_beg if window_beg > beg else beg

    def __repr__(self) -> str:
        part = f", part={self.part}" if self._part > 0 else ""
        return f"AttnLifeCycle(window_size={self.window_size}, num_sink_blocks={self.num_sink_blocks}{part})"


@final
class SsmLifeCycle(LifeCycle):
    """Recurrent state: one slot per sequence and beam, no page per block, nothing that could become stale."""

    __slots__ = ()

    def _arguments(self) -> tuple[object, ...]:
        return ()

    @property
    def has_page_per_block(self) -> bool:
        return False

    @property
    def window_size(self) -> int | None:
        return None

    @property
    def num_sink_blocks(self) -> int:
        return 0

    def compute_stale_beg(self, history_length: i64, tokens_per_block: i64) -> i64:
        return 0

    def compute_stale_end(self, history_length: i64, tokens_per_block: i64) -> i64:
        return 0
