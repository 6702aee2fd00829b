"""`NixlEngine`: transfers between processes and machines over NIXL (RDMA, NVLink, shared memory or TCP, as UCX finds them).

NIXL's wheel asks for torch and CUDA, which a host without a GPU does not need: ``pip install --no-deps nixl-cu12 nixl numpy``.
Importing this module before NIXL sets ``UCX_MODULES``, unless it is set: see `_leave_efa_out`.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..base.missing_package import missing_package
from .page_offer import READ, Ranges
from .transfer_engine import CopyState, PeerGone, TransferEngine


def _leave_efa_out() -> None:
    """Keep UCX's EFA module out of a process that has NIXL from a wheel, unless the user has set ``UCX_MODULES``.

    The wheel has a libibverbs of its own and no libefa: its EFA module loads the system's, and with that the system's libibverbs. Two of
    them in one process crash it at exit. A NIXL that was built on this machine has one libibverbs, and keeps EFA. UCX reads the variable
    when it is loaded, so this has no effect after NIXL was imported.
    """
    for name in ("nixl_cu13", "nixl_cu12"):
        found = find_spec(name)
        if found is not None and found.origin is not None:
            libraries = Path(found.origin).parents[1] / f"{name}.libs"
            if next(libraries.glob("libibverbs-*"), None) is not None:
                os.environ.setdefault("UCX_MODULES", "^efa")


_leave_efa_out()
try:
    from nixl._api import nixl_agent, nixl_agent_config
except ImportError as error:
    raise missing_package("kv_cache_manager_v2.integrations.nixl", "nixl", error, "--no-deps nixl-cu12 nixl numpy") from error

_STATES: Final = {"DONE": CopyState.ARRIVED, "PROC": CopyState.MOVING}


class NixlEngine(TransferEngine):
    """A NIXL agent. ``name`` is for logs; a random part makes it unique, so that a process which starts again is another peer.

    ``backend``: a plug-in of NIXL, with ``options`` of its own. `ValueError` for one that this NIXL does not have.
    """

    __slots__ = ("name", "_agent", "_registered", "_segment", "_peers")

    def __init__(self, name: str, backend: str = "UCX", options: Mapping[str, str] | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"name is {name!r}; a transfer engine needs one")
        name = f"{name}-{uuid.uuid4().hex[:12]}"
        # Its messages arrive while this process computes: NIXL's own thread makes them move.
        agent: Any = nixl_agent(name, nixl_agent_config(backends=[]))
        if backend not in agent.get_plugin_list():
            raise ValueError(f"backend is {backend!r}; this NIXL has {', '.join(agent.get_plugin_list())}")
        agent.create_backend(backend, dict(options or {}))
        self.name = name
        self._agent: Final[Any] = agent
        self._registered: Any = None
        self._segment = "DRAM"
        self._peers: Final[dict[bytes, str]] = {}

    def register(self, ranges: Ranges, device: int) -> None:
        self._segment = "DRAM" if device < 0 else "VRAM"
        rows = [(int(address), int(size), max(device, 0), "") for address, size, _device in ranges]
        self._registered = self._agent.register_memory(rows, self._segment)

    def metadata(self) -> bytes:
        return bytes(self._agent.get_agent_metadata())

    def add_peer(self, metadata: bytes) -> str:
        known = self._peers.get(metadata)
        if known is not None:
            return known
        try:
            found = self._agent.add_remote_agent(metadata)
        except Exception as error:
            # So it is with bytes that are none, and with those of a peer that has died since.
            raise PeerGone(f"{len(metadata)} bytes of a peer's metadata, which NIXL does not take: {error}") from error
        peer = found.decode() if isinstance(found, bytes) else str(found)
        for other, name in list(self._peers.items()):
            if name == peer:
                del self._peers[other]
        self._peers[metadata] = peer
        return peer

    def remove_peer(self, peer: str) -> None:
        for metadata, name in list(self._peers.items()):
            if name == peer:
                del self._peers[metadata]
                self._reach(peer, lambda: self._agent.remove_remote_agent(peer), forgives=True)

    def start(self, access: str, peer: str, ours: Ranges, theirs: Ranges, their_device: int, message: bytes) -> object:
        segment = "DRAM" if their_device < 0 else "VRAM"

        def begin() -> object:
            local = self._agent.get_xfer_descs(np.ascontiguousarray(ours), self._segment)
            remote = self._agent.get_xfer_descs(np.ascontiguousarray(theirs), segment)
            handle = self._agent.initialize_xfer("READ" if access == READ else "WRITE", local, remote, peer, message)
            if self._agent.transfer(handle) == "ERR":
                raise RuntimeError("the transfer was refused")
            return handle

        return self._reach(peer, begin)

    def poll(self, handle: object) -> CopyState:
        try:
            return _STATES.get(self._agent.check_xfer_state(handle), CopyState.FAILED)
        except Exception:  # NIXL's own errors have no common base
            return CopyState.FAILED

    def release(self, handle: object) -> None:
        try:
            self._agent.release_xfer_handle(handle)
        except Exception:  # it ends with the agent then
            return

    def send(self, peer: str, message: bytes) -> None:
        self._reach(peer, lambda: self._agent.send_notif(peer, message))

    def receive(self) -> list[tuple[str, bytes]]:
        return [(peer, message) for peer, messages in self._agent.get_new_notifs().items() for message in messages]

    def close(self) -> None:
        for peer in list(self._peers.values()):
            self.remove_peer(peer)
        if self._registered is not None:
            self._agent.deregister_memory(self._registered)
            self._registered = None

    @staticmethod
    def _reach(peer: str, call: Callable[[], Any], forgives: bool = False) -> Any:
        try:
            return call()
        except Exception as error:  # NIXL's own errors have no common base
            if forgives:
                return None
            raise PeerGone(f"peer {peer!r} cannot be reached: {error}") from error
