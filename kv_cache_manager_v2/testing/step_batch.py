"""Steps that are launched together: those of one manager on one stream.

Adding a step validates it, and no step is launched before all were added; so a refused step has no
effect.
"""

from array import array
from collections.abc import Mapping, Sequence, Sized
from typing import Any, ClassVar, Final, cast, final

import numpy as np

from ..base.checks import is_bytes, has_attribute, to_int, to_list, to_plain_bytes
from ..base.errors import LogicError
from ..base.handle import Handle
from ..base.ids import TokenId, TokenIdExt
from ..reuse.token_packing import MAX_TOKEN_ID
from .paged_sequence import PagedManager, PagedSequence
from .step_rows import StepRows
from .token_values import Values, prefix_values, token_numbers, tree_values


def validate_tokens(tokens: object, name: str) -> None:
    """Check that the argument may be tokens; the items are checked when the step is added to a batch."""
    is_unordered = isinstance(tokens, (str, Mapping, set, frozenset)) or is_bytes(tokens)
    if is_unordered or not isinstance(tokens, Sized) or getattr(tokens, "ndim", 1) == 0:
        raise TypeError(f"{name} must be a sequence of tokens, not {type(tokens).__name__}")


def to_token(token: object, name: str) -> TokenIdExt:
    """An id, or a digest."""
    if isinstance(token, bytes):
        digest = to_plain_bytes(token)
        if len(digest) == 0:
            raise ValueError(f"{name} is an empty digest")
        return digest
    number = to_int(token, name)
    if not 0 <= number <= MAX_TOKEN_ID:
        raise ValueError(f"{name} is {number}: ids are 0 <= id < 2**31")
    return TokenId(number)


@final
class Step(Handle):
    """One sequence's part in a batch: compute ``input``, the tokens that follow ``history``.

    Both are tokens in any form that the library accepts. Where ``beam_width > 1`` either may be a list with the tokens of each
    beam instead. A step without input computes nothing, and checks what the next token would read.

    ``parents``: the input is a tree of drafts; for each node the position of its parent in the input, which is before its
    own, or -1 for a child of the history. Not with beams.
    """

    __slots__ = ("kv_cache", "input", "history", "parents")

    _NAMES: ClassVar[str] = "a sequence of this process"

    def __init__(self, kv_cache: PagedSequence, input: object, history: object, parents: Sequence[int] | None = None) -> None:
        # An engine's own sequence is not of our class, but has the needed members.
        if not has_attribute(kv_cache, "is_active") or not has_attribute(kv_cache, "get_base_page_indices"):
            raise TypeError(f"kv_cache must be a KVCache, or have its members, not {type(kv_cache).__name__}")
        validate_tokens(input, "input")
        validate_tokens(history, "history")
        if parents is not None:
            for parent in to_list(parents, "parents"):
                to_int(parent, "one of parents")
        self.kv_cache: Final[PagedSequence] = kv_cache
        self.input: Final[object] = input
        self.history: Final[object] = history
        self.parents: Final[Sequence[int] | None] = parents


@final
class StepBatch:
    """``sequences`` has one entry per row: a sequence with beams has one for each."""

    __slots__ = ("stream", "manager", "num_steps", "sequences", "_beams", "_num_history_tokens", "_values")

    def __init__(self, stream: int, manager: PagedManager) -> None:
        self.stream: Final = stream
        self.manager: Final = manager
        self.num_steps = 0
        self.sequences: Final[list[PagedSequence]] = []
        self._beams: Final[list[int]] = []
        self._num_history_tokens: Final[list[int]] = []
        self._values: Final[list[Values]] = []

    def add(self, step: Step) -> None:
        kv_cache = step.kv_cache
        if not kv_cache.is_active:
            raise LogicError(f"sequence {kv_cache.id!r} is not active; resume() it before a step")
        beam_width = kv_cache.beam_width
        histories = _numbers_of_beams(step.history, beam_width)
        inputs = _numbers_of_beams(step.input, beam_width)
        num_history, num_input = len(histories[0]), len(inputs[0])
        for beam in range(beam_width):
            if len(histories[beam]) != num_history or len(inputs[beam]) != num_input:
                raise ValueError(
                    f"beam {beam} of sequence {kv_cache.id!r} has {len(histories[beam])} + {len(inputs[beam])} tokens, "
                    f"beam 0 has {num_history} + {num_input}; all beams of a step are of one length"
                )
        capacity = kv_cache.capacity
        if num_history + num_input > capacity:
            raise LogicError(
                f"sequence {kv_cache.id!r} has room for {capacity} tokens; this step has {num_history} of history and "
                f"{num_input} of input. resize() to {num_history + num_input} first"
            )
        if step.parents is not None:
            _validate_tree(step, beam_width, num_input)
        self.num_steps += 1
        for beam in range(beam_width):
            self.sequences.append(kv_cache)
            self._beams.append(beam)
            self._num_history_tokens.append(num_history)
            if step.parents is None:
                self._values.append(prefix_values(np.concatenate((histories[beam], inputs[beam]))))
            else:
                self._values.append(tree_values(histories[beam], inputs[beam], step.parents))

    def make_rows(self) -> StepRows:
        ids: list[object] = [kv_cache.id for kv_cache in self.sequences]
        return StepRows(ids, self._beams, self._num_history_tokens, self._values)


def _validate_tree(step: Step, beam_width: int, num_input: int) -> None:
    parents = step.parents
    assert parents is not None, "no tree to look at"
    if beam_width != 1:
        raise ValueError(f"sequence {step.kv_cache.id!r} has {beam_width} beams; a tree of drafts needs one")
    if len(parents) != num_input:
        raise ValueError(f"a tree of {num_input} inputs has {len(parents)} parents")
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; it is one of -1 .. {node - 1}")


def _numbers_of_beams(tokens: object, beam_width: int) -> list[Values]:
    """The tokens of each beam: one list for all of them, or a list of lists."""
    if isinstance(tokens, (list, tuple)) and len(tokens) > 0:
        if isinstance(tokens[0], (list, tuple, np.ndarray, array, memoryview)):
            beams = cast(Sequence[Any], tokens)
            if len(beams) != beam_width:
                raise ValueError(f"tokens of {len(beams)} beams for a sequence with beam_width {beam_width}")
            return [token_numbers(beam) for beam in beams]
    numbers = token_numbers(tokens)
    return [numbers] * beam_width
