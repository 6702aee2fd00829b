"""The beams of a sequence: how many there are, and which goes on from which. Base of `KVCache`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, SupportsIndex

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_count, to_list
from ..base.errors import LogicError, OutOfPagesError
from ..base.given import Given
from ..sequence import page_arrivals, residency
from ..sequence.beams import add_beam, reorder
from ..sequence.fork import has_room_to_fork
from ..sequence.sequence_state import ACTIVE
from ..sequence.step_validation import validate_fork
from .sequence_commits import SequenceCommits

_MAX_BEAM_WIDTH: Final = 2**16
"""More than any search uses: each beam has tables of its own, so a number that was meant for something else would fill the memory."""


@mypyc_attr(native_class=True)
class SequenceBeams(SequenceCommits):
    __slots__ = ()

    @property
    def beam_width(self) -> int:
        """How many texts go on from the committed one, each with page tables of its own (``beam_id`` from 0 on).

        Setting it higher makes each further beam a fork of beam 0: everything is shared until a `resize` whose step writes there.
        Setting it lower frees the last beams. Prefill first, then widen. `ValueError` under 1 or over 65536; `LogicError` once
        closed, or, to widen, before the first resume of a partial match, with scratch reuse on (`enable_swa_scratch_reuse`), or
        where `fork` is one; `OutOfPagesError`, and nothing has changed, if there is no slot for a beam's recurrent state.
        """
        return len(self._state.beams) + 1

    @beam_width.setter
    def beam_width(self, beam_width: Given[int]) -> None:
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require_open("beam_width")
            width = to_count(beam_width, "beam_width")
            if width == 0:
                raise ValueError("beam_width is 0; a sequence has at least one beam")
            if width > _MAX_BEAM_WIDTH:
                raise ValueError(f"beam_width is {width}; a sequence has at most {_MAX_BEAM_WIDTH} beams")
            old_width: i64 = len(state.beams) + 1
            if width > old_width:
                if state.copies_tail_on_resume:
                    raise LogicError(
                        f"sequence {state.id}: the first resume() copies the partial block that was matched; set a larger "
                        f"beam_width after it"
                    )
                if state.scratch.is_enabled:
                    raise LogicError(
                        f"sequence {state.id}: beams do not use scratch slots; set enable_swa_scratch_reuse to False first"
                    )
                validate_fork(state)
                if len(state.arrivals) > 0:
                    page_arrivals.await_arrivals(state)
            try:
                # For all of them before the first: what was evicted for a beam that is taken back would be gone.
                has_room = width <= old_width or has_room_to_fork(state, width - old_width)
                while len(state.beams) + 1 < width:
                    if not has_room or not add_beam(state):
                        refusal = state.shared.storage.last_refusal
                        raise OutOfPagesError("no room" if refusal is None else refusal.text)
            except BaseException:
                residency.close_beams(state, old_width)
                raise
            residency.close_beams(state, width)
            if state.shared.journal is not None and width != old_width:
                state.shared.journal.beam_width(state.serial, width)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def reorder_beams(self, parents: Sequence[SupportsIndex]) -> None:
        """Beam ``i`` goes on from what beam ``parents[i]`` has: a beam may go on in several, and others end.

        Nothing is copied but recurrent state, which goes over or, where a beam goes on in several, is copied in stream order: its
        slots may change. Base page indices may change. Call it before the step's `resize`, which is the write that parts beams that
        share a block. `ValueError` unless there is one parent for each beam; `LogicError` unless
        ACTIVE.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(ACTIVE, "reorder_beams")
            width = len(state.beams) + 1
            found = vec[i64]()
            for parent in to_list(parents, "parents"):
                found = append(found, to_count(parent, "one of parents"))
            if len(found) != width or max([int(parent) for parent in found]) >= width:
                raise ValueError(
                    f"sequence {state.id}: parents is {[int(parent) for parent in found]} for {width} beams; give for each the "
                    f"beam that it goes on from"
                )
            if width == 1:
                return
            if len(state.arrivals) > 0:
                page_arrivals.await_arrivals(state)
            reorder(state, found)
            if state.shared.journal is not None:
                listed = [int(parent) for parent in found]
                state.shared.journal.reorder_beams(state.serial, listed)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()
