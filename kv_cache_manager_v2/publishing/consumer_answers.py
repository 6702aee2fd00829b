"""Answers to the requests on one socket: as fast as each consumer reads them, and within bounds for one that does not.

One answer is under way at a time, and ZeroMQ holds at most a few of its batches; further requests wait, a few of each consumer. A consumer
that reads too slowly gets no more of its answer: without the end marker it knows that the answer is not whole.
"""

import time
from collections import deque
from typing import Any, Final, final


from ..base.package_log import PackageLog
from .event_endpoints import load_zmq

MAX_BATCHES_UNREAD: Final = 16
"""Of one consumer, held by ZeroMQ beside what the network has."""
_MAX_WAITING: Final = 64
_MAX_WAITING_OF_ONE: Final = 4
_PATIENCE_SECONDS: Final = 5.0
_SECONDS_PER_BATCH: Final = 0.1
"""A consumer may take that much longer for each batch of an answer."""
_LOG_SECONDS: Final = 10.0

_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class ConsumerAnswers:
    """``socket``: a ROUTER. For the publisher's thread."""

    __slots__ = ("_socket", "address", "_waiting", "_consumer", "_frames", "_next", "_begun", "_next_line")

    def __init__(self, socket: Any, address: str) -> None:
        self._socket: Final = socket
        self.address: Final = address
        self._waiting: Final[deque[list[bytes]]] = deque()
        self._consumer = b""
        self._frames: list[tuple[bytes, bytes, bytes]] = []
        """Of the answer under way: topic, number and payload of each message."""
        self._next = 0
        self._begun = 0.0
        self._next_line = 0.0
        """When the log may get another line."""

    @property
    def is_under_way(self) -> bool:
        return self._next < len(self._frames)

    def receive(self) -> None:
        """Take what has come; what is too much for one consumer, or for all, is dropped."""
        for _request in range(_MAX_WAITING):
            if self._socket.poll(0) == 0:
                return
            frames: list[bytes] = self._socket.recv_multipart()
            num_of_one = sum([1 for waiting in self._waiting if waiting[0] == frames[0]])
            if len(self._waiting) >= _MAX_WAITING or num_of_one >= _MAX_WAITING_OF_ONE:
                self.log(f"a request is dropped: {len(self._waiting)} wait, {num_of_one} of the same consumer")
            else:
                self._waiting.append(frames)

    def next_request(self) -> list[bytes] | None:
        """None while an answer is under way, and where no request waits."""
        if self.is_under_way or len(self._waiting) == 0:
            return None
        return self._waiting.popleft()

    def begin(self, consumer: bytes, frames: list[tuple[bytes, bytes, bytes]]) -> None:
        self._consumer = consumer
        self._frames = frames
        self._next = 0
        self._begun = time.monotonic()

    def go_on(self) -> None:
        """Send what the consumer has room for."""
        zmq = load_zmq()
        try:
            while self.is_under_way:
                self._socket.send_multipart((self._consumer, b"", *self._frames[self._next]), zmq.NOBLOCK)
                self._next += 1
        except zmq.Again:
            if time.monotonic() < self._begun + _PATIENCE_SECONDS + _SECONDS_PER_BATCH * self._next:
                return
            self.log(f"a consumer reads too slowly: it gets {self._next} of {len(self._frames)} messages of its answer")
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        self._frames = []
        self._next = 0

    def log(self, what: str) -> None:
        """One line in ten seconds: consumers may ask as often as they like."""
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _LOG_SECONDS
            _logger.warning("KV events at %s: %s", self.address, what)
