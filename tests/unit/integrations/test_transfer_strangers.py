"""Messages of those that have no part in a transfer: every kind, in every state of it, at the lender and at the side that copies."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kv_cache_manager_v2.integrations.page_offer import read_offer
from kv_cache_manager_v2.integrations.transfer import Transfer, TransferState

from .fake_transfer_engine import FakeEngine
from .test_transfer_agent import LEASE, TOKENS, Process, step
from .test_transfer_misuse import Pair

KINDS = ("ok", "no", "beat", "arrived", "end", "other")
STATES = ("offered", "running", "done", "failed")
ACCESSES = ("read", "write")


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    FakeEngine(made.network, "stranger")
    yield made
    made.close()


class Scene:
    """A transfer in one state: its lender, the side that copies, and the offer between them."""

    def __init__(self, pair: Pair, access: str, state: str) -> None:
        reads = access == "read"
        self.lender, self.copier = (pair.prefill, pair.decode) if reads else (pair.decode, pair.prefill)
        self.lent = pair.offered if reads else pair.invited
        self.offer = read_offer(self.lent.offer.to_bytes())
        self.other = pair.invited if reads else pair.offered
        self.running: Transfer | None = None
        self.pair = pair
        if state == "offered":
            return
        if reads:
            self.running = pair.decode.agent.read([self.offer], pair.waiting, TOKENS)
        else:
            self.running = pair.prefill.agent.write([self.offer], pair.computed, TOKENS)
        for _turn in range(2):  # the heart-beat and its answer; no byte has moved
            pair.prefill.agent.progress()
            pair.decode.agent.progress()
        if state == "done":
            step(pair.network, pair.prefill, pair.decode)
            assert self.lent.state is self.running.state is TransferState.DONE
        if state == "failed":
            self.lender.agent.withdraw(self.lent, "given up")
            step(pair.network, pair.prefill, pair.decode)
            assert self.lent.state is self.running.state is TransferState.FAILED

    def look(self) -> tuple[object, ...]:
        """All that a message could change."""
        both = [self.lent, self.other, *([] if self.running is None else [self.running])]
        return self.pair.look(), [
            (
                one.state, one.reason, one.is_quarantined, one._last_heard, sorted(one._peers.items()), sorted(one._heard),
                str(one._arrived), [(link.answered, link.trusted_from, link.copy) for link in one._links],
            )
            for one in both
        ]  # fmt: skip


def fields_of(kind: str, now: float) -> dict[str, object]:
    """What makes a message of that kind count, if its secret and its peer are right."""
    every = [[layer, role, 0, 4, None] for layer in (0, 1) for role in ("key", "value")]
    return {
        "ok": {"sent": now}, "no": {"why": "go away"}, "beat": {"sent": now, "metadata": b"stranger".hex()}, "arrived": {"heads": every},
        "end": {"why": ""}, "other": {},
    }[kind]  # fmt: skip


def message(kind: str, number: str, secret: object, now: float) -> bytes:
    return json.dumps({"format": 3, "kind": kind, "number": number, "secret": secret, **fields_of(kind, now)}).encode()


def without_secret(data: bytes) -> bytes:
    fields = json.loads(data)
    del fields["secret"]
    return json.dumps(fields).encode()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_without_the_secret_changes_nothing(pair: Pair, access: str, state: str, kind: str) -> None:
    """Of a stranger, or of one that uses the peer's name; late, too: a sixth of a lease after the scene was set."""
    scene = Scene(pair, access, state)
    number, right = scene.offer.number, scene.offer.secret
    whole = message(kind, number, right, pair.clock.now)
    wrong = "0" * 32
    assert wrong != right
    secrets = (wrong, right[:-1], right + "0", "", None, 5, [right])
    forged: list[bytes] = [message(kind, number, secret, pair.clock.now) for secret in secrets]
    forged += [message(kind, number, scene.other.offer.secret, pair.clock.now), without_secret(whole)]
    forged += [whole[:size] for size in range(0, len(whole), 7)]
    before, refused = scene.look(), 0
    for process in (scene.lender, scene.copier):
        counted = process.agent.num_refused_messages
        for sender in ("stranger", pair.prefill.engine.name, pair.decode.engine.name):
            for data in forged * 2:
                process.engine.inbox.append((sender, data))
        process.agent.progress()
        refused += process.agent.num_refused_messages - counted
    after = scene.look()
    assert after == before
    # The lender refuses all of them while it knows the loan, and answers none.
    if kind not in ("ok", "no"):
        assert refused >= 3 * 2 * len(forged)
    assert pair.network.engines["stranger"].inbox == []


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "beat"])
def test_a_peer_that_has_no_part_is_not_believed_even_with_the_secret(pair: Pair, access: str, state: str, kind: str) -> None:
    scene = Scene(pair, access, state)
    before = scene.look()
    for process in (scene.lender, scene.copier):
        process.engine.inbox.extend([("stranger", message(kind, scene.offer.number, scene.offer.secret, pair.clock.now))] * 2)
        process.agent.progress()
    assert scene.look() == before


@pytest.mark.parametrize("access", ACCESSES)
def test_who_comes_second_is_refused_and_told_so(pair: Pair, access: str) -> None:
    """The first heart-beat with the secret takes an offer for one peer; a further reader fails at once, and the first one goes on."""
    scene = Scene(pair, access, "running")
    late = Process(pair.network, pair.clock, "late")
    if access == "read":
        second = late.agent.read([scene.offer], late.expect(TOKENS), TOKENS)
    else:
        second = late.agent.write([scene.offer], late.compute(TOKENS), TOKENS)
    for process in (scene.lender, late):
        process.agent.progress()
    assert second.state is TransferState.FAILED and "num_peers" in second.reason
    step(pair.network, pair.prefill, pair.decode, late)
    assert scene.lent.state is TransferState.DONE and scene.running is not None and scene.running.state is TransferState.DONE
    late.close()


@pytest.mark.parametrize("kind", ("arrived", "end", "ok", "no", "beat"))
@pytest.mark.parametrize("access", ACCESSES)
def test_the_own_peer_says_it_twice_and_late(pair: Pair, access: str, kind: str) -> None:
    """What the peer has said is replayed once all is over: the states stay."""
    scene = Scene(pair, access, "done")
    states = scene.lent.state, scene.running and scene.running.state
    for process, peer in ((scene.lender, scene.copier), (scene.copier, scene.lender)):
        data = message(kind, scene.offer.number, scene.offer.secret, pair.clock.now)
        process.engine.inbox.extend([(peer.engine.name, data)] * 2)
        process.agent.progress()
    assert (scene.lent.state, scene.running and scene.running.state) == states
    assert not scene.lent.is_quarantined


def test_a_reader_cannot_say_that_pages_have_arrived(pair: Pair) -> None:
    scene = Scene(pair, "read", "running")
    scene.lender.engine.inbox.append((scene.copier.engine.name, message("arrived", scene.offer.number, scene.offer.secret, pair.clock.now)))
    scene.lender.agent.progress()
    assert scene.lent.state is TransferState.PENDING and scene.lender.agent.num_refused_messages == 1


@pytest.mark.parametrize("access", ACCESSES)
def test_a_transfer_ends_at_its_time_whatever_is_heard(pair: Pair, access: str) -> None:
    """The network moves no byte, and heart-beats go on: after ten minutes, the default, both sides give up; pages of a reader are free."""
    scene = Scene(pair, access, "running")
    begun = pair.clock.now
    while pair.clock.now - begun <= 600:
        assert scene.lent.state is TransferState.PENDING, pair.clock.now
        pair.clock.now += LEASE / 3
        for _turn in range(2):
            pair.prefill.agent.progress()
            pair.decode.agent.progress()
    assert scene.lent.state is TransferState.FAILED and "max_seconds" in scene.lent.reason + (scene.running.reason if scene.running else "")
    for _turn in range(8):
        pair.clock.now += LEASE / 3
        pair.prefill.agent.progress()
        pair.decode.agent.progress()
    assert scene.running is not None and not scene.running.is_quarantined
    assert access == "write" or not scene.lent.is_quarantined


def test_secrets_are_128_bits_and_in_no_text(pair: Pair) -> None:
    offers = [pair.prefill.agent.offer(pair.computed, TOKENS).offer for _number in range(20)]
    assert len({offer.secret for offer in offers}) == 20
    assert all(len(bytes.fromhex(offer.secret)) == 16 for offer in offers)
    assert all(offer.secret not in repr(offer) for offer in offers)


def test_strangers_are_logged_once(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    agent, engine = pair.prefill.agent, pair.prefill.engine
    for _turn in range(3):
        engine.inbox.extend([(name, b"nonsense") for name in ("a", "b")] * 50)
        agent.progress()
    engine.inbox.extend([(f"peer {number}", b"nonsense") for number in range(1000)])
    agent.progress()
    assert len(caplog.records) == 64 and agent.num_refused_messages == 1300


@pytest.mark.parametrize("wrong", [0, -1, 1 << 20])
def test_numbers_of_peers_are_checked(pair: Pair, wrong: int) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: pair.prefill.agent.offer(pair.computed, TOKENS, num_peers=wrong),
        lambda: pair.decode.agent.invite(pair.waiting, TOKENS, num_peers=wrong),
    ]
    for call in calls:
        pair.refuse(ValueError, call, "num_peers must be|num_peers is")
