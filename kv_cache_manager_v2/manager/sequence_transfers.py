"""What a sequence lends to other machines, and what of it is planned to be dropped. Base of `KVCache`."""

from __future__ import annotations

from typing import SupportsIndex

from mypy_extensions import mypyc_attr

from ..base.checks import to_count
from ..base.errors import LogicError
from ..sequence import page_arrivals
from ..sequence.lease_blocks import lease_blocks
from ..sequence.published_end import list_published_blocks
from ..sequence.sequence_state import ACTIVE
from .committed_block_drop import CommittedBlockDrop
from .sequence_queries import SequenceQueries
from .transfer_lease import TransferLease


@mypyc_attr(native_class=True)
class SequenceTransfers(SequenceQueries):
    __slots__ = ()

    def reserve_transfer(self, begin_block: SupportsIndex = 0, end_block: SupportsIndex | None = None) -> TransferLease:
        """Lend the pages of blocks ``begin_block .. end_block - 1`` (default: all) to another machine, which reads or writes them.

        Until `TransferLease.settle` their slots are not used again, on level 0, even if this sequence is suspended or closed, or
        gives the blocks up; a step of its own that writes into one that is private gets a copy first, so settle before going on
        with what another machine has written. The transfer is in order if it begins after what is on the sequence's stream.
        `ValueError` for blocks that are not there; `LogicError` unless ACTIVE.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(ACTIVE, "reserve_transfer")
            if state.has_beams:
                raise LogicError(f"sequence {state.id}: reserve_transfer() with {len(state.beams) + 1} beams")
            begin = to_count(begin_block, "begin_block")
            end = state.num_blocks if end_block is None else to_count(end_block, "end_block")
            if not begin <= end <= state.num_blocks:
                raise ValueError(f"sequence {state.id}: begin_block is {begin} and end_block {end}; there are {state.num_blocks} blocks")
            if len(state.arrivals) > 0:
                # The other side's work is behind this stream, which must be behind the pages.
                page_arrivals.await_arrivals(state)
            guard.begin_change()
            lease = lease_blocks(state, begin, end)
            guard.end_change()
            if state.shared.journal is not None:
                state.shared.journal.reserve(state.serial, begin, end)
            return TransferLease(state.shared, lease)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def plan_committed_block_drop(self) -> CommittedBlockDrop | None:
        """A plan to drop the published end of this sequence later, by `CommittedBlockDrop.drop`; None if nothing is published.

        The plan holds no page and outlives the sequence. `LogicError` before `stop_committing`, and once closed.
        """
        state = self._state
        shared = state.shared
        shared.guard.enter()
        try:
            self._require_open("plan_committed_block_drop")
            if state.is_committing:
                raise LogicError(
                    f"sequence {state.id}: plan_committed_block_drop() while its published text may still grow; "
                    f"stop_committing() first"
                )
            blocks = list_published_blocks(state)
            if len(blocks) == 0:
                return None
            is_partial = len(blocks) > state.num_published
            num_tokens = state.num_committed if is_partial else state.num_published * shared.tokens_per_block
            number = shared.drop_plans.make(blocks, num_tokens)
            if shared.journal is not None:
                shared.journal.plan_drop(state.serial)
            return CommittedBlockDrop(shared, number)
        except AssertionError as error:
            raise shared.guard.fail(error) from error
        finally:
            shared.guard.leave()
