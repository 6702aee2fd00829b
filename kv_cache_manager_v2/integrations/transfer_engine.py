"""`TransferEngine`: what a `TransferAgent` needs of a library that moves bytes between machines. The port; `nixl` has an implementation."""

import enum
from abc import ABCMeta, abstractmethod

from ..base.handle import Handle
from .page_offer import Ranges


class CopyState(enum.Enum):
    """Of one copy that was started: on its way, all bytes there, or ended by the engine, which touches no byte any more."""

    MOVING = "moving"
    ARRIVED = "arrived"
    FAILED = "failed"


class PeerGone(Exception):
    """The connection to a peer is broken: nothing that it began arrives any more."""


class TransferEngine(Handle, metaclass=ABCMeta):
    """Copies between registered memory here and at peers, and carries short messages. Calls never wait for a peer."""

    name: str

    @abstractmethod
    def register(self, ranges: Ranges, device: int) -> None:
        """Make this memory reachable for peers; ``device`` is the GPU's ordinal, or -1 for host memory."""

    @abstractmethod
    def metadata(self) -> bytes:
        """What a peer needs for `add_peer`, the registered memory included."""

    @abstractmethod
    def add_peer(self, metadata: bytes) -> str:
        """The peer's name. Twice is fine. `PeerGone` if it cannot be reached, or the bytes are not its metadata any more."""

    @abstractmethod
    def remove_peer(self, peer: str) -> None:
        """Close the connection: copies to and from it end, and touch no memory afterwards. Of no effect for an unknown peer."""

    @abstractmethod
    def start(self, access: str, peer: str, ours: Ranges, theirs: Ranges, their_device: int, message: bytes) -> object:
        """Begin to read ("read") their ranges into ours, or to write ours ("write"). A handle for `poll`.

        ``message`` reaches the peer once all bytes have, if it is not empty. `PeerGone`.
        """

    @abstractmethod
    def poll(self, handle: object) -> CopyState:
        """How far that copy is; raises nothing."""

    @abstractmethod
    def release(self, handle: object) -> None:
        """Forget a copy that is no longer moving."""

    @abstractmethod
    def send(self, peer: str, message: bytes) -> None:
        """A message without a copy. `PeerGone`."""

    @abstractmethod
    def receive(self) -> list[tuple[str, bytes]]:
        """(peer, message) of all messages since the last call, in each peer's order."""

    @abstractmethod
    def close(self) -> None:
        """Release the memory's registration and all connections."""
