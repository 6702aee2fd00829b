"""`TransferAgent`: prefill in one process, decode in another; pages go from one manager's pools to the other's.

The decode side reads the pages (`offer` there, `read` here), or the prefill side writes them, layer by layer if it likes (`invite` here,
`write` there). The engine calls `progress` in its loop; no call waits for a peer.

    event                                     the lent pages                           the transfer at the other side
    offer, invite                             leased: their slots stay                 -
    read, write                               -                                        PENDING, its own pages leased
    each sixth of a lease: a heart-beat,      leased for that peer too                 trusts the lease from when it sent that
    answered                                                                           a copy into lent pages begins now
    all bytes read in trusted time            released once each reader has ended      DONE
    messages cover all bytes written          DONE; released once each writer ended    DONE
    a lease goes by without heart-beat        FAILED. Read: released, no reader        FAILED; its own pages stay leased while the copy
                                              trusts them any more. Written:           may move bytes: quarantined for one more lease at
                                              quarantined                              most, then the connection is closed
    withdraw, on either side                  FAILED; released once each peer ended    FAILED, and says when its copies have ended

A quarantined page's slot is not used again: a peer that was frozen may still write there. What ends that is the peer's own message, a
broken connection, or `forget_peer`. No transfer is pending for longer than ``max_seconds``, whatever the peer says. A step of a sequence
that writes into a block which is still lent gets a copy of it first.

Each message has the secret of the offer that it is about. One without it, or of another peer than those that have the offer, changes
nothing: it is counted, and logged once a peer.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, SupportsIndex

import numpy as np

from ..base.checks import to_instance, to_instance_or_none, to_int, to_int_within, to_list, to_text
from ..base.errors import LogicError
from ..base.handle import Handle
from ..base.ids import LayerId
from ..base.package_log import PackageLog
from ..config.model_id import ModelId
from ..device.monotonic_clock import MonotonicClock
from ..manager.kv_cache import KVCache, SequenceStatus
from ..manager.kv_cache_manager import KVCacheManager
from ..reuse.token_forms import Tokens
from ..stats.statistics_clock import StatisticsClock
from . import page_offer
from .page_checksums import find_wrong_buffer, find_wrong_page, sum_offered, sum_written
from .page_offer import HEAD_LAYOUTS, READ, WRITE, PageOffer, RangePlan
from .transfer import Link, Transfer, TransferState
from .transfer_engine import CopyState, PeerGone, TransferEngine
from .transfer_messages import MAX_SHOWN, encode_message, require_secret, to_reason, to_span

_logger: Final = PackageLog("kv_cache_manager_v2")

_HEART_BEATS_PER_LEASE: Final = 6
_ALL_THERE: Final = "all bytes are there"
_MAX_PEERS: Final = 1 << 16
_MAX_PEERS_LOGGED: Final = 64


class TransferAgent(Handle):
    """Moves pages between this manager and those of other processes. For the engine's thread.

    ``engine`` is owned from now on. ``model_id``: equal on all sides but for its heads; ``head_layout`` says where heads lie in a page:
    "NHD" (token by token) or "HND" (head by head), which matters where the sides have different heads. ``lease_seconds``: how long lent
    pages are kept without word of the peer; ``max_seconds``: the longest time of a transfer. ``clock``: of both; None is the process's own.
    ``checksums``: of pages in host memory, made by the side that has computed them and compared by the other one; a millisecond a MiB, on
    each. Pages in GPU memory have none.
    """

    __slots__ = (
        "_manager", "_engine", "_model", "_heads", "_head_layout", "_lease_seconds", "_seconds", "_buffers", "_metadata",
        "_registered", "_lent", "_running", "_written", "_num_made", "_is_closed",
        "_max_seconds", "_makes_checksums", "_over", "_num_refused", "_refused_peers",
    )

    def __init__(
        self,
        manager: KVCacheManager,
        engine: TransferEngine,
        *,
        model_id: ModelId | None = None,
        head_layout: str = "NHD",
        lease_seconds: float = 30.0,
        max_seconds: float = 600.0,
        checksums: bool = True,
        clock: StatisticsClock | None = None,
    ) -> None:
        manager = to_instance(manager, KVCacheManager, "manager")
        if not isinstance(engine, TransferEngine):
            raise TypeError(f"engine must be a TransferEngine, e.g. NixlEngine('prefill'), not {type(engine).__name__}")
        model_id = to_instance_or_none(model_id, ModelId, "model_id")
        if head_layout not in HEAD_LAYOUTS:
            raise ValueError(f"head_layout is {head_layout!r}; it must be one of {HEAD_LAYOUTS}")
        for name, value in (("lease_seconds", lease_seconds), ("max_seconds", max_seconds)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value!r}; it must be a positive number of seconds")
        if max_seconds < lease_seconds:
            raise ValueError(f"max_seconds is {max_seconds}; it must be at least lease_seconds, {lease_seconds}")
        if not isinstance(checksums, bool):
            raise TypeError(f"checksums must be True or False, not {type(checksums).__name__}")
        if clock is not None and not isinstance(clock, StatisticsClock):
            raise TypeError(f"clock must be a StatisticsClock or None, not {type(clock).__name__}")
        self._buffers: Final = page_offer.list_buffers(manager)
        self._manager: Final = manager
        self._engine: Final = engine
        self._model: Final = page_offer.describe_model(model_id)
        self._heads: Final = None if model_id is None else model_id.heads
        self._head_layout: Final = head_layout
        self._lease_seconds: Final = float(lease_seconds)
        self._max_seconds: Final = float(max_seconds)
        self._makes_checksums: Final = checksums and page_offer.device_ordinal(manager) < 0
        self._seconds: Final = (MonotonicClock() if clock is None else clock).seconds
        self._registered: Final = page_offer.list_pool_ranges(manager)
        engine.register(self._registered, page_offer.device_ordinal(manager))
        self._metadata: Final = engine.metadata()
        self._lent: Final[dict[str, Transfer]] = {}
        self._running: Final[list[Transfer]] = []
        self._written: Final[dict[str, tuple[float, set[int]]]] = {}
        """By invitation: when a layer was last written to it, and which were. A second copy could come after its pages were released."""
        self._over: Final[dict[str, tuple[float, str]]] = {}
        """Of loans that are over: when they ended, and their secret, so that a peer that asks late is answered."""
        self._num_refused = 0
        self._refused_peers: Final[set[str]] = set()
        self._num_made = 0
        self._is_closed = False

    def __enter__(self) -> "TransferAgent":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- pages of this side, for a peer ----------------------------------------------------------------------------------

    def offer(self, kv_cache: KVCache, tokens: Tokens, num_peers: SupportsIndex = 1) -> Transfer:
        """Lend the pages of ``tokens``, the sequence's first ones, all computed, to a peer that will `read` them.

        Waits for the sequence's stream. ``num_peers``: how many may have it, as several ranks do; these are the first that say its secret,
        and no other is heard afterwards. `Transfer.offer` goes to the peer; DONE once the peer has everything. `LogicError` unless ACTIVE,
        `ValueError` for more tokens than are computed.
        """
        return self._lend(READ, kv_cache, tokens, 0, num_peers)

    def invite(self, kv_cache: KVCache, tokens: Tokens, num_peers: SupportsIndex = 1) -> Transfer:
        """Lend the pages of ``tokens`` to a peer that will `write` them: those behind the ones that were found by reuse. ``num_peers``: as
        for `offer`.

        Call ``resize(len(tokens), len(tokens))`` first, and `KVCache.commit` once the transfer is DONE. Waits for the sequence's stream.
        """
        return self._lend(WRITE, kv_cache, tokens, self._count_present(kv_cache, tokens), num_peers)

    def _lend(self, access: str, kv_cache: KVCache, tokens: Tokens, num_present: int, num_peers: SupportsIndex) -> Transfer:
        most = int(to_int_within(num_peers, "num_peers", 1, _MAX_PEERS))
        ours = self._describe(access, kv_cache, tokens, num_present)
        self._manager.device.synchronize_stream(kv_cache.cuda_stream)
        if access == READ and self._makes_checksums:
            ours = replace(ours, checksums=sum_offered(self._manager, ours))
        transfer = self._reserve(ours, kv_cache, num_present, most)
        self._lent[ours.number] = transfer
        return transfer

    # -- a peer's pages --------------------------------------------------------------------------------------------------

    def read(self, offers: Sequence[PageOffer | bytes], kv_cache: KVCache, tokens: Tokens) -> Transfer:
        """Read the pages of ``tokens`` that these offers have, together all of this side's layers and heads.

        Call ``resize(len(tokens), len(tokens))`` first, and `KVCache.commit` once the transfer is DONE; blocks that reuse found are not
        read. `ValueError` if the offers do not fit (another model, prompt, layout, missing layers), `PeerGone` if a peer cannot be
        reached; nothing has begun then.
        """
        num_present = self._count_present(kv_cache, tokens)
        ours = self._describe(READ, kv_cache, tokens, num_present)
        theirs = self._read_offers(offers, READ)
        plans = [page_offer.plan_ranges(ours, offer) for offer in theirs]
        page_offer.require_all_heads(ours, plans)
        return self._carry_out(ours, theirs, plans, kv_cache, num_present)

    def write(
        self, invitations: Sequence[PageOffer | bytes], kv_cache: KVCache, tokens: Tokens, layer_ids: Sequence[LayerId] | None = None
    ) -> Transfer:
        """Write the pages of ``tokens`` that these invitations ask for; ``layer_ids``: only of these layers, whose keys and values are
        computed, so that the others follow while the model still runs.

        The copy begins after what is on the sequence's stream. The peer has a layer once all its bytes have arrived. `ValueError` for a
        layer that was written before.
        """
        ours = self._describe(WRITE, kv_cache, tokens, 0)
        theirs = self._read_offers(invitations, WRITE)
        wanted = None if layer_ids is None else [LayerId(to_int(layer, "one of layer_ids")) for layer in to_list(layer_ids, "layer_ids")]
        plans = [page_offer.plan_ranges(page_offer.only_their_blocks(ours, offer), offer, wanted) for offer in theirs]
        for offer, plan in zip(theirs, plans):
            if len(plan.ours) == 0:
                raise ValueError(f"agent {offer.agent!r} and this one have none of the layers {layer_ids} in common")
            again = self._written.get(offer.number, (0.0, set()))[1] & {layer for layer, _role in plan.heads}
            if again:
                raise ValueError(f"layer {min(again)} was written to {offer.number} before; each layer is written once")
        transfer = self._carry_out(ours, theirs, plans, kv_cache, 0)
        for offer, plan in zip(theirs, plans):
            layers = self._written.get(offer.number, (0.0, set()))[1]
            self._written[offer.number] = self._seconds(), layers | {layer for layer, _role in plan.heads}
        return transfer

    def _carry_out(
        self, ours: PageOffer, theirs: list[PageOffer], plans: list[RangePlan], kv_cache: KVCache, num_present: int
    ) -> Transfer:
        now = self._seconds()
        links = [Link(offer, plan, self._engine.add_peer(offer.metadata), now) for offer, plan in zip(theirs, plans)]
        device = self._manager.device
        transfer = self._reserve(ours, kv_cache, num_present)
        transfer._links.extend(links)
        try:
            transfer._event = device.record_event(kv_cache.cuda_stream)
        except BaseException:
            self._settle(transfer)
            raise
        self._running.append(transfer)
        self._advance(transfer)
        return transfer

    def withdraw(self, transfer: Transfer, reason: str = "withdrawn") -> None:
        """End a transfer that is pending: the other side fails at once with that reason. Of no effect on one that has ended.

        Pages that a peer may still read or write stay leased until it says that it has ended.
        """
        transfer = to_instance(transfer, Transfer, "transfer")
        why = to_text(reason, "reason")
        if transfer.state is not TransferState.PENDING:
            return
        self._require_open()
        if transfer not in self.transfers:
            raise ValueError(f"transfer {transfer.offer.number} is another agent's")
        self._fail(transfer, why)
        self.progress()

    # -- once in a while -------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Take what has come, start what may start, send heart-beats. Call it in the engine's loop, several times a lease.

        Never waits for a peer; raises nothing because of one.
        """
        self._require_open()
        for peer, data in self._engine.receive():
            self._take(peer, data)
        for transfer in list(self._running):
            self._advance(transfer)
        now = self._seconds()
        for transfer in list(self._lent.values()):
            self._watch(transfer, now)
        for number, (written, _layers) in list(self._written.items()):
            # Its lease is long over, so the peer refuses the heart-beat before another copy begins.
            if now - written > 4 * self._lease_seconds:
                del self._written[number]
        for number, (ended, _secret) in list(self._over.items()):
            if now - ended > 4 * self._lease_seconds:
                del self._over[number]

    @property
    def transfers(self) -> list[Transfer]:
        """Those that are pending or quarantined."""
        return [*self._lent.values(), *self._running]

    @property
    def num_refused_messages(self) -> int:
        """Messages that were not believed: without the secret of what they are about, of a peer that has no part in it, or no messages."""
        return self._num_refused

    def forget_peer(self, peer: str) -> None:
        """The operator knows that this peer (`PageOffer.agent`) has ended: free what waits for it. Of no effect for an unknown one."""
        self._require_open()
        to_text(peer, "peer")
        self._engine.remove_peer(peer)
        self._lose(peer, f"peer {peer!r} was forgotten")
        for transfer in list(self._running):
            for link in transfer._links:
                if link.peer == peer and link.copy is CopyState.MOVING:
                    link.copy, link.handle = CopyState.FAILED, None
            self._advance(transfer)

    def close(self) -> None:
        """Close the connections, fail what is pending, and settle all leases. Twice is fine."""
        if self._is_closed:
            return
        for transfer in [*self._running, *self._lent.values()]:
            if transfer.state is TransferState.PENDING:
                self.withdraw(transfer, "the agent was closed")
        self._engine.close()
        self._is_closed = True
        for transfer in [*self._running, *self._lent.values()]:
            self._settle(transfer)
        self._running.clear()
        self._lent.clear()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _count_tokens(self, kv_cache: KVCache, tokens: Tokens) -> int:
        """Of a sequence that a transfer may be of."""
        self._require_open()
        kv_cache = to_instance(kv_cache, KVCache, "kv_cache")
        if kv_cache.manager is not self._manager:
            raise ValueError(f"kv_cache must be a sequence of this agent's manager, not {kv_cache!r}")
        if kv_cache.status is SequenceStatus.CLOSED:
            raise LogicError(f"sequence {kv_cache.id} is closed and has no pages; make a new one with create_kv_cache()")
        if not kv_cache.is_active:
            raise LogicError(f"sequence {kv_cache.id} is {kv_cache.status.name}; a transfer needs it ACTIVE: resume() it first")
        listed: Any = tokens
        try:
            return len(listed)
        except TypeError:
            raise TypeError(f"tokens must be a sequence of ids, not {type(listed).__name__}") from None

    def _count_present(self, kv_cache: KVCache, tokens: Tokens) -> int:
        """How many of the tokens reuse has found, so that no peer need bring them."""
        num_tokens = self._count_tokens(kv_cache, tokens)
        num_present = kv_cache.num_committed_tokens
        if num_present >= num_tokens:
            raise ValueError(f"sequence {kv_cache.id} has {num_present} committed tokens: of {num_tokens} tokens none is left to transfer")
        return num_present

    def _describe(self, access: str, kv_cache: KVCache, tokens: Tokens, num_present: int) -> PageOffer:
        num_tokens = self._count_tokens(kv_cache, tokens)
        if not 0 < num_tokens <= kv_cache.history_length:
            raise ValueError(
                f"sequence {kv_cache.id}: {num_tokens} tokens, and its history is {kv_cache.history_length}: pages of at least one token "
                f"and of at most the history can be transferred; resize(n, n) makes them for n tokens that a peer brings"
            )
        if not np.array_equal(page_offer.list_pool_ranges(self._manager), self._registered):
            raise LogicError("level 0 was resized since this agent registered its pools: close() it and make another one")
        size = kv_cache.tokens_per_block
        num_groups = len(self._manager.layer_grouping)
        pages = page_offer.list_pages(kv_cache, num_groups, num_present // size, -(-num_tokens // size))
        number = f"{self._engine.name}/{self._num_made}"
        self._num_made += 1
        return PageOffer(
            number, access, self._engine.name, self._metadata, self._lease_seconds, self._model, self._heads, self._head_layout,
            size, num_tokens, page_offer.hash_prefix(kv_cache, tokens), page_offer.device_ordinal(self._manager), self._buffers, pages,
            secrets.token_hex(page_offer.SECRET_DIGITS // 2),
        )

    def _read_offers(self, offers: Sequence[PageOffer | bytes], access: str) -> list[PageOffer]:
        if not isinstance(offers, (list, tuple)):
            raise TypeError(f"offers is a list of offers, not {type(offers).__name__}; put one into a list")
        found = [page_offer.read_offer(data) for data in offers]
        if not found:
            raise ValueError("there is no offer to read from or to write to")
        for offer in found:
            if offer.access != access:
                call = "read" if offer.access == READ else "write"
                raise ValueError(f"{offer.number} is to {offer.access}; call {call}() with it")
        return found

    def _reserve(self, ours: PageOffer, kv_cache: KVCache, num_present: int, num_peers: int = 1) -> Transfer:
        """No page of these blocks is in a scratch slot: their tokens are in the history."""
        size = kv_cache.tokens_per_block
        lease = kv_cache.reserve_transfer(num_present // size, -(-ours.num_tokens // size))
        return Transfer(ours, lease, self._seconds(), num_peers)

    def _watch(self, transfer: Transfer, now: float) -> None:
        """Lent pages: a lease that goes by ends the transfer; no peer left ends the loan."""
        is_read = transfer.offer.access == READ
        if is_read:
            for peer, heard in list(transfer._peers.items()):
                if now - heard > self._lease_seconds:
                    # When it comes back, it does not trust what it read after this.
                    del transfer._peers[peer]
        if transfer.state is TransferState.PENDING and now - transfer._last_heard > self._lease_seconds:
            self._fail(transfer, f"no word of the peer for {self._lease_seconds:g} s")
        self._bound(transfer, now)
        has_ended = transfer.state is TransferState.FAILED or (transfer.state is TransferState.DONE and not is_read)
        if has_ended and transfer._peers and now >= transfer._next_word:
            # Stops a peer that still copies, and shows whether it is still there.
            transfer._next_word = now + self._lease_seconds / _HEART_BEATS_PER_LEASE
            for peer in list(transfer._peers):
                self._say(peer, "no", transfer.offer, why=transfer.reason or _ALL_THERE)
        if transfer.state is not TransferState.PENDING and not transfer._peers:
            self._settle_lent(transfer)

    def _bound(self, transfer: Transfer, now: float) -> None:
        if transfer.state is TransferState.PENDING and now - transfer._begun > self._max_seconds:
            self._fail(transfer, f"it has taken more than max_seconds, {self._max_seconds:g} s")

    def _advance(self, transfer: Transfer) -> None:
        """As far as it goes without waiting."""
        now = self._seconds()
        self._bound(transfer, now)
        if transfer.state is TransferState.PENDING:
            self._start(transfer)
            for link in transfer._links:
                self._beat(transfer, link, now)
        for link in transfer._links:
            if link.handle is not None and link.copy is CopyState.MOVING:
                link.copy = self._engine.poll(link.handle)
                if link.copy is not CopyState.MOVING:
                    self._engine.release(link.handle)
                    link.handle = None
            if transfer.state is TransferState.PENDING and link.copy is CopyState.FAILED:
                self._fail(transfer, f"the copy with agent {link.offer.agent!r} failed")
        if transfer.state is TransferState.PENDING:
            # The time after the copy was seen to have ended: this process may have been frozen meanwhile.
            self._judge(transfer, self._seconds())
        if transfer.state is TransferState.FAILED:
            self._end_failed(transfer, now)

    def _start(self, transfer: Transfer) -> None:
        event = transfer._event
        if event is None or not self._manager.device.is_event_done(event):
            return
        if any([link.offer.access == WRITE and not link.answered for link in transfer._links]):
            # The peer must know who writes before anything is written.
            return
        self._manager.device.release_event(event)
        transfer._event = None
        for link in transfer._links:
            offer, plan = link.offer, link.plan
            if len(plan.ours) == 0:
                link.copy = CopyState.ARRIVED
                continue
            try:
                heads = [] if offer.access == READ else sum_written(self._manager, transfer.offer, offer, plan, self._makes_checksums)
                message = b"" if offer.access == READ else encode_message("arrived", offer.number, offer.secret, heads=heads)
                link.handle = self._engine.start(offer.access, link.peer, plan.ours, plan.theirs, offer.device, message)
            except PeerGone as error:
                link.copy = CopyState.FAILED
                self._fail(transfer, str(error))

    def _beat(self, transfer: Transfer, link: Link, now: float) -> None:
        if now < link.next_beat:
            return
        link.next_beat = now + link.offer.lease_seconds / _HEART_BEATS_PER_LEASE
        metadata = "" if link.answered else self._metadata.hex()
        self._say(link.peer, "beat", link.offer, sent=now, metadata=metadata)

    def _judge(self, transfer: Transfer, now: float) -> None:
        """Done once every copy is there and, of pages that were read, every peer had them for as long as that took."""
        late = [link.offer.agent for link in transfer._links if not link.is_trusted(now)]
        if late:
            self._fail(transfer, f"no word of agent {late[0]!r} for most of its lease of {transfer._links[0].offer.lease_seconds:g} s")
            return
        if any([link.copy is not CopyState.ARRIVED for link in transfer._links]):
            return
        if not all([link.answered for link in transfer._links]):
            return
        for link in transfer._links:
            wrong = find_wrong_page(self._manager, transfer.offer, link.offer) if self._makes_checksums else None
            if wrong is not None:
                return self._fail(transfer, f"the bytes of block {wrong} are not those that agent {link.offer.agent!r} offered")
        transfer.state = TransferState.DONE
        self._end(transfer)

    def _end(self, transfer: Transfer) -> None:
        """No copy of it moves bytes any more."""
        self._running.remove(transfer)
        self._settle(transfer)
        for link in transfer._links:
            number = link.offer.number
            if not any([other.offer.number == number for further in self._running for other in further._links]):
                self._say(link.peer, "end", link.offer, why=transfer.reason)

    def _fail(self, transfer: Transfer, reason: str) -> None:
        if transfer.state is not TransferState.PENDING:
            return
        transfer.state = TransferState.FAILED
        transfer.reason = reason
        transfer._failed_at = self._seconds()
        _logger.warning("transfer %s failed: %s", transfer.offer.number, reason)

    def _end_failed(self, transfer: Transfer, now: float) -> None:
        """Its own pages are free once no copy moves bytes any more."""
        moving = [link for link in transfer._links if link.copy is CopyState.MOVING and link.handle is not None]
        if moving and now - transfer._failed_at > self._lease_seconds:
            for link in moving:
                self._engine.remove_peer(link.peer)
                link.copy = CopyState.FAILED
                link.handle = None
            moving = []
        if not moving:
            self._end(transfer)

    def _take(self, peer: str, data: bytes) -> None:
        """One message. What is none, or not of a peer that has a part in what it is about, is counted and dropped."""
        try:
            message: dict[str, Any] = json.loads(data)
            kind, number, secret = message["kind"], message["number"], message["secret"]
            if message["format"] != page_offer.FORMAT:
                raise ValueError(f"format {message['format']!r}")
            if kind in ("ok", "no"):
                self._obey_lender(peer, kind, number, secret, message)
            else:
                self._obey_copier(peer, kind, number, secret, message)
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError, PeerGone) as error:
            self._num_refused += 1
            if peer not in self._refused_peers and len(self._refused_peers) < _MAX_PEERS_LOGGED:
                self._refused_peers.add(peer)
                _logger.warning("agent %s sent a message that is not believed: %s; further ones are counted", peer, error)

    def _obey_lender(self, peer: str, kind: str, number: str, secret: str, message: dict[str, Any]) -> None:
        links = [(transfer, link) for transfer in self._running for link in transfer._links]
        for transfer, link in links:
            if link.offer.number != number or link.peer != peer:
                continue
            require_secret(link.offer.secret, secret)
            if kind == "no":
                self._fail(transfer, f"agent {peer!r} says: {to_reason(message)}")
                continue
            sent = float(message["sent"])
            if not sent <= self._seconds():
                raise ValueError(f"it answers a heart-beat of {sent} s, which was not sent yet")
            link.answered = True
            link.trusted_from = max(link.trusted_from, sent)

    def _obey_copier(self, peer: str, kind: str, number: str, secret: str, message: dict[str, Any]) -> None:
        lent = self._lent.get(number)
        expected = self._over.get(number) if lent is None else (0.0, lent.offer.secret)
        if expected is None:
            raise ValueError(f"nothing of the number {str(number)[:MAX_SHOWN]!r} was lent")
        require_secret(expected[1], secret)
        if kind == "beat":
            sent = float(message["sent"])
            if message["metadata"]:
                self._engine.add_peer(bytes.fromhex(message["metadata"]))
            if lent is None:
                self._send(peer, encode_message("no", number, secret, why="it is no longer offered"))
            elif peer in lent._heard or len(lent._heard) < lent._num_peers:
                lent._heard.add(peer)
                self._answer(peer, lent, sent)
            else:
                self._say(peer, "no", lent.offer, why=f"it is for {lent._num_peers} peers, which have it already: see num_peers")
        elif lent is None:
            return
        elif peer not in lent._heard:
            raise ValueError(f"it is about {number}, in which that agent has no part")
        elif kind == "arrived" and lent.offer.access == WRITE:
            wrong = find_wrong_buffer(self._manager, lent.offer, message["heads"]) if self._makes_checksums else ""
            if wrong:
                self._fail(lent, f"the bytes of {wrong}, are not those that agent {peer!r} has written")
            lent._note_arrived([to_span(span) for span in message["heads"]], self._seconds())
        elif kind == "end":
            why = to_reason(message)
            lent._peers.pop(peer, None)
            if why and not lent._peers:
                self._fail(lent, f"agent {peer!r} says: {why}")
            elif lent.state is TransferState.PENDING and lent.offer.access == READ and not why:
                lent.state = TransferState.DONE
        else:
            raise ValueError(f"no message about pages to {lent.offer.access} is {str(kind)[:MAX_SHOWN]!r}")

    def _answer(self, peer: str, lent: Transfer, sent: float) -> None:
        """To a heart-beat: whether the pages are still there for this peer. A reader may finish while another one has."""
        may_go_on = lent.state is TransferState.PENDING or (
            lent.state is TransferState.DONE and lent.offer.access == READ and peer in lent._peers
        )
        if not may_go_on:
            self._say(peer, "no", lent.offer, why=lent.reason or _ALL_THERE)
            return
        lent._peers[peer] = lent._last_heard = self._seconds()
        self._say(peer, "ok", lent.offer, sent=sent)

    def _settle_lent(self, transfer: Transfer) -> None:
        if self._lent.pop(transfer.offer.number, None) is not None:
            self._over[transfer.offer.number] = self._seconds(), transfer.offer.secret
        self._settle(transfer)

    def _settle(self, transfer: Transfer) -> None:
        if transfer._event is not None:
            self._manager.device.release_event(transfer._event)
            transfer._event = None
        if transfer._lease.is_open:
            transfer._lease.settle()

    def _say(self, peer: str, kind: str, offer: PageOffer, **fields: object) -> None:
        """A peer that is gone is noticed: whatever it had of this side's pages is over."""
        self._send(peer, encode_message(kind, offer.number, offer.secret, **fields))

    def _send(self, peer: str, message: bytes) -> None:
        try:
            self._engine.send(peer, message)
        except PeerGone as error:
            self._lose(peer, str(error))

    def _lose(self, peer: str, reason: str) -> None:
        for transfer in self._lent.values():
            if transfer._peers.pop(peer, None) is not None and not transfer._peers:
                self._fail(transfer, reason)
        for transfer in self._running:
            if any([link.peer == peer for link in transfer._links]):
                self._fail(transfer, reason)

    def _require_open(self) -> None:
        if self._is_closed:
            raise LogicError("the TransferAgent is closed")
