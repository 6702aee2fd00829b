"""`KVCacheEventPublisher`: drains a manager's events on a thread of its own and publishes them over ZeroMQ.

A message is three frames: topic, sequence number (8 bytes, big-endian), payload (`wire_writer`). A consumer that misses a number
sends ``[b"", first number as 8 bytes]`` to the replay socket, which answers with each batch from there on as ``[b"", topic, number,
payload]``, and then ``[b"", b"", -1, b""]``. If the requested number is older than the replay buffer, the answer is built from the
index of all published events: cleared, then all present blocks. The snapshot socket answers ``[b"", b"snapshot"]`` with everything that is
there, for consumers that come late (`snapshot_answer`). The first batch of all is that too. While nothing happens, batches without events
show the numbers.

    state      guaranteed                                          ways out
    RUNNING    flushed events are published within milliseconds    close -> CLOSED; an error in the thread -> FAILED
    FAILED     `error` has the cause; nothing more is published    close -> CLOSED
    CLOSED     all flushed events were published, no socket open   none

The manager's thread and the publisher never wait for each other: if events are flushed faster than they are published, the event
manager drops the oldest. Then a sequence number is skipped, so that consumers see the gap, and all present blocks follow.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, SupportsFloat, SupportsIndex, final


from ..base.checks import shown, to_count, to_instance, to_int, to_items, to_number, to_text
from ..base.errors import LogicError
from ..base.given import Given
from ..base.handle import Handle
from ..base.missing_package import missing_package
from ..base.package_log import PackageLog
from ..events.event_manager import KVCacheEventManager
from .consumer_answers import MAX_BATCHES_UNREAD, ConsumerAnswers
from .event_endpoints import (
    ConsumerKeys, bind_socket, connect_socket, is_of_this_machine, load_zmq, offset_port, open_socket, to_consumer_keys,
)  # fmt: skip
from .shared_copies import SharedBlocks, SharedChange, SharedCopies
from .snapshot_answer import SNAPSHOT, SNAPSHOT_REQUESTS, write_header
from .wire_event import BlockStored, WireEvent
from .wire_translator import WireTranslator
from .wire_writer import DIALECTS, MAP, WireWriter


@final
class PublishedBatch:
    __slots__ = ("sequence", "payload")

    def __init__(self, sequence: int, payload: bytes) -> None:
        self.sequence: Final = sequence
        self.payload: Final = payload


@final
class ReplayBuffer:
    """Batches in the order of their sequence numbers; numbers may be skipped."""

    __slots__ = ("_batches", "_max_batches", "_is_complete_from", "_num_bytes")

    def __init__(self, max_batches: int, first_sequence: int) -> None:
        self._batches: Final[deque[PublishedBatch]] = deque()
        self._max_batches: Final = max_batches
        self._is_complete_from = first_sequence
        """The oldest number from which on the buffer has everything."""
        self._num_bytes = 0

    def add(self, batch: PublishedBatch) -> None:
        self._batches.append(batch)
        self._num_bytes += len(batch.payload)
        while len(self._batches) > self._max_batches or self._num_bytes > _MAX_BYTES_BUFFERED:
            oldest = self._batches.popleft()
            self._num_bytes -= len(oldest.payload)
            self._is_complete_from = oldest.sequence + 1

    def forget_up_to(self, sequence: int) -> None:
        """A batch was lost: a replay must not begin before that number."""
        self._batches.clear()
        self._num_bytes = 0
        self._is_complete_from = sequence + 1

    def has_all_from(self, sequence: int) -> bool:
        return sequence >= self._is_complete_from

    def since(self, sequence: int) -> list[PublishedBatch]:
        return [batch for batch in self._batches if batch.sequence >= sequence]


END_OF_REPLAY: Final = (-1).to_bytes(8, "big", signed=True)
MAX_SEQUENCE: Final = 2**63 - 1
MAX_INT32: Final = 2**31 - 1
_POLL_MS: Final = 10
_SHORT_POLL_MS: Final = 1
"""While a consumer reads an answer."""
_MAX_EVENTS_PER_BATCH: Final = 256
_MAX_TOKENS_PER_BATCH: Final = 16384
_MAX_BYTES_BUFFERED: Final = 256 << 20
_MAX_REQUESTS_AT_ONCE: Final = 16
_LEAST_HEARTBEAT: Final = 0.01
_MOST_HEARTBEAT: Final = 3600.0
_ENDPOINTS: Final = ("bind", "connect", "replay_endpoint", "snapshot_endpoint", "endpoint")

_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class KVCacheEventPublisher(Handle):
    """Publishes events from its creation until `close`; a context manager. No other code may drain the event manager meanwhile: what it
    drains is not published.

    Made by the thread that calls the manager, whose changes so far are flushed. ``bind``, ``replay_endpoint``, ``snapshot_endpoint``:
    addresses to bind, or None; events carry tokens, and this machine alone reaches the default. ``connect``: of a subscriber that
    binds; events go there, too. ``endpoint``: the former name of ``bind``, in whose place it is taken. TCP ports are offset by
    ``data_parallel_rank``. ``curve``: the secret key of ZeroMQ's CURVE (40 characters), with ``curve_consumers``, the public keys of
    the consumers that may connect; traffic is encrypted. ``heartbeat_seconds``: of silence, after which a batch without events is
    published; None: never. ``topic``: llm-d wants ``kv@<pod>@<model>``. ``dialect``: "map", or "array" for consumers of vLLM up to
    0.23. ``first_sequence``: a number, or "epoch" for microseconds since 1970, so that numbers grow over restarts. ``buffer_batches``:
    batches kept for replays. ``lora_names``: by LoRA id. ``linger_ms``: how long `close` waits for slow consumers.

    `ImportError` without pyzmq or msgspec; `LogicError` unless the event manager has been given to a manager, is on, and has no other
    publisher that is open.
    """

    __slots__ = (
        "_event_manager", "_topic", "_rank", "_translator", "_writer", "_buffer", "_sequence", "_context", "_socket", "_replay_socket",
        "_snapshot_socket", "_endpoint", "_replay_endpoint", "_snapshot_endpoint", "_stop", "_sender", "_error", "_num_batches",
        "_num_lost", "_linger_ms", "_publisher_id", "_heartbeat", "_last_sent", "_shared", "_pack", "_keys", "_answers",
    )  # fmt: skip

    _NAMES: ClassVar[str] = "sockets and threads of this process"

    _event_manager: Final[KVCacheEventManager]
    _rank: Final[int]
    _context: Any
    _socket: Any
    _replay_socket: Any
    _snapshot_socket: Any
    _replay_endpoint: str | None
    _snapshot_endpoint: str | None
    _num_batches: int
    _num_lost: int

    def __init__(
        self,
        event_manager: Given[KVCacheEventManager],
        *,
        bind: Given[str | None] = "tcp://127.0.0.1:5557",
        replay_endpoint: Given[str | None] = None,
        snapshot_endpoint: Given[str | None] = None,
        connect: Given[str | None] = None,
        endpoint: Given[str | None] = None,
        curve: Given[str | None] = None,
        curve_consumers: Sequence[str] = (),
        heartbeat_seconds: SupportsFloat | None = 1.0,
        topic: Given[str] = "",
        data_parallel_rank: SupportsIndex = 0,
        dialect: Given[str] = MAP,
        first_sequence: SupportsIndex | str = 0,
        buffer_batches: SupportsIndex = 10_000,
        high_water_mark: SupportsIndex = 10_000,
        lora_names: Mapping[int, str] | None = None,
        linger_ms: SupportsIndex = 1000,
    ) -> None:
        # First of all: `close` and `__del__` read it, also if the constructor fails.
        self._sender: threading.Thread | None = None
        self._context = self._socket = self._replay_socket = self._snapshot_socket = None
        self._stop: Final = threading.Event()
        self._error: BaseException | None = None
        self._answers: Final[list[ConsumerAnswers]] = []
        self._event_manager = events = to_instance(event_manager, KVCacheEventManager, "event_manager")
        self._rank = rank = int(to_count(data_parallel_rank, "data_parallel_rank"))
        given = (bind, connect, replay_endpoint, snapshot_endpoint, endpoint)
        endpoints = [None if text is None else offset_port(to_text(text, name), rank, name) for name, text in zip(_ENDPOINTS, given)]
        if endpoints[0] is None and endpoints[1] is None:
            raise ValueError("bind and connect are None; give an address to bind, or one of a subscriber that binds")
        self._heartbeat: Final[float | None] = _to_heartbeat(heartbeat_seconds)
        self._topic: Final[bytes] = _to_topic(topic)
        self._sequence: int = _to_first_sequence(first_sequence)
        """The number of the next batch."""
        self._buffer: Final = ReplayBuffer(int(to_count(buffer_batches, "buffer_batches")), self._sequence)
        most_waiting = _to_int32(high_water_mark, "high_water_mark")
        names = {} if lora_names is None else _to_lora_names(lora_names)
        named_dialect = _to_dialect(dialect)
        self._linger_ms: Final[int] = _to_int32(linger_ms, "linger_ms")
        _require_something_to_publish(events)
        self._pack: Final[Any] = _make_encoder()
        load_zmq()  # fails before anything is open
        self._keys: Final[ConsumerKeys | None] = to_consumer_keys(curve, curve_consumers)

        self._num_batches = self._num_lost = 0
        self._publisher_id: Final[str] = uuid.uuid4().hex
        self._last_sent = 0.0
        self._endpoint: str | None = endpoints[4] or endpoints[0]
        self._replay_endpoint, self._snapshot_endpoint = endpoints[2:4]
        shared = events._begin_publishing(SharedCopies(len(events.cache_tiers), events.hash_algo))
        assert isinstance(shared, SharedCopies)
        self._shared: Final[SharedCopies] = shared
        """Of the first publisher of this event manager, taken over."""
        self._translator: Final = WireTranslator(events.tokens_per_block, events.cache_tiers, events.layer_group_kinds, names, shared)
        self._writer: Final = WireWriter(self._pack, named_dialect, self._translator.has_groups)
        self._begin(most_waiting, endpoints[1], "bind" if endpoint is None else "endpoint")

    def _begin(self, high_water_mark: int, connect: str | None, bind_name: str) -> None:
        try:
            self._shared.begin()
            self._event_manager.flush_iteration_events()
            self._open(high_water_mark, connect, bind_name)
            thread = threading.Thread(target=self._run, name="kv-event-publisher", daemon=True)
            self._sender = thread
            thread.start()
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """It could not begin. Its thread may run already (Ctrl-C), and has the sockets as long as it does."""
        self._stop.set()
        thread = self._sender
        self._sender = None
        if thread is not None and thread.is_alive():
            thread.join()
        self._close_sockets(0)
        self._end_publishing()

    def _end_publishing(self) -> None:
        self._shared.is_followed = False
        self._event_manager._end_publishing()

    def _open(self, high_water_mark: int, connect: str | None, name: str) -> None:
        zmq = load_zmq()
        self._context = zmq.Context()
        keys = self._keys
        if keys is not None:
            keys.open(self._context)
        self._socket = open_socket(self._context, zmq.PUB, keys)
        self._socket.sndhwm = high_water_mark
        if self._endpoint is not None:
            self._endpoint = bind_socket(self._socket, self._endpoint, name)
        if connect is not None:
            connect_socket(self._socket, connect, "connect")
        if self._replay_endpoint is not None:
            self._replay_socket = open_socket(self._context, zmq.ROUTER, keys)
            self._replay_endpoint = self._open_answers(self._replay_socket, self._replay_endpoint, "replay_endpoint")
        if self._snapshot_endpoint is not None:
            self._snapshot_socket = open_socket(self._context, zmq.ROUTER, keys)
            self._snapshot_endpoint = self._open_answers(self._snapshot_socket, self._snapshot_endpoint, "snapshot_endpoint")
        self._log_who_reaches(connect)

    def _open_answers(self, socket: Any, endpoint: str, name: str) -> str:
        socket.sndhwm = MAX_BATCHES_UNREAD
        socket.router_mandatory = True  # so that a full queue is told, and no message is lost
        address = bind_socket(socket, endpoint, name)
        self._answers.append(ConsumerAnswers(socket, address))
        return address

    def _log_who_reaches(self, connect: str | None) -> None:
        bound = [place for place in (self._endpoint, self._replay_endpoint, self._snapshot_endpoint) if place is not None]
        far = [place for place in [*bound, connect] if place is not None and not is_of_this_machine(place)]
        if self._keys is not None:
            _logger.inform("KV events at %s are for the keys of curve_consumers alone", ", ".join(bound))
        elif len(far) > 0:
            _logger.warning(
                "KV events, which hold tokens, are open to each machine that reaches %s: give curve=, or bind 127.0.0.1", ", ".join(far)
            )
        else:
            _logger.inform("KV events at %s are open to each process of this machine", ", ".join(bound))

    def _close_sockets(self, linger_ms: int) -> None:
        for socket in (self._socket, self._replay_socket, self._snapshot_socket):
            if socket is not None:
                socket.close(linger=linger_ms)
        if self._keys is not None:
            self._keys.close()
        if self._context is not None:
            self._context.term()
        self._socket = None
        self._replay_socket = None
        self._snapshot_socket = None
        self._context = None

    # -- for the user -------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str | None:
        """The address that is bound; with the actual port if the system chose it."""
        return self._endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """The address for replays; None without replays."""
        return self._replay_endpoint

    @property
    def snapshot_endpoint(self) -> str | None:
        """The address for snapshots; None without."""
        return self._snapshot_endpoint

    @property
    def publisher_id(self) -> str:
        """32 hex digits, others for each publisher: a consumer that sees another id begins anew."""
        return self._publisher_id

    @property
    def next_sequence(self) -> int:
        """The number of the next batch."""
        return self._sequence

    @property
    def num_batches_published(self) -> int:
        """Batches that were passed to the socket."""
        return self._num_batches

    @property
    def num_batches_lost(self) -> int:
        """Sequence numbers skipped because events came faster than they could be published."""
        return self._num_lost

    @property
    def error(self) -> BaseException | None:
        """The error that stopped publishing; None if there is none."""
        return self._error

    def __enter__(self) -> KVCacheEventPublisher:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Publish all flushed events, then stop. Closing twice is fine."""
        self._stop.set()
        thread = self._sender
        if thread is not None:
            thread.join()
            self._close_sockets(self._linger_ms)
            self._sender = None
            self._end_publishing()

    # -- for a shared level -------------------------------------------------------------------------------------------

    def _follows(self, event_manager: KVCacheEventManager | None) -> bool:
        return event_manager is self._event_manager

    def _tell_shared(
        self, salt: int | str | None, blocks: SharedBlocks | None, pages: list[tuple[int, int, bytes]], gone: list[bytes]
    ) -> None:
        """Pages are in the store, or not any more (`SharedChange`); from any thread. Once this is closed, for the next publisher."""
        self._shared.tell(SharedChange(salt, blocks, pages, gone))

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._publish_first()
            while not self._stop.is_set():
                self._publish_latest(_SHORT_POLL_MS if self._is_answering() else _POLL_MS)
                self._answer_requests()
                self._keep_alive()
            self._publish_latest(0)
            self._end_answers()
        except BaseException as error:
            self._error = error
            self._shared.is_followed = False
            _logger.exception("publishing of KV events has stopped")

    def _publish_first(self) -> None:
        """Cleared, then everything that is there: what a durable level has brought back, or an earlier publisher has drained."""
        self._translator.begin_anew(self._event_manager.snapshot(flush=False))
        self._publish_in_batches(self._translator.events_of_state())

    def _keep_alive(self) -> None:
        heartbeat = self._heartbeat
        if heartbeat is not None and time.monotonic() - self._last_sent >= heartbeat:
            self._publish([])

    def _publish_latest(self, timeout_ms: int) -> None:
        events = self._event_manager.get_latest_events(timeout_ms)
        said = self._translator.translate(events)
        for change in self._shared.take_changes():
            said.extend(self._translator.translate_shared(change))
        self._publish_in_batches(said)
        if self._translator.needs_snapshot:
            # A number without a batch shows the gap; a replay cannot continue from batches before it to those after it.
            self._buffer.forget_up_to(self._sequence)
            self._sequence += 1
            self._num_lost += 1
            self._translator.begin_anew(self._event_manager.snapshot(flush=False))
            self._publish_in_batches(self._translator.events_of_state())

    def _publish_in_batches(self, events: list[WireEvent]) -> None:
        for part in _split(events):
            self._publish(part)

    def _publish(self, events: list[WireEvent]) -> None:
        payload = self._writer.write_batch(time.time(), events, self._rank)
        self._buffer.add(PublishedBatch(self._sequence, payload))
        self._socket.send_multipart((self._topic, self._sequence.to_bytes(8, "big"), payload))
        self._sequence += 1
        self._num_batches += 1
        self._last_sent = time.monotonic()

    # -- replays and snapshots ----------------------------------------------------------------------------------------

    def _answer_requests(self) -> None:
        if self._keys is not None:
            self._keys.answer()
        for answers in self._answers:
            answers.receive()
            answers.go_on()
            for _request in range(_MAX_REQUESTS_AT_ONCE):
                request = answers.next_request()
                if request is None:
                    break
                is_replay = answers.address == self._replay_endpoint
                frames = self._answer(answers, request) if is_replay else self._answer_snapshot(answers, request)
                answers.begin(request[0], [*frames, (b"", END_OF_REPLAY, b"")])
                answers.go_on()

    def _end_answers(self) -> None:
        """`close` waits for consumers as long as it does for the stream's."""
        end = time.monotonic() + self._linger_ms / 1000
        self._answer_requests()
        while self._is_answering() and time.monotonic() < end:
            time.sleep(_SHORT_POLL_MS / 1000)
            self._answer_requests()

    def _is_answering(self) -> bool:
        return any([answers.is_under_way for answers in self._answers])

    def _answer_snapshot(self, answers: ConsumerAnswers, frames: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
        """The state of all batches so far: they and the header name the next one's number."""
        if len(frames) != 3 or frames[1] != b"" or frames[2] not in SNAPSHOT_REQUESTS:
            answers.log(f"a snapshot was asked for in {len(frames) - 1} frames; it must be an empty one and b'snapshot' or b'identity'")
            return []
        events = self._translator.events_of_state() if frames[2] == SNAPSHOT else []
        batches = [self._writer.write_batch(time.time(), part, self._rank) for part in _split(events)]
        header = write_header(self._pack, self._publisher_id, self._sequence, len(batches), self._heartbeat, self._rank)
        number = self._sequence.to_bytes(8, "big")
        return [(self._topic, number, payload) for payload in [header, *batches]]

    def _answer(self, answers: ConsumerAnswers, frames: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
        if len(frames) != 3 or frames[1] != b"" or len(frames[2]) != 8:
            answers.log(f"a replay was asked for in {len(frames) - 1} frames; it must be an empty one and 8 bytes")
            return []
        batches = self._find_answer(int.from_bytes(frames[2], "big"))
        return [(self._topic, batch.sequence.to_bytes(8, "big"), batch.payload) for batch in batches]

    def _find_answer(self, sequence: int) -> list[PublishedBatch]:
        if self._buffer.has_all_from(sequence):
            return self._buffer.since(sequence)
        # As many batches as the consumer is missing numbers, so that the last batch has the last published number.
        events = self._translator.events_of_state()
        num_batches = -(-len(events) // _MAX_EVENTS_PER_BATCH)
        num_batches = max(min(num_batches, self._sequence - sequence), 1)
        size = -(-len(events) // num_batches)
        first = self._sequence - num_batches
        answer: list[PublishedBatch] = []
        for index in range(num_batches):
            part = events[index * size : (index + 1) * size]
            answer.append(PublishedBatch(first + index, self._writer.write_batch(time.time(), part, self._rank)))
        return answer


def _split(events: list[WireEvent]) -> list[list[WireEvent]]:
    """Into batches of some number of events, and of tokens, so that no queue of batches is large."""
    parts: list[list[WireEvent]] = []
    num_tokens = 0
    for event in events:
        if len(parts) == 0 or len(parts[-1]) >= _MAX_EVENTS_PER_BATCH or num_tokens >= _MAX_TOKENS_PER_BATCH:
            parts.append([])
            num_tokens = 0
        parts[-1].append(event)
        if isinstance(event, BlockStored):
            num_tokens += len(event.token_ids)
    return parts


def _require_something_to_publish(events: KVCacheEventManager) -> None:
    if events.max_kv_event_entries == 0:
        raise LogicError("the event manager has nothing to publish: its max_kv_event_entries is 0")
    if events.tokens_per_block == 0:
        raise LogicError("the event manager has nothing to publish: give it to a KVCacheManager first")


def _make_encoder() -> Any:
    try:
        import msgspec
    except ImportError as error:
        raise missing_package("KVCacheEventPublisher", "msgspec", error) from error
    return msgspec.msgpack.Encoder()


def _to_dialect(dialect: object) -> str:
    text = to_text(dialect, "dialect")
    if text not in DIALECTS:
        raise ValueError(f"dialect is {text!r}; there are {', '.join(DIALECTS)}")
    return text


def _to_heartbeat(value: SupportsFloat | None) -> float | None:
    if value is None:
        return None
    seconds = to_number(value, "heartbeat_seconds")
    if not _LEAST_HEARTBEAT <= seconds <= _MOST_HEARTBEAT:
        raise ValueError(
            f"heartbeat_seconds is {shown(value)}; it must be from {_LEAST_HEARTBEAT:g} to {_MOST_HEARTBEAT:g}, or None for never"
        )
    return seconds


def _to_first_sequence(value: object) -> int:
    if isinstance(value, str):
        if value != "epoch":
            raise ValueError(f'first_sequence is {value!r}; it is a number or "epoch"')
        return time.time_ns() // 1000
    number = to_int(value, "first_sequence")
    if not 0 <= number <= MAX_SEQUENCE:
        raise ValueError(f"first_sequence is {number}; it must be from 0 to {MAX_SEQUENCE}")
    return number


def _to_topic(topic: object) -> bytes:
    text = to_text(topic, "topic")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"topic is {text!r}; it must be a text that UTF-8 can write: {error}") from None


def _to_int32(value: object, name: str) -> int:
    """As ZeroMQ's options are."""
    number = to_int(value, name)
    if not 0 <= number <= MAX_INT32:
        raise ValueError(f"{name} is {number}; it must be from 0 to {MAX_INT32}")
    return number


def _to_lora_names(names: object) -> dict[int, str]:
    found: dict[int, str] = {}
    for lora_id, name in to_items(names, "lora_names"):
        found[to_int(lora_id, "an id in lora_names")] = to_text(name, f"lora_names[{shown(lora_id)}]")
    return found
