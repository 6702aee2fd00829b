"""`ValkeyStore`: one or several Valkey or Redis servers, which know nothing of each other; the level shares the keys out.

Start each with an eviction policy, e.g. ``valkey-server --maxmemory 64gb --maxmemory-policy allkeys-lru --save ""``: one that is full and
evicts nothing refuses stores, and that is only counted.
"""

import ssl
from collections.abc import Sequence
from typing import Final

from ..base.checks import to_count
from .resp_connection import RespConnection
from .shared_store import SharedStore, StoreConnection

DEFAULT_PORT: Final = 6379


class ValkeyStore(SharedStore):
    """``addresses``: "host:port", "host", or the path of a Unix socket, beginning with "/". All processes list them alike, in any order.

    ``tls``: a context of the module `ssl`, for servers that want TLS. Only the model's engines should reach the servers.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        username: str | None = None,
        password: str | None = None,
        database: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not isinstance(addresses, (str, list, tuple)):
            raise TypeError(f"addresses must be a list of str, not {type(addresses).__name__}")
        if isinstance(addresses, str) or len(addresses) == 0:
            raise ValueError(f"addresses is {addresses!r}; give a list of at least one server, as in ['127.0.0.1:6379']")
        for address in addresses:
            _split(address)
        if len(set(addresses)) != len(addresses):
            raise ValueError(f"addresses lists a server twice: {sorted(addresses)}")
        for name, text in (("username", username), ("password", password)):
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name} must be a str or None, not {type(text).__name__}")
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise TypeError(f"tls must be an ssl.SSLContext or None, not {type(tls).__name__}")
        if username is not None and password is None:
            raise ValueError("username is given and password is None; give both, or the password alone")
        number = int(to_count(database, "database"))
        self._addresses: Final = tuple(sorted(addresses))
        self._username: Final = username
        self._password: Final = password
        self._database: Final = number
        self._tls: Final = tls

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self._addresses

    def connect(self, endpoint: str) -> StoreConnection:
        host, port = _split(endpoint)
        return RespConnection(endpoint, host, port, self._username, self._password, self._database, self._tls)


def _split(address: str) -> tuple[str, int]:
    """Host and port; a path and -1 for a Unix socket."""
    if not isinstance(address, str):
        raise TypeError(f"an address must be a str, not {type(address).__name__}")
    if address.startswith("/"):
        return address, -1
    host, colon, port = address.rpartition(":")
    if colon == "":
        return address, DEFAULT_PORT
    if host == "" or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"the address {address!r} is no 'host:port' and no path of a Unix socket")
    return host.strip("[]"), int(port)
