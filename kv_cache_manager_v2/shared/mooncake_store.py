"""`MooncakeStore`: pooled memory of many nodes, over TCP or RDMA, through Mooncake Store (`mooncake-transfer-engine`, or its builds).

    MooncakeStore("master:50051", local_host="10.0.0.7", protocol="rdma", devices="mlx5_0")

Mooncake's calls wait for up to a minute for a node that hangs, and cannot be cut off. Here each connection has a thread and a registered
buffer of its own, and abandons both after 300 ms (`BoundedCalls`), so that nothing ever writes into memory of the level's late. A node
that dies has its keys missing until the master has noticed it (``client_ttl``, 10 s).

Mooncake needs libibverbs and libnl, for TCP too. Its ports have no passwords, and some listen on all interfaces: a network of the engines'
own only.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from ..base.checks import to_count, to_int_within, to_text
from ..base.missing_package import missing_package
from .bounded_calls import BoundedCalls, StuckCount
from .resp_connection import FORMAT, FORMAT_KEY
from .shared_store import (
    MISSING,
    PROGRESS_SECONDS,
    REFUSED,
    UNREACHABLE,
    WRONG_SIZE,
    SharedStore,
    StoreConnection,
    StoreError,
    StoreFullError,
    store_error,
)

HANDSHAKE: Final = "P2PHANDSHAKE"
_NOT_FOUND: Final = -704
_BUFFER_TOO_SMALL: Final = -600
_NO_ROOM: Final = -200
_RPC_FAILURES: Final = (-900, -901)
_MOST_KEYS: Final = 1024


class MooncakeStore(SharedStore):
    """``master``: "host:port". ``local_host``: this process' address for the other nodes. ``contribute_bytes``: of memory lent to the pool.
    ``metadata``: of Mooncake's, and its ``protocol`` and ``devices``. ``buffer_bytes``: registered by each connection, for one call; a
    value may not be larger. ``most_stuck``: threads in calls that do not return. ``client``: a `MooncakeDistributedStore` that is set up.

    `ImportError` without the package or its libraries; `StoreError` if the master does not answer.
    """

    def __init__(
        self,
        master: str,
        *,
        local_host: str = "127.0.0.1",
        metadata: str = HANDSHAKE,
        protocol: str = "tcp",
        devices: str = "",
        contribute_bytes: int = 0,
        buffer_bytes: int = 32 << 20,
        most_stuck: int = 8,
        client: Any = None,
    ) -> None:
        if not isinstance(master, str):
            raise TypeError(f"master must be a str, not {type(master).__name__}")
        host, _colon, port = master.rpartition(":")
        if host == "" or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"master is {master!r}; it must be 'host:port'")
        for name, text in (("local_host", local_host), ("metadata", metadata), ("protocol", protocol), ("devices", devices)):
            to_text(text, name)
        to_count(contribute_bytes, "contribute_bytes")
        to_int_within(buffer_bytes, "buffer_bytes", 4096, 1 << 40)
        to_int_within(most_stuck, "most_stuck", 1, 256)
        self._master: Final = master
        self._buffer_bytes: Final = buffer_bytes
        self._stuck: Final = StuckCount(most_stuck)
        if client is None:
            client = _make_client(master, local_host, metadata, protocol, devices, contribute_bytes, buffer_bytes)
        self._client: Final[Any] = client

    @property
    def endpoints(self) -> tuple[str, ...]:
        return (self._master,)

    @property
    def num_stuck(self) -> int:
        """Threads in calls of Mooncake's that were abandoned and have not returned."""
        return self._stuck.count

    def connect(self, endpoint: str) -> StoreConnection:
        return _MooncakeConnection(self._client, endpoint, self._buffer_bytes, self._stuck)

    def close(self) -> None:
        """Take this process out of the pool, when no level uses the store any more. Waits some seconds."""
        self._client.close()


def _make_client(
    master: str, local_host: str, metadata: str, protocol: str, devices: str, contribute_bytes: int, buffer_bytes: int
) -> Any:
    # Read by Mooncake when the client is made: without it a hanging master holds each call for 30 s.
    os.environ.setdefault("MC_RPC_TIMEOUT_MS", "500")
    try:
        from mooncake.store import MooncakeDistributedStore
    except ModuleNotFoundError as error:
        raise missing_package("MooncakeStore", "mooncake-transfer-engine-non-cuda", error) from error
    except ImportError as error:
        libraries = "libibverbs1 libnl-3-200 libnl-route-3-200 librdmacm1"
        raise ImportError(f"MooncakeStore needs system libraries, for TCP too: apt-get install {libraries} ({error})") from error
    client: Any = MooncakeDistributedStore()
    code = int(client.setup(local_host, metadata, contribute_bytes, max(16 << 20, buffer_bytes), protocol, devices, master))
    if code != 0:
        raise store_error(UNREACHABLE, f"the store {master} cannot be reached: Mooncake's setup says {code}")
    return client


class _MooncakeConnection(StoreConnection):
    """All connections are the one client of Mooncake; each has a thread and a buffer."""

    def __init__(self, client: Any, endpoint: str, buffer_bytes: int, stuck: StuckCount) -> None:
        import numpy

        self._client: Final = client
        self._endpoint: Final = endpoint
        array: Any = numpy.zeros(buffer_bytes, numpy.uint8)
        self._array: Final[Any] = array
        self._address: Final = int(array.ctypes.data)
        self._memory: Final = memoryview(array)
        self._is_registered = False
        self.last_progress = monotonic()
        self._calls: Final = BoundedCalls(endpoint, stuck, self._release)
        try:
            code = self._ask(partial(client.register_buffer, self._address, buffer_bytes))
            if code != 0:
                raise store_error(REFUSED, f"the store {endpoint} cannot use a buffer of {buffer_bytes} bytes: Mooncake says {code}")
            self._is_registered = True
        except BaseException:
            self._calls.close()
            raise

    def _release(self) -> None:
        if self._is_registered:
            self._client.unregister_buffer(self._address)

    def _ask(self, function: Callable[[], Any]) -> Any:
        result = self._calls.call(function, PROGRESS_SECONDS)
        self.last_progress = monotonic()
        return result

    # -- the port -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        target = bytearray(len(FORMAT))
        (size,) = self.load([FORMAT_KEY], [memoryview(target)])
        if size == MISSING:
            self.store([FORMAT_KEY], [[memoryview(FORMAT)]])
        elif size == WRONG_SIZE or bytes(target) != FORMAT:
            found = "another size" if size == WRONG_SIZE else repr(bytes(target))
            raise ValueError(
                f"the store {self._endpoint} has keys of another format ({found}), and this release has {FORMAT!r}: give another pool, or "
                f"remove what is there"
            )

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        present: list[bool] = []
        for begin in range(0, len(keys), _MOST_KEYS):
            names = [key.decode() for key in keys[begin : begin + _MOST_KEYS]]
            codes = self._ask(partial(self._client.batch_is_exist, names))
            self._require_answers(codes, len(names), "batch_is_exist")
            present.extend([code == 1 for code in codes])
        return present

    def load(self, keys: Sequence[bytes], targets: Sequence[memoryview]) -> list[int]:
        sizes: list[int] = []
        for begin, end, offsets in self._cut([len(target) for target in targets]):
            names = [key.decode() for key in keys[begin:end]]
            wanted = [len(target) for target in targets[begin:end]]
            addresses = [self._address + offset for offset in offsets]
            codes = self._ask(partial(self._client.batch_get_into, names, addresses, wanted))
            self._require_answers(codes, len(names), "batch_get_into")
            for position, code in enumerate(codes):
                if code == wanted[position]:
                    targets[begin + position][:] = self._memory[offsets[position] : offsets[position] + code]
                    sizes.append(code)
                else:
                    sizes.append(WRONG_SIZE if code >= 0 or code == _BUFFER_TOO_SMALL else MISSING)
        return sizes

    def store(self, keys: Sequence[bytes], sources: Sequence[Sequence[memoryview]]) -> None:
        is_full = False
        wanted = [sum([len(piece) for piece in pieces]) for pieces in sources]
        for begin, end, offsets in self._cut(wanted):
            for offset, pieces in zip(offsets, sources[begin:end], strict=True):
                for piece in pieces:
                    self._memory[offset : offset + len(piece)] = piece
                    offset += len(piece)
            names = [key.decode() for key in keys[begin:end]]
            addresses = [self._address + offset for offset in offsets]
            codes = self._ask(partial(self._client.batch_upsert_from, names, addresses, wanted[begin:end]))
            self._require_answers(codes, len(names), "batch_upsert_from")
            refused = [code for code in codes if code not in (0, _NO_ROOM)]
            if len(refused) > 0:
                raise store_error(REFUSED, f"the store {self._endpoint} takes {len(refused)} of {len(names)} values not: {refused[0]}")
            is_full = is_full or _NO_ROOM in codes
        if is_full:
            raise StoreFullError(f"the store {self._endpoint} is full: all that it has is leased or pinned")

    def remove(self, keys: Sequence[bytes]) -> None:
        for begin in range(0, len(keys), _MOST_KEYS):
            names = [key.decode() for key in keys[begin : begin + _MOST_KEYS]]
            codes = self._ask(partial(self._client.batch_remove, names, True))
            self._require_answers(codes, len(names), "batch_remove")

    def abort(self) -> None:
        self._calls.abort()

    def close(self) -> None:
        self._calls.close()

    def _cut(self, sizes: list[int]) -> list[tuple[int, int, list[int]]]:
        """Runs of values that fit into the buffer together: begin, end, and where each lies."""
        runs: list[tuple[int, int, list[int]]] = []
        begin = 0
        used = 0
        offsets: list[int] = []
        for position, size in enumerate(sizes):
            if size > len(self._memory):
                raise StoreError(f"a value for the store {self._endpoint} has {size} bytes; give it a buffer_bytes of at least that")
            if used + size > len(self._memory) or len(offsets) == _MOST_KEYS:
                runs.append((begin, position, offsets))
                begin, used, offsets = position, 0, []
            offsets.append(used)
            used += (size + 63) // 64 * 64
        if len(offsets) > 0:
            runs.append((begin, len(sizes), offsets))
        return runs

    def _require_answers(self, codes: Sequence[int], count: int, call: str) -> None:
        """`StoreError` if it is the store that fails, and not single keys."""
        if len(codes) != count:
            raise StoreError(f"the store {self._endpoint} answers {call} for {count} keys with {len(codes)} codes")
        failed = [code for code in codes if code < 0 and code not in (_NOT_FOUND, _BUFFER_TOO_SMALL, _NO_ROOM)]
        if len(failed) == count or any([code in _RPC_FAILURES for code in failed]):
            if count > 0:
                raise store_error(UNREACHABLE, f"the store {self._endpoint} fails: {call} says {failed[0]}")
