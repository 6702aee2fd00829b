"""Transfers between managers, over a network that freezes, breaks and delays: every page that is said to be there has its bytes."""

import ctypes
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    Device,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    ModelId,
    SsmLayerConfig,
    StatisticsClock,
)
from kv_cache_manager_v2.integrations.page_offer import PageOffer, read_offer
from kv_cache_manager_v2.integrations.transfer import Transfer, TransferState
from kv_cache_manager_v2.integrations.transfer_agent import TransferAgent
from kv_cache_manager_v2.integrations.transfer_engine import PeerGone
from kv_cache_manager_v2.testing import FakeEngine as ComputingEngine
from kv_cache_manager_v2.testing import SimulatedDevice, Step

from .fake_transfer_engine import FakeEngine, FakeNetwork

SIZE = 4
HEAD_BYTES = 8
LEASE = 30.0


class Clock(StatisticsClock):
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def seconds(self) -> float:
        return self.now


class Process:
    """A manager with its agent: some layers and heads of a model of four heads, layers 0 and 2 full, 1 and 3 with a window of 8."""

    def __init__(
        self,
        network: FakeNetwork,
        clock: Clock,
        name: str,
        layers: Sequence[int] = (0, 1),
        heads: tuple[int, int] = (0, 4),
        layout: str = "NHD",
        num_slots: int = 40,
        device: Device | None = None,
        checksums: bool = True,
    ) -> None:
        self.layers = layers
        self.checksums = checksums
        self.heads = heads
        self.layout = layout
        bytes_of_block = SIZE * HEAD_BYTES * (heads[1] - heads[0])
        configs = [
            AttentionLayerConfig(
                LayerId(layer),
                [BufferConfig("key", bytes_of_block), BufferConfig("value", bytes_of_block)],
                sliding_window_size=8 if layer % 2 else None,
            )
            for layer in layers
        ]
        self.clock = clock
        quota = num_slots * 2 * bytes_of_block * len(layers)
        config = KVCacheManagerConfig(tokens_per_block=SIZE, cache_tiers=[GpuCacheTierConfig(quota)], layers=configs)
        self.config = config
        self.manager = KVCacheManager(config, device=HostDevice() if device is None else device)
        self.begin_agent(network, name)

    def begin_agent(self, network: FakeNetwork, name: str) -> None:
        self.engine = FakeEngine(network, name)
        self.engine.manager = self.manager
        model_id = ModelId("m", heads=self.heads)
        self.agent = TransferAgent(
            self.manager, self.engine, model_id=model_id, head_layout=self.layout, lease_seconds=LEASE, checksums=self.checksums,
            clock=self.clock,
        )  # fmt: skip

    def places(self, kv_cache: KVCache, num_tokens: int, first_token: int = 0) -> Iterator[tuple[int, bytes]]:
        """(address, expected bytes) of each token, head and buffer that the sequence has a page for."""
        for buffer_id in self.manager.all_buffer_ids:
            pages = self.manager.get_aggregated_pages([buffer_id])[0]
            slots = kv_cache.get_base_page_indices(pages.layer_group_id)
            for token in range(first_token, num_tokens):
                slot = slots[token // SIZE]
                if slot < 0:
                    continue
                for head in range(*self.heads):
                    num_heads = self.heads[1] - self.heads[0]
                    inner, local = token % SIZE, head - self.heads[0]
                    at = inner * num_heads + local if self.layout == "NHD" else local * SIZE + inner
                    content = bytes([token, head, int(buffer_id.layer_id), 1 if buffer_id.role == "key" else 2]) * 2
                    yield pages.base + pages.stride * slot + at * HEAD_BYTES, content

    def compute(self, tokens: Sequence[int]) -> KVCache:
        """A sequence whose pages have the bytes of these tokens, not yet committed."""
        kv_cache = self.manager.create_kv_cache(None, tokens)
        assert kv_cache.resume() and kv_cache.resize(len(tokens), len(tokens))
        for address, content in self.places(kv_cache, len(tokens)):
            ctypes.memmove(address, content, HEAD_BYTES)
        return kv_cache

    def expect(self, tokens: Sequence[int], num_committed: int = 0) -> KVCache:
        """A sequence that waits for the bytes of these tokens; its pages are full of other bytes."""
        kv_cache = self.manager.create_kv_cache(None, tokens)
        assert kv_cache.num_committed_tokens == num_committed
        assert kv_cache.resume() and kv_cache.resize(len(tokens), len(tokens))
        for address, _content in self.places(kv_cache, len(tokens), num_committed):
            ctypes.memset(address, 0xEE, HEAD_BYTES)
        return kv_cache

    def is_right(self, kv_cache: KVCache, num_tokens: int) -> bool:
        return all([ctypes.string_at(address, HEAD_BYTES) == content for address, content in self.places(kv_cache, num_tokens)])

    def close(self) -> None:
        self.agent.close()
        for kv_cache in self.manager.open_kv_caches:
            kv_cache.close()
        self.manager.check_invariants()
        self.manager.shutdown()


def step(network: FakeNetwork, *processes: Process, times: int = 6) -> None:
    for _ in range(times):
        network.move()
        for process in processes:
            if not process.engine.is_frozen and not process.engine.is_dead:
                process.agent.progress()


TOKENS = list(range(1, 23))


@pytest.fixture
def network() -> Iterator[FakeNetwork]:
    made = FakeNetwork()
    yield made
    assert made.wrong_bytes == []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def prefill(network: FakeNetwork, clock: Clock) -> Iterator[Process]:
    made = Process(network, clock, "p")
    yield made
    made.close()


@pytest.fixture
def decode(network: FakeNetwork, clock: Clock) -> Iterator[Process]:
    made = Process(network, clock, "d")
    yield made
    made.close()


def send(access: str, network: FakeNetwork, source: Process, target: Process, tokens: Sequence[int]) -> tuple[Transfer, Transfer, KVCache]:
    """The source's transfer, the target's, and the target's sequence."""
    computed = source.compute(tokens)
    waiting = target.expect(tokens)
    if access == "read":
        offered = source.agent.offer(computed, tokens)
        return offered, target.agent.read([offered.offer.to_bytes()], waiting, tokens), waiting
    invited = target.agent.invite(waiting, tokens)
    return source.agent.write([invited.offer.to_bytes()], computed, tokens), invited, waiting


@pytest.mark.parametrize("access", ["read", "write"])
def test_pages_of_all_groups_arrive(network: FakeNetwork, prefill: Process, decode: Process, access: str) -> None:
    left, right, waiting = send(access, network, prefill, decode, TOKENS)
    assert not decode.is_right(waiting, len(TOKENS))
    step(network, prefill, decode)
    assert left.state is right.state is TransferState.DONE
    assert not prefill.manager.open_leases and not decode.manager.open_leases
    assert decode.is_right(waiting, len(TOKENS))
    waiting.commit(TOKENS)
    waiting.close()
    assert decode.manager.probe_reuse(None, [*TOKENS, 99]) == len(TOKENS)


@pytest.mark.parametrize("access", ["read", "write"])
def test_an_agent_that_is_made_anew_beside_a_manager_that_goes_on(
    network: FakeNetwork, clock: Clock, prefill: Process, decode: Process, access: str
) -> None:
    """What the first one had lent is free, its peer's transfer fails in a period, and the next one offers and asks as the first did."""
    left, right, _waiting = send(access, network, prefill, decode, TOKENS)
    prefill.agent.close()
    prefill.engine.kill()
    assert not prefill.manager.open_leases and left.state is TransferState.FAILED
    prefill.begin_agent(network, "p again")
    left, again, waiting = send(access, network, prefill, decode, list(range(30, 50)))
    step(network, prefill, decode)
    assert left.state is again.state is TransferState.DONE and decode.is_right(waiting, 20)
    clock.now += 2 * LEASE
    step(network, prefill, decode)
    assert right.state is TransferState.FAILED


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("checksums", [(True, True), (False, True), (True, False)])
def test_bytes_that_were_lost_on_their_way_are_not_believed(
    network: FakeNetwork, clock: Clock, access: str, checksums: tuple[bool, bool]
) -> None:
    """Whichever byte: the first, the last, one between. Where one side makes no checksums, nothing is compared."""
    prefill, decode = [Process(network, clock, name, checksums=makes) for name, makes in zip("pd", checksums)]
    for changed in (0, 7, -1):
        left, right, waiting = send(access, network, prefill, decode, TOKENS)
        network.move()
        while not decode.is_right(waiting, len(TOKENS)):
            step(network, prefill, decode, times=1)
            network.move()
        assert right.state is TransferState.PENDING
        address, content = list(decode.places(waiting, len(TOKENS)))[changed]
        ctypes.memset(address + 3, content[3] ^ 1, 1)
        step(network, prefill, decode)
        assert right.state is (TransferState.FAILED if all(checksums) else TransferState.DONE)
        assert right.state is TransferState.DONE or "are not those that agent 'p'" in right.reason
        clock.now += 2 * LEASE
        step(network, prefill, decode)
        assert not prefill.manager.open_leases and not decode.manager.open_leases
        waiting.close()
    prefill.close()
    decode.close()


def give_room(process: Process) -> KVCache:
    kv_cache = process.manager.create_kv_cache(None, TOKENS)
    assert kv_cache.resume() and kv_cache.resize(len(TOKENS), 0)
    return kv_cache


@pytest.mark.parametrize("access", ["offer", "invite"])
def test_pages_are_lent_once_the_work_on_their_stream_is_done(network: FakeNetwork, access: str) -> None:
    """A peer waits for no stream of this process."""
    device = SimulatedDevice(1, eager=False)
    lender = Process(network, Clock(), "p", device=device)
    worker = ComputingEngine(lender.config, device)
    kv_cache = give_room(lender)
    worker.execute([Step(kv_cache, TOKENS, [])])
    assert device.num_pending > 0
    assert kv_cache.resize(len(TOKENS), len(TOKENS))
    getattr(lender.agent, access)(kv_cache, TOKENS)
    assert device.num_pending == 0
    lender.agent.close()
    worker.close()
    lender.close()


@pytest.mark.parametrize("access", ["read", "write"])
def test_a_refused_event_ends_the_lease(network: FakeNetwork, access: str) -> None:
    clock, device = Clock(), SimulatedDevice(1)
    lender, mover = Process(network, clock, "p"), Process(network, clock, "d", device=device)
    lent = lender.agent.offer(lender.compute(TOKENS), TOKENS) if access == "read" else lender.agent.invite(lender.expect(TOKENS), TOKENS)
    kv_cache = give_room(mover)
    assert kv_cache.resize(len(TOKENS), len(TOKENS))
    device.faults.fail("record", 1, RuntimeError("refused"))
    with pytest.raises(RuntimeError, match="refused"):
        getattr(mover.agent, access)([lent.offer.to_bytes()], kv_cache, TOKENS)
    assert mover.manager.open_leases == []
    mover.close()
    lender.close()


def test_blocks_that_reuse_found_are_not_copied(network: FakeNetwork, prefill: Process, decode: Process) -> None:
    for process in (prefill, decode):
        first = process.compute(TOKENS[:10])
        first.commit(TOKENS[:10])
        first.close()
    computed = prefill.compute(TOKENS)
    waiting = decode.expect(TOKENS, 10)
    transfer = decode.agent.read([prefill.agent.offer(computed, TOKENS).offer], waiting, TOKENS)
    # Of the full layer blocks 2 to 5; of the window of 8 at 22 tokens, 15 to 22: blocks 3 to 5.
    assert [[block for block, _slot in group] for group in transfer.offer.pages] == [[2, 3, 4, 5], [3, 4, 5]]
    step(network, prefill, decode)
    assert transfer.state is TransferState.DONE and decode.is_right(waiting, len(TOKENS))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("access", ["read", "write"])
def test_ranks_may_have_other_heads_and_layers(network: FakeNetwork, clock: Clock, access: str, layout: str) -> None:
    """Two pipeline stages, one of them split by heads, to one rank with everything."""
    sources = [
        Process(network, clock, "p0", (0, 1), (0, 2), layout),
        Process(network, clock, "p1", (0, 1), (2, 4), layout),
        Process(network, clock, "p2", (2, 3), (0, 4), layout),
    ]
    target = Process(network, clock, "d", (0, 1, 2, 3), (0, 4), layout)
    computed = [source.compute(TOKENS) for source in sources]
    waiting = target.expect(TOKENS)
    if access == "read":
        offers = [source.agent.offer(kv_cache, TOKENS).offer for source, kv_cache in zip(sources, computed)]
        with pytest.raises(ValueError, match=r"layer 2, 'key': the offers have heads \[\] of \(0, 4\)"):
            target.agent.read(offers[:2], waiting, TOKENS)
        with pytest.raises(ValueError, match="layer 0, 'key': the offers have heads"):
            target.agent.read([*offers, offers[0]], waiting, TOKENS)
        transfer = target.agent.read(offers, waiting, TOKENS)
    else:
        transfer = target.agent.invite(waiting, TOKENS, num_peers=3)
        for source, kv_cache in zip(sources, computed):
            source.agent.write([transfer.offer], kv_cache, TOKENS)
    step(network, target, *sources)
    assert transfer.state is TransferState.DONE and target.is_right(waiting, len(TOKENS))
    for process in (*sources, target):
        process.close()


def test_one_rank_serves_two_with_half_of_the_heads(network: FakeNetwork, clock: Clock) -> None:
    source = Process(network, clock, "p")
    targets = [Process(network, clock, "d0", heads=(0, 2)), Process(network, clock, "d1", heads=(2, 4))]
    computed = source.compute(TOKENS)
    offered = source.agent.offer(computed, TOKENS, num_peers=2)
    waiting = [target.expect(TOKENS) for target in targets]
    transfers = [target.agent.read([offered.offer], kv_cache, TOKENS) for target, kv_cache in zip(targets, waiting)]
    step(network, *targets, source)
    for transfer, target, kv_cache in zip(transfers, targets, waiting):
        assert transfer.state is TransferState.DONE and target.is_right(kv_cache, len(TOKENS))
    assert offered.state is TransferState.DONE and not source.manager.open_leases
    for process in (source, *targets):
        process.close()


def test_layers_follow_one_another(network: FakeNetwork, prefill: Process, decode: Process) -> None:
    computed, waiting = prefill.compute(TOKENS), decode.expect(TOKENS)
    invited = decode.agent.invite(waiting, TOKENS)
    prefill.agent.write([invited.offer], computed, TOKENS, [LayerId(1)])
    step(network, prefill, decode)
    assert invited.has_layer(LayerId(1)) and not invited.has_layer(LayerId(0)) and invited.state is TransferState.PENDING
    with pytest.raises(ValueError, match="layer 1 was written to"):
        prefill.agent.write([invited.offer], computed, TOKENS)
    with pytest.raises(ValueError, match="layer_id is 7"):
        invited.has_layer(LayerId(7))
    prefill.agent.write([invited.offer], computed, TOKENS, [LayerId(0)])
    step(network, prefill, decode)
    assert invited.state is TransferState.DONE and decode.is_right(waiting, len(TOKENS))


def test_a_frozen_lender_is_noticed_within_its_lease(network: FakeNetwork, clock: Clock, prefill: Process, decode: Process) -> None:
    offered, transfer, waiting = send("read", network, prefill, decode, TOKENS)
    network.move(1)
    prefill.engine.is_frozen = True
    clock.now += LEASE
    step(network, prefill, decode)
    assert transfer.state is TransferState.FAILED and "no word of agent 'p'" in transfer.reason
    waiting.close()
    assert transfer.is_quarantined and len(decode.manager.open_leases) == 1, "bytes may still arrive"
    clock.now += LEASE + 1
    step(network, prefill, decode)
    assert not transfer.is_quarantined and decode.agent.transfers == []
    prefill.engine.is_frozen = False
    step(network, prefill, decode)
    # It hears only now what was said long ago, and waits for more.
    clock.now += LEASE + 1
    step(network, prefill, decode)
    assert offered.state is TransferState.FAILED and not prefill.manager.open_leases


def test_a_reader_that_was_frozen_trusts_nothing(network: FakeNetwork, clock: Clock, prefill: Process, decode: Process) -> None:
    """All bytes are there when it wakes up, but the lender has released the pages meanwhile."""
    offered, transfer, _waiting = send("read", network, prefill, decode, TOKENS)
    prefill.agent.progress()
    decode.agent.progress()
    network.move()
    decode.engine.is_frozen = True
    clock.now += LEASE + 1
    step(network, prefill)
    assert offered.state is TransferState.FAILED and not prefill.manager.open_leases
    decode.engine.is_frozen = False
    step(network, decode)
    assert transfer.state is TransferState.FAILED and not decode.manager.open_leases


def test_slots_of_a_frozen_writer_are_not_used_again(network: FakeNetwork, clock: Clock) -> None:
    prefill, decode = Process(network, clock, "p"), Process(network, clock, "d", num_slots=12)
    left, invited, waiting = send("write", network, prefill, decode, TOKENS)
    decode.agent.progress()
    prefill.agent.progress()
    network.move(1)
    prefill.engine.is_frozen = True
    clock.now += LEASE + 1
    step(network, decode)
    assert invited.state is TransferState.FAILED and invited.is_quarantined
    waiting.close()
    clock.now += 100 * LEASE
    step(network, decode)
    assert invited.is_quarantined, "it may wake up and write"
    prefill.engine.is_frozen = False
    # The network checks that the late bytes go to leased pages.
    step(network, decode, prefill)
    assert left.state is TransferState.FAILED and not invited.is_quarantined
    prefill.close()
    decode.close()


def test_an_operator_can_say_that_a_peer_has_ended(network: FakeNetwork, clock: Clock, prefill: Process, decode: Process) -> None:
    _left, invited, _waiting = send("write", network, prefill, decode, TOKENS)
    decode.agent.progress()
    prefill.agent.progress()
    prefill.engine.is_frozen = True
    clock.now += LEASE + 1
    step(network, decode)
    assert invited.is_quarantined
    decode.agent.forget_peer("p")
    decode.agent.progress()
    assert not invited.is_quarantined and not decode.manager.open_leases
    prefill.engine.is_frozen = False


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("killed", ["p", "d"])
def test_a_dead_peer_fails_the_transfer_at_once(
    network: FakeNetwork, clock: Clock, prefill: Process, decode: Process, access: str, killed: str
) -> None:
    both = {"p": prefill, "d": decode}
    transfers = dict(zip(("p", "d"), send(access, network, both["p"], both["d"], TOKENS)))
    both["d"].agent.progress()
    both["p"].agent.progress()
    network.move(1)
    both[killed].engine.kill()
    clock.now += LEASE / 5
    survivor = "d" if killed == "p" else "p"
    step(network, both[survivor])
    if (access == "read") == (survivor == "d"):
        assert transfers[survivor].state is TransferState.FAILED
    clock.now += LEASE
    step(network, both[survivor])
    assert transfers[survivor].state is TransferState.FAILED
    both[survivor].agent.forget_peer(killed)
    step(network, both[survivor])
    assert not both[survivor].manager.open_leases


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize(("by", "num_rounds"), [("p", 0), ("d", 0), ("d", 2)])
def test_the_other_side_hears_that_it_will_not_come(
    network: FakeNetwork, prefill: Process, decode: Process, access: str, by: str, num_rounds: int
) -> None:
    both = {"p": prefill, "d": decode}
    transfers = dict(zip(("p", "d"), send(access, network, both["p"], both["d"], TOKENS)))
    for process in num_rounds * (*both.values(),):
        process.agent.progress()
    both[by].agent.withdraw(transfers[by], "the request was cancelled")
    step(network, *both.values())
    assert all([transfer.state is TransferState.FAILED for transfer in (transfers["p"], transfers["d"])])
    assert any(["the request was cancelled" in transfer.reason for transfer in (transfers["p"], transfers["d"])])
    assert "the request was cancelled" in transfers["d" if by == "p" else "p"].reason
    assert not both["p"].manager.open_leases and not both["d"].manager.open_leases


def test_a_second_writer_of_one_invitation_is_waited_for(network: FakeNetwork, clock: Clock) -> None:
    """A router tries again elsewhere; the first prefill wakes up late and writes into pages that are still leased."""
    first, second, decode = Process(network, clock, "p0"), Process(network, clock, "p1"), Process(network, clock, "d")
    waiting = decode.expect(TOKENS)
    invited = decode.agent.invite(waiting, TOKENS, num_peers=2)
    first.agent.write([invited.offer], first.compute(TOKENS), TOKENS)
    decode.agent.progress()
    first.agent.progress()
    first.engine.is_frozen = True
    second.agent.write([invited.offer], second.compute(TOKENS), TOKENS)
    step(network, decode, second)
    assert invited.state is TransferState.DONE and decode.is_right(waiting, len(TOKENS))
    assert invited.is_quarantined
    waiting.commit(TOKENS)
    waiting.close()
    first.engine.is_frozen = False
    step(network, first, decode)
    assert not invited.is_quarantined
    for process in (first, second, decode):
        process.close()


def test_wrong_arguments_change_nothing(network: FakeNetwork, clock: Clock) -> None:
    prefill, decode = Process(network, clock, "p"), Process(network, clock, "d")
    computed, waiting = prefill.compute(TOKENS), decode.expect(TOKENS)
    offered = prefill.agent.offer(computed, TOKENS)
    other_model = Process(network, clock, "x", layout="HND")
    foreign = other_model.agent.offer(other_model.compute(TOKENS), TOKENS).offer
    invited = decode.agent.invite(waiting, TOKENS)
    leases = len(decode.manager.open_leases)
    read = decode.agent.read
    for call, message in (
        (lambda: read([offered.offer], waiting, TOKENS[:-1]), "num_tokens is 21 here, and 22 in the offer of agent 'p'"),
        (lambda: read([offered.offer], waiting, [*TOKENS[:-1], 5]), "prefix_hash is"),
        (lambda: read([foreign], waiting, TOKENS), "head_layout is 'NHD' here, and 'HND'"),
        (lambda: read([b'{"format":7}'], waiting, TOKENS), "the offer has format 7; this version of the library reads 3"),
        (lambda: read([offered.offer], waiting, [*TOKENS, 1]), "23 tokens, and its history is 22"),
        (lambda: prefill.agent.write([invited.offer], computed, TOKENS, [LayerId(9)]), "none of the layers"),
        (lambda: TransferAgent(decode.manager, FakeEngine(network, "y"), lease_seconds=0), "lease_seconds is 0"),
        (lambda: TransferAgent(decode.manager, FakeEngine(network, "z"), head_layout="x"), "head_layout is 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert len(decode.manager.open_leases) == leases
    decode.engine.inbox.append(("p", b"\xff not a message"))
    decode.agent.progress()
    for process in (prefill, decode, other_model):
        process.close()


def test_recurrent_layers_are_refused_by_name(network: FakeNetwork) -> None:
    config = KVCacheManagerConfig(
        tokens_per_block=SIZE, cache_tiers=[GpuCacheTierConfig(1 << 20)], layers=[SsmLayerConfig(LayerId(3), [BufferConfig("state", 64)])]
    )
    with KVCacheManager(config, device=HostDevice()) as manager, pytest.raises(ValueError, match="layer 3 is recurrent"):
        TransferAgent(manager, FakeEngine(network, "r"))


def test_a_pool_that_was_resized_is_registered_anew(network: FakeNetwork) -> None:
    process = Process(network, Clock(), "p")
    computed = process.compute(TOKENS)
    assert process.manager.resize(0, process.manager.get_quota(0) * 2)
    with pytest.raises(LogicError, match="level 0 was resized"):
        process.agent.offer(computed, TOKENS)
    process.close()


def test_offers_travel_as_bytes(network: FakeNetwork) -> None:
    process = Process(network, Clock(), "p")
    offer = process.agent.offer(process.compute(TOKENS), TOKENS).offer
    assert read_offer(offer.to_bytes()) == offer and isinstance(read_offer(offer.to_bytes()), PageOffer)
    data = offer.to_bytes()
    random = Random(3)
    for _ in range(200):
        at = random.randrange(len(data))
        broken = data[:at] + bytes([random.randrange(256)]) + data[at + 1 :] if random.random() < 0.5 else data[:at]
        try:
            read_offer(broken)
        except ValueError:
            pass
    process.close()


def test_whatever_happens_no_wrong_byte_is_believed() -> None:
    """Random freezes, deaths, delays and withdrawals; the network checks each byte that moves, this test each transfer that is DONE."""
    num_done, num_failed = 0, 0
    for seed in range(12):
        network = FakeNetwork()
        done, failed = perform_at_random(network, Random(seed))
        assert network.wrong_bytes == []
        num_done += done
        num_failed += failed
    assert num_done > 40 and num_failed > 40


def perform_at_random(network: FakeNetwork, random: Random) -> tuple[int, int]:
    """How many transfers were done, and how many failed."""
    clock = Clock()
    processes = [Process(network, clock, f"n{index}", num_slots=60) for index in range(4)]
    open_transfers: list[tuple[Process, Transfer, KVCache, list[int]]] = []
    num_done, num_failed = 0, 0
    for _ in range(200):
        alive = [process for process in processes if not process.engine.is_dead and not process.engine.is_frozen]
        action = random.randrange(10)
        if action <= 2 and len(alive) >= 2 and len(open_transfers) < 4:
            source, target = random.sample(alive, 2)
            tokens = [random.randrange(200) for _ in range(random.randrange(5, 24))]
            try:
                _left, right, waiting = send(random.choice(["read", "write"]), network, source, target, tokens)
                open_transfers.append((target, right, waiting, tokens))
            except (PeerGone, AssertionError):
                pass
        elif action == 3:
            engine = random.choice(processes).engine
            engine.is_frozen = not engine.is_frozen and random.random() < 0.3
        elif action == 4 and random.random() < 0.03:
            random.choice(processes).engine.kill()
        elif action == 5:
            clock.now += random.choice([0.1, 1.0, 4.0, 4.0, LEASE + 1])
        elif action == 6 and open_transfers and random.random() < 0.5:
            process, transfer, _kv_cache, _tokens = random.choice(open_transfers)
            if process in alive:
                process.agent.withdraw(transfer)
        else:
            network.move(random.choice([1, 2, 1 << 30]))
            for process in alive:
                process.agent.progress()
        for item in list(open_transfers):
            process, transfer, kv_cache, tokens = item
            if transfer.state is TransferState.DONE:
                assert process.is_right(kv_cache, len(tokens))
                num_done += 1
            if transfer.state is not TransferState.PENDING:
                num_failed += transfer.state is TransferState.FAILED
                kv_cache.close()
                open_transfers.remove(item)
        for process in processes:
            process.manager.check_invariants()
    for process in processes:
        process.engine.is_frozen = False
    for process in processes:
        process.close()
    return num_done, num_failed
