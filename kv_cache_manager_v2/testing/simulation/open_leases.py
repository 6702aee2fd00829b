"""Lease actions: pages lent to another machine for a while, which stay in their slots and cannot be evicted."""

from collections.abc import Sequence
from random import Random
from typing import Final, final


from ...manager.kv_cache_manager import KVCacheManager
from ...manager.transfer_lease import TransferLease
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement
from .simulated_sequence import SimulatedSequence

_MAX_LEASES: Final = 4


@final
class OpenLeases:
    __slots__ = ("_manager", "_model", "_streams", "_leases")

    def __init__(self, manager: KVCacheManager, model: ReferenceModel, streams: Sequence[int]) -> None:
        self._manager: Final = manager
        self._model: Final = model
        self._streams: Final = streams
        self._leases: Final[list[TransferLease]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def lend(self, sequence: SimulatedSequence, random: Random) -> None:
        """Lease some blocks of an active sequence, or all of them, or none."""
        num_blocks = self._model.num_blocks(sequence.model)
        begin = int(random.random() ** 2 * (num_blocks + 1))
        end = num_blocks if random.random() < 0.6 else begin + int(random.random() * (num_blocks - begin + 1))
        lease = sequence.handle.reserve_transfer(begin, end)
        self._leases.append(lease)
        self._model.reserve(sequence.model, lease.number, begin, end, self._manager.describe())
        self._check(lease)
        if len(self._leases) > _MAX_LEASES:
            self.settle_one(random)

    def settle_one(self, random: Random) -> None:
        """Settle a lease at once, or after the work enqueued on some stream."""
        if len(self._leases) == 0:
            return
        index = int(random.random() * len(self._leases))
        lease = self._leases[index]
        self._check(lease)
        # If the device refuses the stream, the lease stays open.
        lease.settle(None if random.random() < 0.4 else random.choice(self._streams))
        self._model.settle(lease.number)
        del self._leases[index]

    def settle_all(self) -> None:
        while len(self._leases) > 0:
            lease = self._leases.pop()
            lease.settle()
            self._model.settle(lease.number)

    def _check(self, lease: TransferLease) -> None:
        for group in range(len(self._model.rules)):
            slots, expected = lease.get_page_indices(group), self._model.leases[lease.number].lent_slots(group)
            if slots != expected:
                raise ModelDisagreement(f"lease {lease.number} lends slots {slots} of group {group}, must lend {expected}")
