"""A server that speaks as much of the Valkey protocol as the shared level does, and misbehaves as it is told."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

Reply = Callable[[list[bytes]], bytes | Iterable[bytes] | None]


def trickling(command: bytes, first: bytes, seconds: float) -> Reply:
    """Answers to that command, b"" for any, begin so, go on a byte at a time, and never end."""

    def pieces() -> Iterator[bytes]:
        yield first
        while True:
            time.sleep(seconds)
            yield b"0"

    return lambda words: pieces() if command in (b"", words[0]) else None


class FakeServer:
    """``values``: what it keeps. ``reply``: what is answered instead of the right thing, or None for that; pieces until ``reply`` is None.
    ``delay``: seconds before each answer; ``thawed``: nothing is answered until it is set."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.reply: Reply | None = None
        self.delay = 0.0
        self.thawed = threading.Event()
        self.thawed.set()
        self.commands: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._accept = threading.Thread(target=self._run, daemon=True)
        self._accept.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _peer = self._listener.accept()
            except OSError:
                return
            # As real servers do; without it each of several answers waits 40 ms for the last one's acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        file = connection.makefile("rb")
        try:
            while True:
                count = file.readline()
                if not count.startswith(b"*"):
                    return
                words = []
                for _word in range(int(count[1:])):
                    length = int(file.readline()[1:])
                    words.append(file.read(length + 2)[:-2])
                self.commands.append(words[0])
                self.thawed.wait()
                if self.delay > 0:
                    time.sleep(self.delay)
                wrong = None if self.reply is None else self.reply(words)
                answer = self._answer(words) if wrong is None else wrong
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    if wrong is not None and self.reply is None:
                        return
                    connection.sendall(piece)
        except (OSError, ValueError):
            return
        finally:
            connection.close()

    def _answer(self, words: list[bytes]) -> bytes:
        command = words[0]
        if command == b"PING":
            return b"+PONG\r\n"
        if command == b"SET":
            if len(words) < 4 or words[1] not in self.values:
                self.values[words[1]] = words[2]
            return b"+OK\r\n"
        if command == b"GET":
            value = self.values.get(words[1])
            return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)
        if command == b"EXISTS":
            return b":%d\r\n" % (words[1] in self.values)
        if command == b"UNLINK":
            return b":%d\r\n" % sum([self.values.pop(key, None) is not None for key in words[1:]])
        return b"-ERR unknown command\r\n"

    def cut_off(self) -> None:
        """All connections, as a restart does."""
        for connection in self._sockets:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self.thawed.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts, which would keep the port open
        self._accept.join()
        self._listener.close()
        self.cut_off()

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
