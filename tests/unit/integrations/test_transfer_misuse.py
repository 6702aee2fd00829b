"""Calls of a `TransferAgent` in a wrong state or with wrong arguments, and peers that send nonsense: no page is lent by them."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from kv_cache_manager_v2 import KVCache, LayerId, LogicError
from kv_cache_manager_v2.integrations.page_offer import BufferPlace, PageOffer
from kv_cache_manager_v2.integrations.transfer import Transfer, TransferState

from .fake_transfer_engine import FakeNetwork
from .test_transfer_agent import TOKENS, Clock, Process, step


class Pair:
    """A process that has computed the prompt, one that waits for it, and a loan of each to the other."""

    def __init__(self) -> None:
        self.network = FakeNetwork()
        self.clock = Clock()
        self.prefill, self.decode = Process(self.network, self.clock, "p"), Process(self.network, self.clock, "d")
        self.computed, self.waiting = self.prefill.compute(TOKENS), self.decode.expect(TOKENS)
        self.offered = self.prefill.agent.offer(self.computed, TOKENS)
        self.invited = self.decode.agent.invite(self.waiting, TOKENS)

    def calls(self, computed: Any, waiting: Any, tokens: Any) -> dict[str, Callable[[], Transfer]]:
        """All that take a sequence."""
        prefill, decode = self.prefill.agent, self.decode.agent
        return {
            "offer": lambda: prefill.offer(computed, tokens),
            "invite": lambda: decode.invite(waiting, tokens),
            "read": lambda: decode.read([self.offered.offer.to_bytes()], waiting, tokens),
            "write": lambda: prefill.write([self.invited.offer.to_bytes()], computed, tokens),
        }

    def look(self) -> tuple[object, ...]:
        both = self.prefill, self.decode
        for process in both:
            process.manager.check_invariants()
        return tuple(
            [(process.manager.state_digest(), len(process.manager.open_leases), len(process.agent.transfers)) for process in both]
        )

    def refuse(self, kind: type[Exception] | tuple[type[Exception], ...], call: Callable[[], object], match: str = "") -> None:
        before = self.look()
        with pytest.raises(kind, match=match):
            call()
        assert self.look() == before, "a refused call has lent pages"

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


STATES: dict[str, Callable[[KVCache], Any]] = {
    "closed": lambda kv_cache: kv_cache.close(),
    "SUSPENDED": lambda kv_cache: kv_cache.suspend(),
    "2 beams": lambda kv_cache: (kv_cache.resize(24), setattr(kv_cache, "beam_width", 2)),
}


@pytest.mark.parametrize("name", ["offer", "invite", "read", "write"])
@pytest.mark.parametrize("state", STATES)
def test_sequences_in_a_wrong_state(pair: Pair, state: str, name: str) -> None:
    STATES[state](pair.computed)
    STATES[state](pair.waiting)
    pair.refuse(LogicError, pair.calls(pair.computed, pair.waiting, TOKENS)[name], state)


@pytest.mark.parametrize("name", ["offer", "invite", "read", "write"])
def test_what_is_no_sequence_of_this_manager(pair: Pair, name: str) -> None:
    for wrong in (None, 5, "x", pair.offered):
        pair.refuse(TypeError, pair.calls(wrong, wrong, TOKENS)[name], "kv_cache must be a KVCache")
    pair.refuse(ValueError, pair.calls(pair.waiting, pair.computed, TOKENS)[name], "this agent's manager")


@pytest.mark.parametrize("name", ["offer", "invite", "read", "write"])
def test_wrong_tokens(pair: Pair, name: str) -> None:
    for wrong in (None, 5, "abc", b"abc", [], [0.5] * 22, [-1] * 22, [1 << 40] * 22, [*TOKENS, 5], [*TOKENS[:-1], "x"]):
        pair.refuse((TypeError, ValueError), pair.calls(pair.computed, pair.waiting, wrong)[name], "token")


def test_a_closed_agent(pair: Pair) -> None:
    offered, invited = pair.offered, pair.invited
    pair.prefill.agent.close()
    pair.decode.agent.close()
    for call in pair.calls(pair.computed, pair.waiting, TOKENS).values():
        pair.refuse(LogicError, call, "closed")
    pair.refuse(LogicError, pair.prefill.agent.progress, "closed")
    pair.refuse(LogicError, lambda: pair.prefill.agent.forget_peer("d"), "closed")
    pair.prefill.agent.withdraw(offered)  # it has ended
    pair.prefill.agent.close()
    assert offered.state is invited.state is TransferState.FAILED and pair.prefill.agent.transfers == []


def test_withdrawals_and_peers(pair: Pair) -> None:
    agent = pair.prefill.agent
    wrong: Any
    for wrong in (None, 5, pair.offered.offer):
        pair.refuse(TypeError, partial(agent.withdraw, wrong), "Transfer")
    for wrong in (None, 5, b"why"):
        pair.refuse(TypeError, partial(agent.withdraw, pair.offered, wrong), "reason")
        pair.refuse(TypeError, partial(agent.forget_peer, wrong), "peer")
    pair.refuse(ValueError, lambda: agent.withdraw(pair.invited), "another agent's")
    assert pair.invited.state is TransferState.PENDING
    before = pair.look()
    agent.forget_peer("unknown")
    assert pair.look() == before


def test_layers(pair: Pair) -> None:
    wrong: Any
    for wrong in (5, "01", ["0"], [None], [True], [0.5], [7], [], [-1]):
        call = partial(pair.prefill.agent.write, [pair.invited.offer], pair.computed, TOKENS, wrong)
        pair.refuse((TypeError, ValueError), call, "layer")
    for wrong in (None, 7, "0"):
        pair.refuse(ValueError, partial(pair.invited.has_layer, wrong), "layer_id")


def test_what_is_no_list_of_offers(pair: Pair) -> None:
    wrong: Any
    for wrong in (None, 5, b"{}", "x", pair.offered.offer, [], [None], ["x"], [b""], [b"[]"], [b"{}"], [b"\xff"], [b"[" * 100_000]):
        pair.refuse((TypeError, ValueError), partial(pair.decode.agent.read, wrong, pair.waiting, TOKENS), "offer")
        pair.refuse((TypeError, ValueError), partial(pair.prefill.agent.write, wrong, pair.computed, TOKENS), "offer")
    pair.refuse(ValueError, lambda: pair.decode.agent.read([pair.invited.offer], pair.waiting, TOKENS), r"call write\(\)")
    pair.refuse(ValueError, lambda: pair.prefill.agent.write([pair.offered.offer], pair.computed, TOKENS), r"call read\(\)")


WRONG_VALUES: tuple[Any, ...] = (
    None, -1, 0, 1 << 70, 0.5, float("nan"), float("inf"), "x", b"x", [], (), (1,), (None,), ((1,),), (((-1, 0),),), {"a": 1}, object()
)  # fmt: skip
ANYTHING = {
    "number", "agent", "lease_seconds", "metadata", "prefix_hash", "model", "layer_id", "role", "base", "stride", "device", "checksums",
}  # fmt: skip
"""Of these many values could be true, and are compared, or looked up, at one of the sides."""


@pytest.mark.parametrize("access", ["read", "write"])
def test_offers_that_no_agent_wrote(pair: Pair, access: str) -> None:
    """Each field in turn has another value: it is refused, and nothing is lent; or it says something that could be true."""
    sound = pair.offered.offer if access == "read" else pair.invited.offer

    def begin(offer: Any) -> Transfer:
        if access == "read":
            return pair.decode.agent.read([offer], pair.waiting, TOKENS)
        return pair.prefill.agent.write([offer], pair.computed, TOKENS, [LayerId(0)])

    changed: list[tuple[str, PageOffer]] = []
    wrong: Any
    for wrong in WRONG_VALUES:
        for field in dataclasses.fields(PageOffer):
            if wrong != getattr(sound, field.name):
                changed.append((field.name, dataclasses.replace(sound, **{field.name: wrong})))
        for field in dataclasses.fields(BufferPlace):
            place = dataclasses.replace(sound.buffers[0], **{field.name: wrong})
            if place != sound.buffers[0]:
                changed.append((field.name, dataclasses.replace(sound, buffers=(place, *sound.buffers[1:]))))
    num_refused = 0
    for name, offer in changed:
        before = pair.look()
        try:
            found = begin(offer)
        except (TypeError, ValueError):
            num_refused += 1
            assert pair.look() == before, f"{name}: the offer was refused, and pages are lent"
        else:
            assert name in ANYTHING, (name, offer)
            agent = pair.decode.agent if access == "read" else pair.prefill.agent
            agent.withdraw(found)
            agent._written.clear()
    assert num_refused > len(changed) // 2


@pytest.mark.parametrize("access", ["read", "write"])
def test_bytes_of_offers_with_errors(pair: Pair, access: str) -> None:
    """Bytes changed at random: a ValueError, or an offer that could be true; nothing else."""
    sound = bytearray((pair.offered if access == "read" else pair.invited).offer.to_bytes())
    random = Random(7)
    for _ in range(300):
        data = bytearray(sound)
        for _number in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.choice(b'0123456789-.eE"[]{},: ax')
        before = pair.look()
        agent = pair.decode.agent if access == "read" else pair.prefill.agent
        try:
            if access == "read":
                found = agent.read([bytes(data)], pair.waiting, TOKENS)
            else:
                found = agent.write([bytes(data)], pair.computed, TOKENS)
        except ValueError:
            assert pair.look() == before
        else:
            agent.withdraw(found)
            agent._written.clear()


def test_messages_that_no_agent_sends(pair: Pair) -> None:
    """A peer's nonsense is logged: `progress` raises nothing, and no transfer believes it."""
    transfer = pair.decode.agent.read([pair.offered.offer], pair.waiting, TOKENS)
    parts: list[Any] = [None, 0, -1, 10**400, 1e300, "x", "", [], {}, [[]], [[0, "key", 0]], [[0, "key", "a", 4]], [None] * 4, True]
    numbers = [pair.offered.offer.number, pair.invited.offer.number, 5, None, [], "x"]
    raw = [b"", b"{", b"[]", b"5", b"null", b"\xff\xfe", b"[" * 100_000, b'{"kind":"beat"}', b'{"format":1,"kind":"beat","number":"x"}']
    for kind in ("ok", "no", "beat", "arrived", "end", "other", 5):
        for number in numbers:
            for part in parts:
                fields = {"sent": part, "why": 5, "heads": part, "metadata": part}
                if kind == "beat" and number in numbers[:2]:
                    continue  # who sends that is a peer
                raw.append(json.dumps({"format": 3, "kind": kind, "number": number, **fields}).encode())
    every = [[layer, role, 0, 4, None] for layer in (0, 1) for role in ("key", "value")]
    raw.append(json.dumps({"format": 3, "kind": "arrived", "number": pair.invited.offer.number, "heads": every}).encode())
    # This one has no part in any transfer.
    for process in (pair.prefill, pair.decode):
        process.engine.inbox.extend([("stranger", data) for data in raw])
    step(pair.network, pair.prefill, pair.decode)
    assert transfer.state is TransferState.DONE and pair.decode.is_right(pair.waiting, len(TOKENS))
    assert pair.invited.state is not TransferState.DONE and not pair.invited.has_layer(LayerId(0))


def test_an_answer_to_a_heart_beat_that_was_not_sent_yet_is_not_trusted(pair: Pair) -> None:
    transfer = pair.decode.agent.read([pair.offered.offer], pair.waiting, TOKENS)
    for sent in (pair.clock.now + 1, 1e300):
        message = {"format": 3, "kind": "ok", "number": pair.offered.offer.number, "secret": pair.offered.offer.secret, "sent": sent}
        pair.network.engines["d"].inbox.append(("p", json.dumps(message).encode()))
    pair.decode.agent.progress()
    pair.clock.now += 40
    pair.decode.agent.progress()
    assert transfer.state is TransferState.FAILED
