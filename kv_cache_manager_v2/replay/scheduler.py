"""Continuous batching over the manager: which requests compute how much in the next step, and which are preempted.

A step: preempted requests are resumed, the running ones get their inputs (one token each while generating, a chunk while
prefilling, the token budget over all), one batch call resizes all sequences, the remaining budget admits new
requests, the engine computes, the tokens are committed, finished requests are closed.

The oldest request has priority. If a call is refused for it, the youngest running request is suspended; a suspended one
whose pages cannot be offloaded is closed and restarts later, matching what it had published (never while `FinishGuard` knows an order in
which all can finish: it says which are admitted and which grow); a request that is itself the youngest waits, suspended; and one that is
refused while no other is open is rejected. So the oldest request always advances or is rejected, and every replay ends. After any refusal
no request is admitted or resumed until another one has finished or been suspended for other reasons.

With a `ServiceClock` requests come at their times and steps take time, both simulated. Nothing here reads a clock: the same requests on
the same configuration are served in the same order.
"""

from bisect import insort
from typing import Final, final


from .. import KVCache, LoadFailed, SsmLayerConfig
from ..testing import FakeEngine, Step
from .decoding import Decoding
from .failed_reads import resume_what_is_there, synchronize_past_failures
from .finish_guard import FinishGuard
from .forced_pauses import ForcedPauses
from .handover import Handover
from .prefix_ledger import PrefixLedger
from .prompt_misses import count_misses
from .served_request import ServedRequest
from .service_clock import ServiceClock
from .serving_limits import ServingLimits
from .slot_census import SlotCensus
from .tally import Tally
from .timed_calls import TimedCalls
from .waiting_queue import WaitingQueue


@final
class Scheduler:
    """Call `step` until it is False, then `close`. Counts into its `tally`."""

    __slots__ = (
        "tally", "census", "_calls", "_queue", "_limits", "_engine", "_ledger", "_tokens_per_block", "_has_colder_tiers", "_has_state",
        "_running", "_preempted", "_batch", "_budget", "_has_partial_prompt", "_room_may_exist", "_step", "_pauses",
        "_decoding", "_handover", "_clock", "_guard",
    )  # fmt: skip

    def __init__(
        self,
        calls: TimedCalls,
        queue: WaitingQueue,
        limits: ServingLimits,
        engine: FakeEngine | None = None,
        decoding: Decoding | None = None,
        handover: Handover | None = None,
        clock: ServiceClock | None = None,
    ) -> None:
        """``decoding``: None for one token a step. ``handover``: None to decode where the prompt was computed.

        ``clock``: simulated time, with a timed queue; None to count steps.
        """
        self.tally: Final = Tally(len(calls.manager.cache_tier_list))
        self.census: Final = SlotCensus(calls.manager)
        self._calls: Final = calls
        self._queue: Final = queue
        self._limits: Final = limits
        self._engine: Final = engine
        self._ledger: Final = PrefixLedger()
        self._tokens_per_block: Final[int] = calls.manager.tokens_per_block
        self._has_colder_tiers: Final[bool] = len(calls.manager.cache_tier_list) > 1
        self._has_state: Final[bool] = any([isinstance(layer, SsmLayerConfig) for layer in calls.manager.init_config.layers])
        self._running: Final[list[ServedRequest]] = []
        """Oldest first, as `_preempted`."""
        self._preempted: Final[list[ServedRequest]] = []
        self._batch: list[ServedRequest] = []
        self._budget = 0
        self._has_partial_prompt = False
        self._room_may_exist = True
        self._step = 0
        self._pauses: Final = ForcedPauses(limits.preempt_share)
        self._decoding: Final[Decoding | None] = None if decoding is None or decoding.is_plain else decoding
        self._handover: Final[Handover | None] = handover
        self._clock: Final[ServiceClock | None] = clock
        # Drafts, beams and a second manager take slots that the guard does not foresee.
        self._guard: Final[FinishGuard | None] = (
            FinishGuard(calls, limits.chunk_tokens) if self._decoding is None and handover is None else None
        )

    def step(self) -> bool:
        """One step of the engine; False when there is nothing left to serve."""
        if len(self._running) == 0:
            self._room_may_exist = True
        self._resume_preempted()
        self._plan_inputs()
        self._choose_growing()
        self._make_room()
        for served in self._batch:
            self._offer(served)
        self._admit()
        if len(self._batch) == 0:
            return self._skip_pause()
        self._count_slots()
        self._compute()
        self._commit()
        self._hand_over()
        self._pause_some()
        self._step += 1
        self.tally.num_steps += 1
        self.tally.num_requests_running = len(self._running)
        return True

    def record_moved_pages(self) -> None:
        """Pool groups were resized, and pages moved to other slots."""
        self._room_may_exist = True
        for served in self._running:
            self.census.leave(served.ticket)
        for served in self._running:
            self.census.look(served.ticket, served.open_kv_cache())

    def close(self) -> None:
        """Close every open sequence: after the last step, or at any time."""
        for served in [*self._running, *self._preempted]:
            self._close_kv_cache(served)
            self.census.leave(served.ticket)
        self._running.clear()
        self._preempted.clear()

    def _now(self) -> float:
        """The step, or the simulated time: what the queue counts."""
        return float(self._step) if self._clock is None else self._clock.now_ms

    # -- planning -----------------------------------------------------------------------------------------------------

    def _plan_inputs(self) -> None:
        """Inputs of the running requests: every generated token first, then prompts from the oldest on."""
        budget = self._limits.token_budget
        prefilling = 0
        self._has_partial_prompt = False
        ready = self._list_ready()
        for served in ready:
            if self._decoding is not None:
                self._decoding.prepare(served)
            if served.num_known - served.history == 1:
                served.num_inputs = 1
                budget -= 1 + served.num_drafts
            else:
                served.num_inputs = 0
                prefilling += 1
        if prefilling == 0:
            self._batch = ready
        else:
            self._batch = []
            for served in ready:
                if served.num_inputs == 0 and budget > 0:
                    served.num_inputs = self._chunk_of(served, budget)
                    budget -= served.num_inputs
                self._record_partial_prompt(served)
                if served.num_inputs > 0:
                    self._batch.append(served)
        self._budget = budget

    def _list_open(self) -> list[ServedRequest]:
        """All requests with a sequence, oldest first."""
        return sorted([*self._running, *self._preempted], key=_ticket)

    def _choose_growing(self) -> None:
        """Take those out of the batch whose growth would leave too little room for the others to finish."""
        guard = self._guard
        if guard is None or len(self._running) + len(self._preempted) < 2:
            return
        self._batch = guard.choose(self._batch, self._list_open())
        if len(self._batch) == 0 and guard.favoured in self._preempted:
            # Without the others it has room.
            for served in self._running[:]:
                self._preempt(served)
            self._room_may_exist = True

    def _list_ready(self) -> list[ServedRequest]:
        """The running requests whose pages have arrived; all of them if none has, and the stream waits for the rest."""
        ready: list[ServedRequest] = []
        favoured = None if self._guard is None else self._guard.favoured
        for served in self._running[:]:
            if served.is_arriving and self._rewind_if_lost(served):
                continue
            if not served.is_arriving and served is favoured:
                ready.insert(0, served)
            elif not served.is_arriving:
                ready.append(served)
        return ready if len(ready) > 0 else self._running[:]

    def _record_partial_prompt(self, served: ServedRequest) -> None:
        if served.num_inputs < served.num_known - served.history:
            self._has_partial_prompt = True

    def _chunk_of(self, served: ServedRequest, budget: int) -> int:
        num_inputs = min(served.num_known - served.position, self._limits.chunk_tokens, budget)
        if self._has_state:
            # If the chunk ends there, a snapshot of the recurrent state is left for other sequences.
            due = served.open_kv_cache().next_snapshot_position
            if due is not None and served.position < due:
                return min(num_inputs, due - served.position)
        return num_inputs

    def _skip_pause(self) -> bool:
        """Nothing to compute: advance to the end of the next pause, or find that all is done."""
        if self._num_waiting_for_room() < len(self._preempted):
            # Some are resumed later, and may hold the slots that the others need.
            self._step += 1
            if self._clock is not None:
                self._clock.end_step(0)
            return True
        if len(self._running) > 0 or len(self._preempted) > 0:
            # The blocking request has just been closed or rejected; the others continue in the next step.
            return True
        if self._queue.peek(self._now()) is not None:
            return True
        ready = self._queue.next_ready()
        if ready is not None:
            if self._clock is not None:
                self._clock.now_ms = max(self._clock.now_ms, ready)
            else:
                self._step = max(self._step, int(ready))
            return True
        assert self._queue.is_empty, "requests wait for one that never came"
        return False

    # -- admission ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        # At most one prompt is in the middle of its prefill: several long ones would take each other's slots before any of
        # them is done.
        while (
            self._budget > 0 and self._room_may_exist and not self._has_partial_prompt
            and len(self._running) < self._limits.max_running and self._num_waiting_for_room() == 0
        ):  # fmt: skip
            served = self._queue.peek(self._now())
            if served is None:
                return
            if self._try_admit(served):
                self._queue.pop()
                self._batch.append(served)
                self._offer(served)
                self._budget -= served.num_inputs
                self._record_partial_prompt(served)
            elif len(self._running) + len(self._preempted) == 0:
                self._queue.pop()
                self._refuse(served)
            else:
                self._room_may_exist = False

    def _offer(self, served: ServedRequest) -> None:
        """Let requests that are admitted in this step share the part of a prompt that it computes."""
        if served.num_inputs > 1 and not self._has_state:
            self._calls_of(served).publish_planned(served.open_kv_cache(), served.input_tokens())

    def _try_admit(self, served: ServedRequest) -> bool:
        """Match, resume and allocate the first chunk; False, and no sequence, if the manager refuses."""
        published = 0 if served.was_admitted else self._published_tokens(served)
        is_resumed = self._open_sequence(served)
        kv_cache = served.open_kv_cache()
        if not (is_resumed and self._calls.resize(kv_cache, served.position + served.num_inputs)):
            self.tally.num_refused_calls += 1
            self._close_kv_cache(served)
            return False
        if self._guard is not None:
            others = self._list_open()
            if len(others) > 0 and not self._guard.admits(others, served):
                self._close_kv_cache(served)
                return False
        insort(self._running, served, key=_ticket)
        if not served.was_admitted:
            served.was_admitted = True
            if self._clock is not None:
                self._clock.record_admission(served)
            found = kv_cache.statistics.prompts
            missed = count_misses(found, served.num_prompt_tokens, published, served.num_reusable, self._tokens_per_block)
            self.tally.add_prompt(served.num_prompt_tokens, found.hit_tokens, missed, served.num_reusable)
        return True

    def _open_sequence(self, served: ServedRequest) -> bool:
        """Match and resume; False if the manager refuses. Lost pages are not matched again: then it matches less."""
        failed_position = -1
        while True:
            # The last known token must be computed: its output is the next token.
            kv_cache = self._calls.create(served.tokens()[: served.num_known - 1], served.request.id)
            served.is_arriving = False
            served.kv_cache = kv_cache
            served.has_state = self._has_state
            served.position = kv_cache.num_committed_tokens
            try:
                # The sequence waits, as it gets its first inputs in this step.
                is_resumed = self._calls.resume(kv_cache)
                break
            except LoadFailed:
                if served.position == failed_position:
                    # Nothing is lost, and it still cannot be read.
                    is_resumed = resume_what_is_there(self._calls, served, True)
                    break
            failed_position = served.position
            served.position = 0
            self._close_kv_cache(served)
        served.num_inputs = self._chunk_of(served, self._budget)
        return is_resumed

    def _rewind_if_lost(self, served: ServedRequest) -> bool:
        """Whether pages of a running request could not be read: then it waits as a preempted one, with the tokens that are there."""
        try:
            served.is_arriving = not served.open_kv_cache().ready
            return False
        except LoadFailed as error:
            self._leave(served)
            served.rewind(error.first_bad_token)
        served.paused_until = self._step
        insort(self._preempted, served, key=_ticket)
        self._room_may_exist = True
        return True

    def _published_tokens(self, served: ServedRequest) -> int:
        # A running sequence publishes whole blocks; its partial last one is published when it is closed.
        for other in self._running:
            self._ledger.publish(other.cursor, other.position // self._tokens_per_block * self._tokens_per_block)
        return self._ledger.match(served.request)

    # -- slots --------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Resize every request of the batch for its inputs; a refused one leaves the batch."""
        begin = 0
        while begin < len(self._batch):
            kv_caches: list[KVCache] = []
            capacities: list[int] = []
            histories: list[int] = []
            calls = self._calls_of(self._batch[begin])
            for position in range(begin, len(self._batch)):
                served = self._batch[position]
                if self._calls_of(served) is not calls:
                    break
                kv_caches.append(served.open_kv_cache())
                capacities.append(served.history + served.num_inputs + served.num_drafts)
                histories.append(served.history)
            try:
                num_resized = calls.resize_batch(kv_caches, capacities, None if self._decoding is None else histories)
            except LoadFailed:
                # None was ready, so the call waited for a disk. It has changed nothing.
                if not any([self._rewind_if_lost(served) for served in self._batch[begin:]]):
                    raise
                continue
            begin += num_resized
            if num_resized < len(kv_caches):
                self.tally.num_refused_calls += 1
                resized = self._batch[:begin]
                self._preempt_for(self._batch[begin])
                begin = len([served for served in resized if served in self._batch])  # the batch is not always in order of age

    def _calls_of(self, served: ServedRequest) -> TimedCalls:
        """The timed calls of the manager that has the request's sequence."""
        handover = self._handover
        if handover is not None and served.open_kv_cache().manager is handover.calls.manager:
            return handover.calls
        return self._calls

    def _preempt_for(self, blocked: ServedRequest) -> None:
        """Preempt a younger request for ``blocked``, or else remove ``blocked`` itself from the batch."""
        self._room_may_exist = False
        if self._guard is not None and self._guard.favoured is not None:
            others = [served for served in self._running if served is not self._guard.favoured]
            if len(others) > 0:
                self._preempt(others[-1])
                return
        youngest_running = self._running[-1]
        has_younger_running = youngest_running is not blocked
        has_younger_preempted = len(self._preempted) > 0 and self._preempted[-1].ticket > blocked.ticket
        # With free slots on colder tiers suspended requests are not in the way: only running ones are.
        if has_younger_running and (self._has_colder_tiers or not has_younger_preempted):
            self._preempt(youngest_running)
        elif has_younger_preempted and not (self._has_colder_tiers and blocked is not self._running[0]):
            self._restart(self._preempted[-1])
        elif len(self._running) + len(self._preempted) > 1:
            self._preempt(blocked)
        else:
            self._leave(blocked)
            self._close_kv_cache(blocked)
            self._refuse(blocked)

    def _preempt(self, served: ServedRequest) -> None:
        self._leave(served)
        self._suspend(served, self._step)
        self.tally.num_preemptions += 1

    def _suspend(self, served: ServedRequest, until: int) -> None:
        self._calls.suspend(served.open_kv_cache())
        served.is_arriving = False
        served.paused_until = until
        insort(self._preempted, served, key=_ticket)

    def _pause_some(self) -> None:
        """Pause some requests. Each has just computed something, so all advance however often they are paused."""
        for served in self._running[:]:
            pause_steps = self._pauses.draw_pause()
            if pause_steps > 0 and not served.is_arriving:
                self._leave(served)
                self._suspend(served, self._step + pause_steps)
                self._room_may_exist = True
                self.tally.num_forced_preemptions += 1

    def _restart(self, served: ServedRequest) -> None:
        self._preempted.remove(served)
        self._close_kv_cache(served)
        self._queue.put_back(served)
        self.tally.num_restarts += 1

    def _leave(self, served: ServedRequest) -> None:
        self.census.leave(served.ticket)
        self._running.remove(served)
        if served in self._batch:
            self._batch.remove(served)

    def _resume_preempted(self) -> None:
        if self._limits.prefetches:
            self._prefetch()
        while self._room_may_exist:
            served = self._next_to_resume()
            if served is None or len(self._running) >= self._limits.max_running:
                return
            if resume_what_is_there(self._calls, served, self._limits.waits):
                self._preempted.remove(served)
                served.is_arriving = not self._limits.waits
                insort(self._running, served, key=_ticket)
                continue
            self.tally.num_refused_calls += 1
            if len(self._running) > 0:
                self._room_may_exist = False
            elif served is not self._preempted[-1]:
                self._restart(self._preempted[-1])
            elif len(self._preempted) > 1:
                # Older ones have the slots, and are resumed when their pause is over.
                self._room_may_exist = False
            else:
                self._preempted.remove(served)
                self._close_kv_cache(served)
                self._refuse(served)

    def _next_to_resume(self) -> ServedRequest | None:
        """The oldest whose pause is over; before all others the one that can finish first."""
        favoured = None if self._guard is None else self._guard.favoured
        if favoured is not None and favoured in self._preempted and favoured.paused_until <= self._step:
            return favoured
        for served in self._preempted:
            if served.paused_until <= self._step:
                return served
        return None

    def _num_waiting_for_room(self) -> int:
        return len([served for served in self._preempted if served.paused_until <= self._step])

    def _prefetch(self) -> None:
        for served in self._preempted:
            if served.paused_until == self._step + 1:
                self._calls.prefetch(served.open_kv_cache())

    # -- the step itself ----------------------------------------------------------------------------------------------

    def _count_slots(self) -> None:
        """Record the peak of used slots: all sequences of the step are resized."""
        census = self.census
        for served in self._batch:
            if served.num_inputs > 1 or served.must_look or census.must_look(served.ticket, served.position):
                census.look(served.ticket, served.open_kv_cache())
                # A longer commit may replace the blocks that it publishes by equal pages.
                served.must_look = served.num_inputs > 1
        census.record_peak()

    def _compute(self) -> None:
        engine = self._engine
        if engine is None:
            return
        steps: list[Step] = []
        for served in self._batch:
            if self._decoding is not None:
                steps.append(self._decoding.make_step(served))
                continue
            tokens = served.tokens()
            end = served.position + served.num_inputs
            steps.append(Step(served.open_kv_cache(), tokens[served.position : end], tokens[: served.position]))
        if self._limits.prefetches or not self._limits.waits:
            synchronize_past_failures(engine)
        engine.execute(steps)

    def _commit(self) -> None:
        tally = self.tally
        if self._clock is not None:
            self._clock.end_step(sum([served.num_inputs + served.num_drafts for served in self._batch]))
        for served in self._batch:
            if self._decoding is not None:
                self._commit_decoded(self._decoding, served)
                continue
            self._calls.commit(served.open_kv_cache(), served.input_tokens())
            served.position += served.num_inputs
            tally.num_computed_tokens += served.num_inputs
            if served.position == served.num_known:
                if served.request.num_output_tokens > 0:
                    tally.num_generated_tokens += 1
                    if self._clock is not None:
                        self._clock.record_tokens(served, 1)
                if served.position == served.num_tokens:
                    self._finish(served)
                else:
                    served.num_known += 1

    def _commit_decoded(self, decoding: Decoding, served: ServedRequest) -> None:
        tally = self.tally
        tally.num_computed_tokens += served.num_inputs
        num_generated = decoding.commit(served) - served.num_inputs
        if served.history < served.num_known:
            return
        if served.request.num_output_tokens > 0:
            tally.num_generated_tokens += 1 + num_generated
            if self._clock is not None:
                self._clock.record_tokens(served, 1 + num_generated)
        if served.position == served.num_tokens:
            self._finish(served)
        else:
            served.num_known = served.history + 1

    def _hand_over(self) -> None:
        """Move requests with a computed prompt to the manager that decodes."""
        handover = self._handover
        if handover is None:
            return
        for served in self._running:
            if served.position >= served.num_prompt_tokens and served.num_pending == 0 and not served.is_arriving:
                handover.take(served)

    def _finish(self, served: ServedRequest) -> None:
        self.census.leave(served.ticket)
        self._running.remove(served)
        self._close_kv_cache(served)
        self._queue.finish(served.request.id, self._now())
        self._room_may_exist = True
        self.tally.num_requests_done += 1

    def _refuse(self, served: ServedRequest) -> None:
        self._queue.finish(served.request.id, self._now())
        self.tally.num_requests_refused += 1

    def _close_kv_cache(self, served: ServedRequest) -> None:
        """Closing publishes the partial last block."""
        if served.position > 0:
            self._ledger.publish(served.cursor, served.position)
        self._calls.close(served.open_kv_cache())
        if self._guard is not None:
            self._guard.forget(served)
        served.kv_cache = None
        served.start_over()


def _ticket(served: ServedRequest) -> int:
    return served.ticket
