"""`Transfer`: pages on their way, as the engine sees it; and what a `TransferAgent` keeps of each peer that has a part in it."""

import enum
from typing import Final

from ..base.handle import Handle
from ..base.ids import LayerId
from ..manager.transfer_lease import TransferLease
from .page_offer import PageOffer, RangePlan
from .transfer_engine import CopyState
from .transfer_messages import MAX_SHOWN

_TRUSTED_SHARE: Final = 0.9
"""Of a lease: the rest is for clocks that do not run alike."""


class TransferState(enum.Enum):
    """Of a transfer: under way, all bytes there, or not to be relied on."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class Link:
    """One peer's part in a transfer that this side carries out."""

    __slots__ = ("offer", "plan", "peer", "handle", "copy", "trusted_from", "next_beat", "answered")

    def __init__(self, offer: PageOffer, plan: RangePlan, peer: str, now: float) -> None:
        self.offer: Final = offer
        self.plan: Final = plan
        self.peer: Final = peer
        self.handle: object = None
        self.copy = CopyState.MOVING
        self.trusted_from = now
        """When the last heart-beat was sent that was answered; before the first answer, when the transfer began."""
        self.next_beat = now
        self.answered = False

    def is_trusted(self, now: float) -> bool:
        return now - self.trusted_from < _TRUSTED_SHARE * self.offer.lease_seconds


class Transfer(Handle):
    """Pages on their way: `state`, and for a failed one `reason`. Made by `TransferAgent`."""

    __slots__ = (
        "offer", "state", "reason", "_lease", "_links", "_event", "_last_heard", "_failed_at", "_next_word", "_peers", "_heard", "_arrived",
        "_begun", "_num_peers",
    )  # fmt: skip

    _NAMES = "leased pages of this process"

    def __init__(self, offer: PageOffer, lease: TransferLease, now: float, num_peers: int = 1) -> None:
        """Not for users."""
        self.offer: Final = offer
        """Of the pages here: what `offer` and `invite` give to the peer."""
        self.state = TransferState.PENDING
        self.reason = ""
        self._lease: Final = lease
        self._links: Final[list[Link]] = []
        self._event: int | None = None
        self._begun: Final = now
        self._num_peers: Final = num_peers
        self._last_heard = now
        self._failed_at = 0.0
        self._next_word = now
        self._peers: Final[dict[str, float]] = {}
        """Of lent pages: who may be reading or writing them, and when each was last heard."""
        self._heard: Final[set[str]] = set()
        """Of lent pages: the peers that have them, by their first heart-beats; what others say of them is not believed."""
        self._arrived: Final[dict[tuple[int, str], list[tuple[int, int]]]] = {}

    def __repr__(self) -> str:
        quarantined = ", quarantined" if self.is_quarantined else ""
        return f"Transfer({self.offer.number}, {self.state.value}{quarantined}{', ' + self.reason if self.reason else ''})"

    @property
    def is_quarantined(self) -> bool:
        """Whether it has ended and its pages' slots wait for a peer that may still read or write them."""
        return self.state is not TransferState.PENDING and self._lease.is_open

    def has_layer(self, layer_id: LayerId) -> bool:
        """Of an invitation: whether all bytes of that layer have arrived. `ValueError` for a layer that it does not have."""
        keys = [(place.layer_id, place.role) for place in self.offer.buffers if place.layer_id == layer_id]
        if not keys:
            raise ValueError(f"layer_id is {layer_id}; the invitation has no such layer")
        first, end = (0, 1) if self.offer.heads is None else self.offer.heads
        return all([covers(self._arrived.get(key, []), first, end) for key in keys])

    def _note_arrived(self, spans: list[tuple[int, str, int, int]], now: float) -> None:
        if self.state is not TransferState.PENDING:
            return
        known = {(place.layer_id, place.role) for place in self.offer.buffers}
        unknown = [(layer, role[:MAX_SHOWN]) for layer, role, _first, _end in spans if (layer, role) not in known]
        if unknown:
            raise ValueError(f"it says that {unknown[0]} has arrived, which was not asked for")
        for layer, role, first, end in spans:
            arrived = self._arrived.setdefault((layer, role), [])
            if (first, end) not in arrived:
                arrived.append((first, end))
        self._last_heard = now
        if all([self.has_layer(LayerId(place.layer_id)) for place in self.offer.buffers]):
            self.state = TransferState.DONE


def covers(spans: list[tuple[int, int]], first: int, end: int) -> bool:
    at = first
    for begin, stop in sorted(spans):
        if begin <= at:
            at = max(at, stop)
    return at >= end
