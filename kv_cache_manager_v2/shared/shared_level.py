"""`SharedLevel`: pages that other processes have computed, behind all levels of a manager.

    call                          what it does                                              waits for
    look_up(kv_cache)             queues a look-up of its prompt, behind what it matched    nothing
    remote_report()               what is known so far; changes nothing                     nothing
    admit(report)                 the only door: answers become known to requests           nothing
    request.fetch()               queues a load into staging slots                          nothing
    request.take()                copies what arrived into the sequence's pages, commits    the stream, if at all
    request.store()               copies pages to staging slots, queues a store             nothing

Every decision follows from these calls and the admitted reports: ranks that admit the same reports decide alike, whatever their stores
say and when. What changes the manager are its own public calls, made on the caller's thread, so a journal has all of it. Loaded bytes
are in staging slots until each record, its tokens and its checksums were compared; nothing else ever gets near a page.

The threads are those of `StoreWorkers`. A manager without a shared level knows nothing of all this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, SupportsIndex

from ..base.checks import to_bool, to_count, to_instance, to_int_within, to_number
from ..base.errors import LogicError
from ..base.ids import BAD_PAGE_INDEX, CacheTier, TokenIdExt
from ..base.package_log import PackageLog
from ..config.manager_config import KVCacheManagerConfig
from ..config.model_id import ModelId
from ..device.checksum import require_xxhash
from ..device.cold_page_codec import ColdPageCodec
from ..layout.registry import LifeCycleRegistry
from ..layout.slot_layout import SlotLayout
from ..manager.durable_opening import describe_identity, describe_layout
from ..manager.kv_cache import KVCache, SequenceStatus
from ..manager.kv_cache_manager import KVCacheManager
from ..metrics.shared_samples import SharedFacts, SharedSource
from ..publishing.event_publisher import KVCacheEventPublisher
from .block_names import BlockName, NameChain, require_key
from .guarded_store import GuardedStore
from .known_pages import KnownPages
from .line_limit import LineLimit
from .outgoing_pages import OutgoingPages
from .page_copies import PageCopies
from .page_needs import PageNeeds
from .page_record import RecordLayout, describe_identity_bytes
from .placement import Placement
from .remote_operation import RemoteOperation
from .remote_report import RemoteReport, intersect_ranges, largest_at_most, to_ranges
from .remote_request import RemoteRequest, require_open
from .shared_statistics import SharedCounters, SharedStatistics
from .shared_store import SharedStore, StoreError
from .staging_slots import EnqueuedCopy, make_staging, round_up
from .store_tasks import ClaimTask, LoadTask, LookUpTask, RecordSpace, StagedPage, share_out
from .store_workers import LOADS, LOOKUPS, StoreWorkers

ON_COMMIT: Final = "commit"
ON_SECOND_HIT: Final = "second_hit"
ON_EVICTION: Final = "eviction"
OFF: Final = "off"
WRITE_POLICIES: Final = (ON_COMMIT, ON_SECOND_HIT, ON_EVICTION, OFF)

_logger: Final = PackageLog("kv_cache_manager_v2")


class SharedLevel(SharedSource):
    """The shared level of one manager; `close` it before the manager shuts down. A context manager.

    ``model_id``: as for a durable level; managers with an equal one, and equal layers, share. ``load_bytes``, ``store_bytes``: of staging
    memory. ``write_policy``: "second_hit" stores blocks that a sequence has reused, "commit" all that are committed, "eviction" those that
    are about to be evicted, "off" none. ``publisher``: of the manager's events; it tells routers, as blocks on the medium EXTERNAL, what
    this level knows to be in the store. ``key``: 16 to 64 secret bytes that all managers of the fleet have. Names in the store can then
    not be guessed from prompts, and values that another process has altered or made are misses that are counted. ``claim_seconds``: what
    the store was not seen to have for so long is asked for beside later look-ups, 64 pages each time, and told as removed where it is
    gone. ``least_bytes_per_second``: a request that moves its bytes more slowly has failed. ``epoch``: of the fleet's weights, see
    `begin_epoch`. ``asks``: whether look-ups of this rank ask the store; one rank of several does, and the others learn from the reduced
    reports what is there.

    `StoreError` if no endpoint can be reached, or all refuse: one of several that does costs a warning, and its keys are misses until it
    answers. `ValueError` for a bad argument, or a store whose keys have another format; `ImportError` without xxhash. Later no store's
    failure is an exception: it costs hits.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        store: SharedStore,
        model_id: ModelId,
        *,
        load_bytes: int = 256 << 20,
        store_bytes: int = 64 << 20,
        write_policy: str = ON_SECOND_HIT,
        num_load_threads: int = 2,
        publisher: KVCacheEventPublisher | None = None,
        claim_seconds: float = 60.0,
        least_bytes_per_second: float = 8 << 20,
        key: bytes | None = None,
        epoch: SupportsIndex = 0,
        asks: bool = True,
    ) -> None:
        _validate(manager, store, model_id, write_policy, publisher, key)
        self._num_parts: Final = int(to_int_within(num_load_threads, "num_load_threads", 1, 64))
        claimed, rate = _to_finite(claim_seconds, "claim_seconds", 0), _to_finite(least_bytes_per_second, "least_bytes_per_second", 1)
        first_epoch, does_ask = to_count(epoch, "epoch"), to_bool(asks, "asks")
        require_xxhash()
        config = manager.init_config
        life_cycles = LifeCycleRegistry(config)
        layout = manager._shared.storage.layout
        self._manager: Final = manager
        self._write_policy: Final = write_policy
        self._pool_group_of: Final = [int(group) for group in layout.pool_group_indices]
        self._layouts: Final = _lay_out_records(model_id, config, layout, manager.cold_page_codec, key)
        slot_bytes = max([record.num_bytes for record in self._layouts])
        for name, num_bytes in (("load_bytes", load_bytes), ("store_bytes", store_bytes)):
            if to_count(num_bytes, name) < round_up(slot_bytes):
                raise ValueError(f"{name} is {num_bytes}; one page with its head needs {round_up(slot_bytes)}")
        self.block_tokens: Final = config.tokens_per_block
        self._needs: Final = PageNeeds(list(life_cycles), config.tokens_per_block)
        self._counters: Final = SharedCounters()
        guarded = GuardedStore(store)
        self._space: Final = RecordSpace(
            self._layouts, Placement(guarded.endpoints), self._needs, self._counters, self.block_tokens, key, first_epoch, does_ask
        )
        self._stuck_lines: Final = LineLimit()
        self._slot_lines: Final = LineLimit()
        unreachable = _check_endpoints(guarded)
        self._loads, self._stores = make_staging(manager.device, load_bytes, store_bytes, slot_bytes)
        self._workers: Final = StoreWorkers(guarded, self._counters, self._num_parts, rate, unreachable)
        self._known: Final = KnownPages(publisher, claimed)
        self._claims: ClaimTask | None = None
        try:
            self._outgoing: Final = OutgoingPages(manager, self._stores, self._space, self._known, self._workers)
            if write_policy == ON_EVICTION:
                self._outgoing.follow_evictions(life_cycles)
        except BaseException:
            self._workers.close()
            self._loads.close(False)
            self._stores.close(False)
            raise
        self._requests: Final[dict[int, RemoteRequest]] = {}
        self._operations: Final[dict[tuple[int, int], RemoteOperation]] = {}
        self._next_request = 0
        self._is_closed = False

    def __enter__(self) -> SharedLevel:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads and free the staging memory. What was not stored yet is dropped; requests are of no use any more. Twice is fine.

        Waits for 2 seconds at most: a store that holds a thread for longer keeps the staging memory too, and the log says so.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._workers.is_foreign:
            return
        has_ended = self._workers.close()
        if not has_ended:
            _logger.warning("a thread of the shared level is still busy with its store; its staging memory is not freed")
        self._outgoing.close()
        self._known.forget_all()
        self._loads.close(not has_ended)
        self._stores.close(not has_ended)
        self._requests.clear()
        self._operations.clear()

    # -- the flow -----------------------------------------------------------------------------------------------------

    def look_up(self, kv_cache: KVCache) -> RemoteRequest:
        """Queue a look-up of the tokens that the sequence was made with, behind those that it matched.

        For a sequence that has just been made with `input_tokens`; `LogicError` for a closed one. Scopes with a ``lora_id`` are not
        shared, as the id of an adapter names nothing in another process: then the answer is 0 at once, as it is for a recurrent state that
        is behind its sequence, and for an ``exact`` sequence where a codec packs with loss.
        """
        self.require_usable()
        to_instance(kv_cache, KVCache, "kv_cache")
        if kv_cache.manager is not self._manager:
            raise ValueError("the sequence is another manager's")
        require_open(kv_cache, "look_up")
        number = self._next_request
        self._next_request = number + 1
        request = RemoteRequest(self, number, kv_cache)
        tokens = self._find_tokens(kv_cache)
        self._begin_claims()
        is_behind = self._needs.has_any_states and kv_cache.match_info.state_tokens < kv_cache.num_committed_tokens
        if tokens is None or kv_cache.reuse_scope.lora_id is not None or is_behind:
            request.begin(None)
            return request
        begin = kv_cache.num_committed_tokens // self.block_tokens
        task = LookUpTask(self._space, kv_cache.reuse_scope, tokens, begin)
        operation = RemoteOperation(number, 0, LOOKUPS, [task], [], begin, 0, kv_cache.reuse_scope.salt)
        self._requests[number] = request
        self._operations[(number, 0)] = operation
        operation.start(self._workers)
        request.begin(operation)
        return request

    @property
    def epoch(self) -> int:
        """Of the weights: part of all names in the store."""
        return self._space.epoch

    def begin_epoch(self, epoch: SupportsIndex) -> None:
        """The weights have changed: `KVCacheManager.clear_reusable_blocks`, and from now on other names in the store.

        Processes of one epoch share. Requests of before want nothing more, what their sequences commit is not stored, and routers hear that
        nothing is there. `ValueError` unless ``epoch`` is greater than that of now. Raises what `clear_reusable_blocks` does, having begun.
        """
        self.require_usable()
        self._manager._require_open()
        number = to_count(epoch, "epoch")
        if number <= self.epoch:
            raise ValueError(f"epoch is {number}, and that of now is {self.epoch}: an epoch never comes back, give a greater one")
        self._outgoing.settle()  # so what was copied until now has the names of its epoch
        self._space.epoch = number
        for request in list(self._requests.values()):
            request.cancel_remote()
        self._known.forget_all()
        self._manager.clear_reusable_blocks()

    def set_servers(self, store: SharedStore) -> None:
        """Share through the endpoints of this store from now on: some were added, or taken away. Other processes may do so later.

        What should lie on a new endpoint now is found where it was, and stored anew as prompts come; what was on one that was taken away
        is lost. Asks the new endpoints for a sign of life, and raises what the constructor does; then nothing has changed.
        """
        self.require_usable()
        if not isinstance(store, SharedStore):
            raise TypeError(f"store must be a SharedStore, such as ValkeyStore, not {type(store).__name__}")
        before = self._workers.store.endpoints
        guarded = GuardedStore(store)
        unreachable = _check_endpoints(guarded, before)
        self._workers.set_store(guarded, unreachable)
        self._space.placement = Placement(guarded.endpoints, before)
        for endpoint in before:
            if endpoint not in guarded.endpoints:
                self._known.forget_endpoint(endpoint)

    def _begin_claims(self) -> None:
        """Ask whether what is known to be there still is, beside a prompt's own look-up, and where a prompt needs none."""
        if self._claims is None:
            claims = self._known.list_unseen()
            if len(claims) > 0:
                self._claims = ClaimTask(claims)
                self._workers.submit(LOOKUPS, self._claims)

    def _settle_claims(self) -> None:
        task = self._claims
        if task is not None and task.is_over:
            self._claims = None
            self._known.forget(task.absent)
            self._known.see([key for key in task.seen if key in self._known])
        while len(self._workers.begun_anew) > 0:
            self._known.forget_endpoint(self._workers.begun_anew.popleft())

    def _find_tokens(self, kv_cache: KVCache) -> bytes | list[TokenIdExt] | None:
        """Of the sequence's prompt; None where it has no whole block behind what it matched, refuses pages that were packed with loss, or
        is of an epoch that has ended."""
        state = kv_cache._state_for_batch()
        given = None if state.tail.is_retired or state.request.is_exact else state.request.given
        if given is None or given.num_tokens // self.block_tokens <= kv_cache.num_committed_tokens // self.block_tokens:
            return None
        tokens: Any = given.share()
        shared: bytes | list[TokenIdExt] = tokens
        return shared

    def remote_report(self) -> RemoteReport:
        """What the threads have found out; to be admitted, by this rank alone or reduced with those of the others. Changes no decision."""
        self.require_usable()
        self._outgoing.settle()
        self._settle_claims()
        answers = []
        for operation in self._operations.values():
            if not operation.is_started:
                if self._loads.are_copies_done(operation.slots):
                    operation.start(self._workers)
                continue
            if operation.answer is None and operation.is_answerable(self._workers):
                self._answer(operation)
            if operation.answer is not None and (not operation.is_admitted or operation.is_ended):
                answers.append(operation.to_answer())
        return RemoteReport(tuple(answers))

    def _answer(self, operation: RemoteOperation) -> None:
        """What the operation has found. One that cannot be evaluated costs its own request's hits, and no other's."""
        try:
            operation.answer = self._evaluate(operation)
        except Exception:
            operation.answer = ()
            _logger.exception("an answer of the shared level cannot be evaluated: it costs its request's hits")

    def _evaluate(self, operation: RemoteOperation) -> tuple[tuple[int, int], ...]:
        if operation.has_failed:
            self._counters.add_deadline()
            if self._stuck_lines.is_due():
                _logger.warning(
                    "a request of the shared level is answered without its %s, which makes no progress: it costs hits",
                    ("look-up", "load")[operation.kind],
                )
        if operation.kind == LOOKUPS:
            (task,) = operation.tasks
            assert isinstance(task, LookUpTask)
            return to_ranges(task.lengths) if task.is_over else ()
        present: list[set[int]] = [set() for _layout in self._layouts]
        for task in operation.tasks:
            assert isinstance(task, LoadTask)
            if task.is_over:
                for page in task.whole:
                    present[page.life_cycle].add(page.ordinal)
        return to_ranges(self._needs.list_lengths(present, operation.begin, operation.num_blocks))

    def admit(self, report: RemoteReport) -> None:
        """Act on answers: requests know them from here on. Answers that were admitted before are skipped.

        `LogicError`, and nothing has changed, for a report that says more than this rank has found out itself: reduce the reports of all
        ranks, this one's included.
        """
        self.require_usable()
        to_instance(report, RemoteReport, "report")
        for answer in report.answers:
            operation = self._operations.get((answer.request, answer.step))
            if operation is None:
                continue
            name = f"the answer to step {answer.step} of request {answer.request}"
            if operation.answer is None or intersect_ranges(answer.lengths, operation.answer) != answer.lengths:
                raise LogicError(f"admit(): {name} has more than this rank's own; reduce the reports of all ranks")
            if answer.is_ended and not operation.is_ended:
                raise LogicError(f"admit(): {name} says that it has ended, and here it has not; reduce the reports of all ranks")
        for answer in report.answers:
            operation = self._operations.get((answer.request, answer.step))
            if operation is None:
                continue
            if not operation.is_admitted:
                operation.is_admitted = True
                names: list[BlockName] = []
                places: dict[bytes, str] = {}
                if operation.kind == LOOKUPS:
                    (task,) = operation.tasks
                    if isinstance(task, LookUpTask) and task.is_over and task.epoch == self._space.epoch:
                        names, places = task.names, task.places
                        self._learn(task, operation.salt)
                else:
                    self._unlearn(operation)
                request = self._requests.get(answer.request)
                if request is not None:
                    request.receive(operation, answer.lengths, names, places)
            if answer.is_ended:
                self._end(operation)
        for request in list(self._requests.values()):
            if request.kv_cache.status is SequenceStatus.CLOSED:
                request.cancel_remote()

    def forget(self, request: int) -> None:
        """The request wants nothing more."""
        self._requests.pop(request, None)

    def _end(self, operation: RemoteOperation) -> None:
        """No rank's threads have it any more."""
        del self._operations[(operation.request, operation.step)]
        if operation.is_abandoned:
            self._loads.end_quarantine(operation.slots)
            operation.slots.clear()

    def _learn(self, task: LookUpTask, salt: int | str | None) -> None:
        self._known.forget(task.absent)
        pages: list[tuple[int, int, bytes]] = []
        for life_cycle, blocks in enumerate(task.present):
            layout = self._layouts[life_cycle]
            pages.extend([(life_cycle, block, layout.key(task.names[block])) for block in sorted(blocks)])
        self._known.confirm(salt, task.names, pages, task.places)

    def _unlearn(self, operation: RemoteOperation) -> None:
        """What did not arrive is not there, as far as is known."""
        whole = [page for task in operation.tasks if isinstance(task, LoadTask) and task.is_over for page in task.whole]
        arrived = {page.slot for page in whole}
        self._known.forget([self._key(page) for page in operation.pages if page.slot not in arrived])

    def _key(self, page: StagedPage) -> bytes:
        return self._layouts[page.life_cycle].key(page.name)

    # -- for requests -------------------------------------------------------------------------------------------------

    def require_usable(self) -> None:
        if self._is_closed:
            raise LogicError("the shared level is closed")
        if self._workers.is_foreign:
            raise LogicError("the shared level belongs to another process, which this one was forked from; make one of its own")

    def begin_load(
        self, request: int, step: int, names: list[BlockName], begin: int, lengths: tuple[tuple[int, int], ...], places: dict[bytes, str]
    ) -> RemoteOperation | None:
        """Take staging slots for the longest of the lengths that all slots together can have; None if so many are not free."""
        needs = self._needs
        num_blocks = lengths[-1][1]
        while num_blocks > begin and needs.count_pages(begin, num_blocks) > self._loads.num_slots:
            num_blocks = largest_at_most(lengths, num_blocks - 1)
        if num_blocks <= begin or needs.count_pages(begin, num_blocks) > self._loads.num_free:
            return None
        wanted = [(block, cycle) for cycle in range(needs.num_life_cycles) for block in needs.list_blocks(cycle, begin, num_blocks)]
        slots = self._loads.take(len(wanted))
        pages: list[StagedPage] = []
        for (block, cycle), slot in zip(wanted, slots, strict=True):
            # Lengths that all ranks agree on may need what this rank's own look-up has not asked for.
            place = places.get(self._layouts[cycle].key(names[block])) or self._workers.choose(self._space.choices(names, block))
            pages.append(StagedPage(cycle, block, names[block], slot, place))
        tasks = share_out(pages, self._num_parts, lambda endpoint, part: LoadTask(self._space, self._loads, endpoint, part))
        operation = RemoteOperation(request, step, LOADS, tasks, pages, begin, num_blocks)
        self._operations[(request, step)] = operation
        if self._loads.are_copies_done(slots):
            operation.start(self._workers)
        return operation

    def fill_pages(self, kv_cache: KVCache, operation: RemoteOperation, begin: int, num_blocks: int) -> None:
        """Copy what has arrived into the sequence's pages from ``begin`` on, and commit it; the sequence is closed if that is refused."""
        try:
            pages: list[StagedPage] = []
            slots: list[int] = []
            staged = {(page.life_cycle, page.ordinal): page for page in operation.pages}
            for life_cycle in range(self._needs.num_life_cycles):
                if self._needs.has_states(life_cycle):
                    pages.append(staged[(life_cycle, num_blocks - 1)])
                    slots.append(kv_cache.get_ssm_block_base_index(life_cycle))
                    continue
                indices = kv_cache.get_base_page_indices(life_cycle)
                for block in range(begin, num_blocks):
                    if indices[block] != BAD_PAGE_INDEX:
                        pages.append(staged[(life_cycle, block)])
                        slots.append(indices[block])
            copies = PageCopies(
                self._manager.device, self._loads, self._layouts, self._pool_group_of, self._manager.pool_group_descs
            )
            codec = self._manager.cold_page_codec
            if codec is None:
                copies.enqueue(kv_cache.cuda_stream, pages, slots)
            else:
                copies.unpack(kv_cache.cuda_stream, pages, slots, codec, self._manager._shared.storage.layout.slot_variants())
                if not codec.is_lossless:
                    kv_cache._mark_packed(begin)
            # A length that needs no page has no slots either, which would wait for the copies.
            copy = EnqueuedCopy(self._manager.device, kv_cache.cuda_stream) if len(operation.slots) > 0 else None
            kv_cache.commit_input(num_blocks * self.block_tokens - kv_cache.num_committed_tokens)
        except BaseException:
            # Some of its pages have no bytes: no token of theirs may be committed.
            kv_cache.close()
            raise
        self.end_load(operation, copy)

    def end_load(self, operation: RemoteOperation, copy: EnqueuedCopy | None) -> None:
        """Its bytes are taken: free the slots, or quarantine them while a thread may still write there."""
        if (operation.request, operation.step) in self._operations:
            operation.is_abandoned = True
            self._loads.quarantine(operation.slots, copy)
        else:
            self._loads.free(operation.slots, copy)

    def abandon(self, operation: RemoteOperation) -> None:
        """The request wants it no more."""
        operation.cancel()
        if not operation.is_started:
            operation.start(self._workers)  # threads skip what is cancelled
        if operation.kind == LOADS:
            self.end_load(operation, None)

    def count_due(self, num_blocks: int, num_hits: int) -> int:
        """How many of the sequence's first blocks the write policy wants stored."""
        if self._write_policy in (OFF, ON_EVICTION):
            return 0
        return num_blocks if self._write_policy == ON_COMMIT else min(num_blocks, num_hits)

    def begin_store(self, kv_cache: KVCache, chain: NameChain, begin: int, end: int) -> tuple[int, int]:
        """Copy the pages of these blocks out, to be stored; how many pages, and the block to go on with."""
        return self._outgoing.offer(kv_cache, chain, begin, end)

    def note_taken(self, kv_cache: KVCache, operation: RemoteOperation, begin: int, num_blocks: int) -> None:
        """The sequence has committed what was loaded: it need not be stored again."""
        width = self._needs.num_life_cycles
        keys = {page.ordinal * width + page.life_cycle: self._key(page) for page in operation.pages if page.ordinal < num_blocks}
        self._outgoing.note_taken(kv_cache, keys, begin, num_blocks)

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> SharedStatistics:
        """Everything since the level was made."""
        return self._counters.read()

    def read_facts(self) -> SharedFacts:
        """For `PrometheusExporter`, which takes the level as ``shared_level``; from any thread."""
        slots: dict[tuple[str, str], int] = {}
        for use, num_slots, num_free, num_quarantined in (
            ("load", self._loads.num_slots, self._loads.num_free, self._loads.num_quarantined),
            ("store", self._stores.num_slots, len(self._outgoing.free), 0),
        ):
            slots[(use, "free")] = num_free
            slots[(use, "quarantined")] = num_quarantined
            slots[(use, "taken")] = max(0, num_slots - num_free - num_quarantined)
        return self._counters.read_facts({name: breaker.is_open for name, breaker in self._workers.breakers.items()}, slots)

    @property
    def num_quarantined(self) -> int:
        """Staging slots that were abandoned while a thread may still write into them."""
        return self._loads.num_quarantined

    @property
    def failed_endpoints(self) -> tuple[str, ...]:
        """Those that are not asked at present, but for probes."""
        return tuple([endpoint for endpoint, breaker in self._workers.breakers.items() if breaker.is_open])

    def check_invariants(self) -> None:
        """Evaluate the states of all staging slots from scratch; `LogicError` with the first that does not hold."""
        try:
            self._loads.check()
            self._outgoing.check()
            taken = [slot for operation in self._operations.values() for slot in operation.slots]
            assert len(set(taken)) == len(taken), "a staging slot has two operations"
            quarantined = [slot for operation in self._operations.values() if operation.is_abandoned for slot in operation.slots]
            assert len(quarantined) == self._loads.num_quarantined, "a staging slot is in quarantine, and no operation may write into it"
        except AssertionError as error:
            raise LogicError(f"the shared level is inconsistent: {error}") from error


def _check_endpoints(store: GuardedStore, known: Sequence[str] = ()) -> list[str]:
    """Those not among the known ones that do not answer, or refuse.

    `StoreError` if no other is left, `ValueError` for a key space of another format."""
    failed: dict[str, StoreError] = {}
    for endpoint in store.endpoints:
        if endpoint in known:
            continue
        try:
            connection = store.connect(endpoint)
            try:
                connection.check()
            finally:
                connection.close()
        except StoreError as error:
            failed[endpoint] = error
    if len(failed) == len(store.endpoints):
        raise next(iter(failed.values()))
    for endpoint, reason in failed.items():
        _logger.warning("the shared level begins without %s, whose keys are misses until it answers: %s", endpoint, reason)
    return list(failed)


def _validate(
    manager: object, store: object, model_id: object, write_policy: object, publisher: KVCacheEventPublisher | None, key: bytes | None
) -> None:
    manager = to_instance(manager, KVCacheManager, "manager")
    if not isinstance(store, SharedStore):
        raise TypeError(f"store must be a SharedStore, such as ValkeyStore, not {type(store).__name__}")
    to_instance(model_id, ModelId, "model_id")
    if write_policy not in WRITE_POLICIES:
        raise ValueError(f"write_policy is {write_policy!r}; it is one of {', '.join(WRITE_POLICIES)}")
    manager._require_open()
    manager._addresses.require_memory("SharedLevel()")
    if write_policy == ON_EVICTION:
        _require_memory_levels(manager)
    if publisher is not None and not to_instance(publisher, KVCacheEventPublisher, "publisher")._follows(manager.event_manager):
        raise ValueError("the publisher is of another manager's events; give that of this manager's event_manager")
    require_key(key)


def _lay_out_records(
    model_id: ModelId, config: KVCacheManagerConfig, layout: SlotLayout, codec: ColdPageCodec | None, key: bytes | None
) -> list[RecordLayout]:
    """By life cycle."""
    pages = layout.slot_variants()
    sizes = [sum(page.slot_size_list) if codec is None else int(codec.cold_bytes(page)) for page in pages]
    described = describe_layout(layout, 0 if codec is None else 1)
    identity = describe_identity_bytes(describe_identity(model_id, config, None if codec is None else codec.identity), described)
    return [
        RecordLayout(identity, life_cycle, num_bytes, config.tokens_per_block, key) for life_cycle, num_bytes in enumerate(sizes)
    ]


def _to_finite(value: object, name: str, least: int) -> float:
    number = float(to_number(value, name))
    if not least <= number < math.inf:
        raise ValueError(f"{name} is {value}; it must be {least} or more, and finite")
    return number


def _require_memory_levels(manager: KVCacheManager) -> None:
    if CacheTier.DISK in [tier.tier for tier in manager.init_config.cache_tiers]:
        raise ValueError(
            "write_policy is 'eviction' and the manager has a disk level, from which nothing is copied: use 'second_hit' or 'commit'"
        )
    if manager._shared.storage.drop_watch is not None:
        raise ValueError("write_policy is 'eviction', and another shared level of this manager has it already: close that one first")
