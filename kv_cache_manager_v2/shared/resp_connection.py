"""A connection to a Valkey or Redis server: the few commands that are needed, pipelined, values received where they belong.

Commands are sent `_PIPELINE` at a time and their answers read afterwards, so that neither side waits for the other with full buffers.
Anything that the protocol does not allow ends the connection: what comes after it would be taken for the answer to something else.
"""

import socket
import ssl
from collections.abc import Sequence
from time import monotonic
from typing import Final

from .shared_store import (
    CUT_OFF,
    GARBAGE,
    MISSING,
    PROGRESS_SECONDS,
    REFUSED,
    SILENT,
    SLOW,
    UNREACHABLE,
    WRONG_SIZE,
    StoreConnection,
    StoreError,
    StoreFullError,
    store_error,
)

FORMAT_KEY: Final = b"kvcm/format"
FORMAT: Final = b"KVCMSHR1"

_GREETING_SECONDS: Final = 3.0
"""For what is asked before the level sets deadlines: credentials, and at the start the key space."""
_PIPELINE: Final = 16
_BUFFER_BYTES: Final = 1 << 14
_MAX_LINE_BYTES: Final = 4096


class RespConnection(StoreConnection):
    """Connected by the constructor. ``port`` -1: ``host`` is the path of a Unix socket."""

    def __init__(
        self,
        endpoint: str,
        host: str,
        port: int,
        username: str | None,
        password: str | None,
        database: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._endpoint: Final = endpoint
        self._buffer: Final = bytearray(_BUFFER_BYTES)
        self._begin = 0
        self._end = 0
        self.last_progress = monotonic()
        self.deadline = self.last_progress + _GREETING_SECONDS
        try:
            if port < 0:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(PROGRESS_SECONDS)
                self._socket.connect(host)
            else:
                self._socket = socket.create_connection((host, port), PROGRESS_SECONDS)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host if port >= 0 else None)
            self._socket.settimeout(PROGRESS_SECONDS)
        except OSError as error:
            raise store_error(UNREACHABLE, f"the store {endpoint} cannot be reached: {error or type(error).__name__}") from error
        try:
            if password is not None:
                words = [b"AUTH", password.encode()] if username is None else [b"AUTH", username.encode(), password.encode()]
                self._ask(words, "refuses the credentials")
            if database != 0:
                self._ask([b"SELECT", str(database).encode()], "refuses the database")
        except BaseException:
            self.close()
            raise

    # -- the port -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self._ask([b"PING"], "refuses a PING: is a password missing")
        mode = self._describe_server().get("redis_mode", "standalone")
        if mode != "standalone":
            # Nodes of a cluster answer MOVED for keys of others, and a Sentinel has none.
            text = f"the store {self._endpoint} runs as {mode}, which is not spoken here: list servers that stand alone"
            raise store_error(REFUSED, text)
        self._ask([b"SET", FORMAT_KEY, FORMAT, b"NX"], "refuses to store the format of its keys")
        self._send(_encode([b"GET", FORMAT_KEY]))
        found = self._read_bulk()
        if found is not None and found != FORMAT:
            raise ValueError(
                f"the store {self._endpoint} has keys of the format {found[:32]!r}, and this release has {FORMAT!r}: give another "
                f"database or server, or remove what is there"
            )

    def server_id(self) -> str:
        return self._describe_server().get("run_id", "")

    def _describe_server(self) -> dict[str, str]:
        """What the server says of itself; nothing if it refuses to."""
        self._send(_encode([b"INFO", b"server"]))
        try:
            text = self._read_bulk() or b""
        except StoreError as error:
            if error.cause != REFUSED:
                raise
            return {}
        pairs = [line.partition(":") for line in text.decode(errors="replace").split("\r\n")]
        return {name: value for name, _colon, value in pairs}

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        present: list[bool] = []
        # Answers are four bytes each: many at once fill no buffer.
        for begin in range(0, len(keys), 64 * _PIPELINE):
            part = keys[begin : begin + 64 * _PIPELINE]
            self._send(b"".join([_encode([b"EXISTS", key]) for key in part]))
            for _key in part:
                line = self._read_line()
                if line not in (b":0", b":1"):
                    raise self._unexpected("EXISTS", line)
                present.append(line == b":1")
        return present

    def load(self, keys: Sequence[bytes], targets: Sequence[memoryview]) -> list[int]:
        sizes: list[int] = []
        for begin in range(0, len(keys), _PIPELINE):
            self._send(b"".join([_encode([b"GET", key]) for key in keys[begin : begin + _PIPELINE]]))
            for target in targets[begin : begin + _PIPELINE]:
                sizes.append(self._read_value(target))
        return sizes

    def store(self, keys: Sequence[bytes], sources: Sequence[Sequence[memoryview]]) -> None:
        is_full = False
        for begin in range(0, len(keys), _PIPELINE):
            end = min(begin + _PIPELINE, len(keys))
            for position in range(begin, end):
                key = keys[position]
                pieces = sources[position]
                num_bytes = sum([len(piece) for piece in pieces])
                self._send(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, num_bytes))
                for piece in pieces:
                    self._send(piece)
                self._send(b"\r\n")
            for _position in range(begin, end):
                line = self._read_line()
                if line.startswith((b"-OOM", b"-NOSPACE")):
                    is_full = True
                elif line != b"+OK":
                    raise self._unexpected("SET", line)
        if is_full:
            raise StoreFullError(f"the store {self._endpoint} is full, and evicts nothing: give it a maxmemory-policy such as allkeys-lru")

    def remove(self, keys: Sequence[bytes]) -> None:
        if len(keys) > 0:
            self._send(_encode([b"UNLINK", *keys]))
            line = self._read_line()
            if not line.startswith(b":"):
                raise self._unexpected("UNLINK", line)

    def abort(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()

    # -- the protocol -------------------------------------------------------------------------------------------------

    def _ask(self, words: list[bytes], refusal: str) -> None:
        """A command whose answer is OK, PONG or nothing."""
        self._send(_encode(words))
        line = self._read_line()
        if line not in (b"+OK", b"+PONG", b"$-1", b"_"):
            if line.startswith(b"-"):
                raise store_error(REFUSED, f"the store {self._endpoint} {refusal}: {line[1:].decode(errors='replace')}")
            raise self._unexpected(words[0].decode(), line)

    def _unexpected(self, command: str, line: bytes) -> StoreError:
        if line.startswith(b"-"):
            return store_error(REFUSED, f"the store {self._endpoint} refuses {command}: {line[1:81].decode(errors='replace')}")
        text = f"{self._endpoint} answers {command} with {line[:80]!r}, which no Valkey or Redis server does there"
        return store_error(GARBAGE, text)

    def _send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while len(view) > 0:
                self._await_at_most()
                count = self._socket.send(view)
                view = view[count:]
                self.last_progress = monotonic()
        except OSError as error:
            raise self._failed(error, "takes nothing") from error

    def _await_at_most(self) -> None:
        """Let the next byte come within `PROGRESS_SECONDS`, and before the deadline."""
        left = self.deadline - monotonic()
        if left <= 0:
            raise TimeoutError("it is too slow for what was asked")
        self._socket.settimeout(min(PROGRESS_SECONDS, left))

    def _failed(self, error: OSError, what: str) -> StoreError:
        cause = CUT_OFF
        if isinstance(error, TimeoutError):
            cause = SLOW if monotonic() >= self.deadline else SILENT
        return store_error(cause, f"the store {self._endpoint} {what}: {error or type(error).__name__}")

    def _receive(self, target: memoryview) -> int:
        try:
            self._await_at_most()
            count = self._socket.recv_into(target)
        except OSError as error:
            raise self._failed(error, "does not answer") from error
        if count == 0:
            raise store_error(CUT_OFF, f"the store {self._endpoint} has closed the connection")
        self.last_progress = monotonic()
        return count

    def _read_line(self) -> bytes:
        while True:
            end = self._buffer.find(b"\r\n", self._begin, self._end)
            if end >= 0:
                line = bytes(self._buffer[self._begin : end])
                self._begin = end + 2
                return line
            if self._end - self._begin > _MAX_LINE_BYTES:
                raise self._unexpected("a command", bytes(self._buffer[self._begin : self._begin + 80]))
            if self._begin > 0:
                self._buffer[: self._end - self._begin] = self._buffer[self._begin : self._end]
                self._end -= self._begin
                self._begin = 0
            self._end += self._receive(memoryview(self._buffer)[self._end :])

    def _read_length(self) -> int:
        """Of the next bulk string; -1 for none."""
        line = self._read_line()
        if line in (b"$-1", b"_"):
            return -1
        if not line.startswith(b"$") or not line[1:].isdigit():
            raise self._unexpected("GET", line)
        return int(line[1:])

    def _read_into(self, target: memoryview) -> None:
        count = min(self._end - self._begin, len(target))
        target[:count] = self._buffer[self._begin : self._begin + count]
        self._begin += count
        while count < len(target):
            count += self._receive(target[count:])

    def _read_end(self) -> None:
        if self._read_line() != b"":
            raise self._unexpected("GET", b"a value that does not end where it says")

    def _read_value(self, target: memoryview) -> int:
        length = self._read_length()
        if length < 0:
            return MISSING
        if length != len(target):
            self._skip(length)
            return WRONG_SIZE
        self._read_into(target)
        self._read_end()
        return length

    def _read_bulk(self) -> bytes | None:
        length = self._read_length()
        if length < 0:
            return None
        if length > _BUFFER_BYTES:
            raise self._unexpected("GET", b"a value of %d bytes" % length)
        value = bytearray(length)
        self._read_into(memoryview(value))
        self._read_end()
        return bytes(value)

    def _skip(self, length: int) -> None:
        scratch = memoryview(bytearray(min(length, 1 << 16)))
        left = length
        while left > 0:
            part = scratch[: min(left, len(scratch))]
            self._read_into(part)
            left -= len(part)
        self._read_end()


def _encode(words: Sequence[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
