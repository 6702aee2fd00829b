"""A network in this process: copies move some bytes at a time, and each process can be frozen or killed at any moment.

Each byte that moves is checked: its place here, and there, must be leased at that moment in a manager that is not frozen or gone.
"""

import ctypes
from typing import Final

from kv_cache_manager_v2 import KVCacheManager
from kv_cache_manager_v2.integrations.page_offer import READ, Ranges
from kv_cache_manager_v2.integrations.transfer_engine import CopyState, PeerGone, TransferEngine

PIECE: Final = 64


class FakeCopy:
    def __init__(self, access: str, owner: "FakeEngine", peer: "FakeEngine", ours: Ranges, theirs: Ranges, message: bytes) -> None:
        self.access = access
        self.owner = owner
        self.peer = peer
        # Pieces, so that a copy can stop in the middle of a range.
        self.rows = [
            (int(mine[0]) + at, int(other[0]) + at, min(PIECE, int(mine[1]) - at))
            for mine, other in zip(ours, theirs)
            for at in range(0, int(mine[1]), PIECE)
        ]
        self.message = message
        self.next_row = 0
        self.state = CopyState.MOVING


class FakeNetwork:
    """All engines of a test."""

    def __init__(self) -> None:
        self.engines: Final[dict[str, FakeEngine]] = {}
        self.copies: Final[list[FakeCopy]] = []
        self.wrong_bytes: Final[list[str]] = []

    def move(self, num_rows: int = 1 << 30) -> None:
        """Up to that many pieces of each copy whose two ends run."""
        for copy in list(self.copies):
            if copy.state is not CopyState.MOVING or copy.owner.is_frozen or copy.peer.is_frozen:
                continue
            for mine, other, size in copy.rows[copy.next_row : copy.next_row + num_rows]:
                source, target, to = (other, mine, copy.owner) if copy.access == READ else (mine, other, copy.peer)
                if not to.has_leased(target, size):
                    self.wrong_bytes.append(f"{size} bytes arrived at {target} of {to.name}, which no lease has")
                ctypes.memmove(target, source, size)
                copy.next_row += 1
            if copy.next_row == len(copy.rows):
                copy.state = CopyState.ARRIVED
                if copy.message:
                    copy.peer.inbox.append((copy.owner.name, copy.message))

    def break_copies(self, first: "FakeEngine", second: "FakeEngine | None") -> None:
        for copy in self.copies:
            ends = {copy.owner.name, copy.peer.name}
            if copy.state is CopyState.MOVING and first.name in ends and (second is None or second.name in ends):
                copy.state = CopyState.FAILED


class FakeEngine(TransferEngine):
    def __init__(self, network: FakeNetwork, name: str) -> None:
        self.name = name
        self.network: Final = network
        self.inbox: Final[list[tuple[str, bytes]]] = []
        self.is_frozen = False
        self.is_dead = False
        self.manager: KVCacheManager | None = None
        self.removed: Final[set[str]] = set()
        self.num_sent = 0
        network.engines[name] = self

    def has_leased(self, address: int, size: int) -> bool:
        """Whether all these bytes, of one pool, are of slots that leases name."""
        if self.manager is None:
            return True
        for group in self.manager.pool_group_descs:
            leased = {
                slot
                for variant in group.slot_desc.variants
                for lease in self.manager.open_leases
                for slot in lease.get_page_indices(variant.layer_group_id)
            }
            for pool in group.pools:
                if pool.base_address <= address < pool.base_address + pool.slot_bytes * group.num_slots:
                    first = (address - pool.base_address) // pool.slot_bytes
                    last = (address + size - 1 - pool.base_address) // pool.slot_bytes
                    return all([slot in leased for slot in range(first, last + 1)])
        return False

    def kill(self) -> None:
        self.is_dead = True
        self.network.break_copies(self, None)

    def register(self, ranges: Ranges, device: int) -> None:
        assert device == -1 and len(ranges) > 0

    def metadata(self) -> bytes:
        return self.name.encode()

    def add_peer(self, metadata: bytes) -> str:
        name = metadata.decode()
        if name not in self.network.engines:
            raise ValueError(f"{metadata!r} is no engine of this network")
        self.removed.discard(name)
        return name

    def remove_peer(self, peer: str) -> None:
        if peer not in self.network.engines:
            return
        self.removed.add(peer)
        self.network.break_copies(self, self.network.engines[peer])

    def _reach(self, peer: str) -> "FakeEngine":
        other = self.network.engines.get(peer)
        if other is None or other.is_dead or peer in self.removed:
            raise PeerGone(f"peer {peer!r} cannot be reached")
        return other

    def start(self, access: str, peer: str, ours: Ranges, theirs: Ranges, their_device: int, message: bytes) -> object:
        copy = FakeCopy(access, self, self._reach(peer), ours, theirs, message)
        self.network.copies.append(copy)
        return copy

    def poll(self, handle: object) -> CopyState:
        assert isinstance(handle, FakeCopy)
        return handle.state

    def release(self, handle: object) -> None:
        assert isinstance(handle, FakeCopy) and handle.state is not CopyState.MOVING
        self.network.copies.remove(handle)

    def send(self, peer: str, message: bytes) -> None:
        self.num_sent += 1
        self._reach(peer).inbox.append((self.name, message))

    def receive(self) -> list[tuple[str, bytes]]:
        messages = self.inbox[:]
        self.inbox.clear()
        return messages

    def close(self) -> None:
        self.kill()
