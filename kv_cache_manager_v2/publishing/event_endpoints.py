"""Addresses of the publisher's sockets, and the keys that their consumers must have.

An address is bound, or connected to: two arguments of the publisher, never guessed from the address. With ``curve`` all sockets use
ZeroMQ's CURVE: traffic is encrypted, and `ConsumerKeys` answers ZeroMQ's question whether a consumer's key is one of those that are named
(ZAP, a socket within the process).
"""

from __future__ import annotations

import errno
from typing import Any, Final, final


from ..base.checks import shown, to_list, to_text
from ..base.missing_package import missing_package
from ..base.package_log import PackageLog

_MAX_PORT: Final = 65535
_MAX_REQUEST_BYTES: Final = 4096
"""Of a frame that a consumer sends: a request, or a topic that it subscribes to."""
_MAX_REQUESTS_WAITING: Final = 64
_ZAP: Final = "inproc://zeromq.zap.01"
_MAX_KEYS_LOGGED: Final = 16
_MAX_SHOWN_OF_SECRET: Final = 16
_EXAMPLE: Final = "'tcp://127.0.0.1:5557' or 'ipc:///tmp/events'"

_logger: Final = PackageLog("kv_cache_manager_v2")


def load_zmq() -> Any:
    try:
        import zmq
        import zmq.utils.z85
    except ImportError as error:
        raise missing_package("KVCacheEventPublisher", "pyzmq", error) from error
    return zmq


def offset_port(endpoint: str, rank: int, name: str = "endpoint") -> str:
    """The endpoint of a rank: the TCP port plus the rank; other endpoints get the rank as a suffix."""
    if "://" not in endpoint or not endpoint.isprintable():
        raise ValueError(f"{name} is {endpoint!r}; it is an address of ZeroMQ, such as {_EXAMPLE}")
    if not endpoint.startswith("tcp://"):
        return endpoint if rank == 0 else f"{endpoint}_dp{rank}"
    host, _colon, port = endpoint.rpartition(":")
    if port == "*":
        return endpoint
    if not (port.isascii() and port.isdigit()):
        if rank == 0:
            return endpoint  # ZeroMQ says what it lacks
        raise ValueError(f"{name} is {endpoint!r}, which has no port to which data_parallel_rank could be added")
    if len(port) > 5 or int(port) + rank > _MAX_PORT:
        offset = f" and data_parallel_rank {rank}" if rank > 0 else ""
        raise ValueError(f"{name} is {endpoint!r}{offset}; ports go up to {_MAX_PORT}")
    return endpoint if rank == 0 else f"{host}:{int(port) + rank}"


def is_of_this_machine(endpoint: str) -> bool:
    """Whether no other machine reaches what is bound there."""
    return endpoint.startswith(("ipc://", "inproc://", "tcp://127.", "tcp://localhost:", "tcp://[::1]:"))


@final
class ConsumerKeys:
    """The publisher's secret CURVE key, and the public keys of the consumers that may connect."""

    __slots__ = ("_secret", "_allowed", "_socket", "_refused")

    def __init__(self, secret: str, consumers: list[str]) -> None:
        zmq = load_zmq()
        if not zmq.has("curve"):
            raise ValueError("curve is given, and this build of ZeroMQ has no CURVE: install a pyzmq that has libsodium")
        _to_key(secret, "curve", is_secret=True)
        self._secret: Final[bytes] = secret.encode()
        keys = [_to_key(key, f"curve_consumers[{index}]") for index, key in enumerate(consumers)]
        if len(keys) == 0:
            raise ValueError("curve_consumers is empty; it has the public keys of the consumers that may connect, one or more")
        self._allowed: Final[frozenset[bytes]] = frozenset(keys)
        """As ZeroMQ gives them: 32 bytes."""
        self._refused: Final[set[bytes]] = set()
        self._socket: Any = None

    def open(self, context: Any) -> None:
        zmq = load_zmq()
        self._socket = context.socket(zmq.REP)
        self._socket.bind(_ZAP)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)

    def protect(self, socket: Any) -> None:
        socket.curve_secretkey = self._secret
        socket.curve_server = True
        socket.zap_domain = b"kv-events"

    def answer(self) -> None:
        """Let in those that wait and have a key of the list."""
        while self._socket.poll(0) != 0:
            frames: list[bytes] = self._socket.recv_multipart()
            key = frames[6] if len(frames) == 7 and frames[5] == b"CURVE" else b""
            is_allowed = key in self._allowed
            if not is_allowed and key not in self._refused and len(self._refused) < _MAX_KEYS_LOGGED:
                self._refused.add(key)
                _logger.warning(
                    "a consumer of KV events at %s was refused: its key is not in curve_consumers", frames[3].decode(errors="replace")
                )
            self._socket.send_multipart((frames[0], frames[1], b"200" if is_allowed else b"400", b"", b"", b""))


def to_consumer_keys(curve: object, consumers: object) -> ConsumerKeys | None:
    secret = None if curve is None else to_text(curve, "curve")
    given = to_list(consumers, "curve_consumers")
    keys = [to_text(key, f"curve_consumers[{index}]") for index, key in enumerate(given)]
    if secret is not None:
        return ConsumerKeys(secret, keys)
    if len(keys) > 0:
        raise ValueError(f"curve is None and curve_consumers is {shown(consumers)}; give curve, the publisher's secret key")
    return None


def _to_key(text: str, name: str, is_secret: bool = False) -> bytes:
    """The 32 bytes of a key; a secret one is in no message."""
    try:
        key: bytes = load_zmq().utils.z85.decode(text.encode()) if len(text) == 40 else b""
    except Exception:
        key = b""
    if len(key) != 32:
        found = f"{len(text)} characters" if is_secret and len(text) > _MAX_SHOWN_OF_SECRET else shown(text)
        raise ValueError(f"{name} is {found}; it must be a key of 40 characters, as zmq.curve_keypair() makes them")
    return key


def open_socket(context: Any, kind: int, keys: ConsumerKeys | None) -> Any:
    """A socket that takes no frame beyond what consumers have to send."""
    zmq = load_zmq()
    socket = context.socket(kind)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)
    socket.rcvhwm = _MAX_REQUESTS_WAITING
    if keys is not None:
        keys.protect(socket)
    return socket


def bind_socket(socket: Any, endpoint: str, name: str) -> str:
    """Returns the actual address. `ValueError` for one that ZeroMQ cannot read, or that is not this machine's."""
    zmq = load_zmq()
    _attach(socket.bind, endpoint, name)
    last: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)
    return last.rstrip(b"\0").decode()


def connect_socket(socket: Any, endpoint: str, name: str) -> None:
    _attach(socket.connect, endpoint, name)


def _attach(attach: Any, endpoint: str, name: str) -> None:
    zmq = load_zmq()
    try:
        attach(endpoint)
    except zmq.ZMQError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
            raise ValueError(
                f"{name} is {endpoint!r}, which is no address of this machine ({error}); a subscriber that binds is named by connect"
            ) from error
        if error.errno in (errno.EINVAL, errno.EPROTONOSUPPORT, zmq.ENOCOMPATPROTO):
            raise ValueError(f"{name} is {endpoint!r}, which ZeroMQ refuses: {error}; it is an address such as {_EXAMPLE}") from error
        raise
