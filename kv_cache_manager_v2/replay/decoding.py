"""How requests generate: one token a step, with drafts that are partly wrong, or with several beams.

What comes out is the request's answer in any case; drafts and beams that are wrong cost steps, room and copies, which is what a replay
of them is for. Which drafts are right and which beam has the answer follows from the request and its position alone.

    drafts   each step computes the next token and ``num_drafts`` guesses; the right ones among them, from the first on, are committed,
             the others taken back
    beams    once its prompt is computed a request goes on in ``beam_width`` texts, of which one is the answer; after each step they are
             reordered, after `ROUND_TOKENS` steps the answer's tokens are committed from the beam that has them
"""

from typing import Any, Final, final

import numpy as np

from .. import OutOfPagesError
from ..base.value import Value
from ..testing import Step
from .served_request import ServedRequest

ROUND_TOKENS: Final = 4
_WRONG_TOKEN: Final = 2_000_000_000
"""Wrong guesses and other beams' tokens are from here on: no workload has so high ids."""


@final
class Decoding(Value):
    __slots__ = ("num_drafts", "beam_width")

    def __init__(self, num_drafts: int = 0, beam_width: int = 1) -> None:
        if num_drafts < 0 or beam_width < 1:
            raise ValueError(f"num_drafts is {num_drafts}, beam_width is {beam_width}; at least 0 and 1")
        if num_drafts > 0 and beam_width > 1:
            raise ValueError("drafts and beams do not go together; give one of them")
        self.num_drafts: Final = num_drafts
        self.beam_width: Final = beam_width

    @property
    def is_plain(self) -> bool:
        return self.num_drafts == 0 and self.beam_width == 1

    def prepare(self, served: ServedRequest) -> None:
        """Before room is made for a step of a running request."""
        served.num_drafts = 0
        if served.is_generating:
            served.num_drafts = self.num_drafts
            if self.beam_width > 1 and len(served.suffixes) == 0:
                self._widen(served)

    def _widen(self, served: ServedRequest) -> None:
        # Through Any, as a user's code does: mypyc passes numbers wrongly to setters that are declared wider.
        kv_cache: Any = served.open_kv_cache()
        if kv_cache.has_scratch_slots:
            # Of the prompt's last step; the first one of the answer releases them.
            return
        if kv_cache.enable_swa_scratch_reuse:
            kv_cache.enable_swa_scratch_reuse = False
        try:
            kv_cache.beam_width = self.beam_width
        except OutOfPagesError:
            # No slot for a beam's recurrent state: it goes on alone.
            return
        served.suffixes = [[] for _ in range(self.beam_width)]
        served.answer_beam = 0

    # -- computing ----------------------------------------------------------------------------------------------------

    def make_step(self, served: ServedRequest) -> Step:
        tokens: Any = served.tokens()
        begin = served.position + served.num_pending
        end = begin + served.num_inputs
        inputs: Any = tokens[begin:end]
        if len(served.suffixes) == 0:
            if served.num_drafts > 0:
                inputs = np.concatenate((np.asarray(inputs), np.array(self._drafts(served), dtype=np.int32)))
            return Step(served.open_kv_cache(), inputs, tokens[:begin])
        committed = np.asarray(tokens[: served.position])
        histories = [np.concatenate((committed, np.array(suffix, dtype=np.int32))) for suffix in served.suffixes]
        return Step(served.open_kv_cache(), self._beam_inputs(served), histories)

    def _num_right(self, served: ServedRequest) -> int:
        """How many of the step's drafts are right; as many as the answer has tokens, at most."""
        right = (served.ticket * 7 + served.position * 3) % (self.num_drafts + 1)
        return min(right, served.num_drafts, served.num_tokens - served.position - served.num_inputs)

    def _drafts(self, served: ServedRequest) -> list[int]:
        tokens: Any = served.tokens()
        begin = served.position + served.num_inputs
        right = self._num_right(served)
        return [int(tokens[begin + i]) if i < right else _WRONG_TOKEN + i for i in range(served.num_drafts)]

    def _beam_inputs(self, served: ServedRequest) -> list[list[int]]:
        tokens: Any = served.tokens()
        position = served.position + served.num_pending
        return [
            [int(tokens[position]) if beam == served.answer_beam else _WRONG_TOKEN + position % 100_000 * 16 + beam]
            for beam in range(len(served.suffixes))
        ]

    # -- committing ---------------------------------------------------------------------------------------------------

    def commit(self, served: ServedRequest) -> int:
        """After the step: how many tokens of the request have become known to be right, all in all."""
        kv_cache = served.open_kv_cache()
        if len(served.suffixes) == 0:
            num_accepted = served.num_inputs
            if served.num_drafts > 0:
                num_accepted += self._num_right(served)
            end = served.position + num_accepted
            kv_cache.commit(served.tokens()[served.position : end])
            served.position = end
            if served.num_drafts > 0:
                # Rejected drafts are taken back; always possible, for it takes no room.
                assert kv_cache.resize(end, end), "taking tokens back was refused"
            return num_accepted
        inputs = self._beam_inputs(served)
        for beam in range(len(inputs)):
            served.suffixes[beam].extend(inputs[beam])
        served.num_pending += 1
        position = served.position + served.num_pending
        if served.num_pending == ROUND_TOKENS or position == served.num_tokens:
            self._commit_round(served)
        else:
            self._reorder(served)
        return 1

    def _commit_round(self, served: ServedRequest) -> None:
        kv_cache = served.open_kv_cache()
        width = len(served.suffixes)
        end = served.position + served.num_pending
        if served.has_state:
            kv_cache.reorder_beams([served.answer_beam] * width)
            kv_cache.commit(served.tokens()[served.position : end])
        else:
            kv_cache.commit(served.tokens()[served.position : end], [served.answer_beam] * served.num_pending)
        served.position = end
        served.num_pending = 0
        served.suffixes = [[] for _ in range(width)]

    def _reorder(self, served: ServedRequest) -> None:
        """The answer moves on to the next beam; the others go on from anywhere."""
        width = len(served.suffixes)
        position = served.position + served.num_pending
        parents = [(beam * 5 + position + served.ticket) % width for beam in range(width)]
        next_beam = (served.answer_beam + 1) % width
        parents[next_beam] = served.answer_beam
        served.open_kv_cache().reorder_beams(parents)
        served.suffixes = [list(served.suffixes[parent]) for parent in parents]
        served.answer_beam = next_beam
