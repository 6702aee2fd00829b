"""A shared level has pages as its manager's codec packs them: in fewer bytes, under names with the codec's identity, and marked where that
loses something."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hybrid_models import hybrid_config
from shared_models import Rank, shared_config

from kv_cache_manager_v2 import ColdPageCodec, Device, HostDevice, SlotDescVariant, SnapshotPolicy
from kv_cache_manager_v2.shared import MemoryStore
from kv_cache_manager_v2.testing.journal_rerun import rerun
from kv_cache_manager_v2.testing.reversing_codec import ReversingCodec

TEXT = list(range(100, 133))  # 8 whole blocks and the token that the model must compute
OTHERS = [[1000 * number + position for position in range(17)] for number in range(1, 9)]  # 4 whole blocks each


@pytest.mark.parametrize("is_lossless", [True, False])
@pytest.mark.parametrize("windows", [(None,), (None, 8), (4, None, 20)])
@pytest.mark.parametrize("host_slots", [0, 64])
def test_what_one_has_packed_another_unpacks(windows: tuple[int | None, ...], host_slots: int, is_lossless: bool) -> None:
    """The layer groups share a pool group and pack to pages of their own sizes; the engines compare every byte."""
    store, codec = MemoryStore(), ReversingCodec(3, is_lossless)
    config = shared_config(windows, host_slots=host_slots)
    with Rank(store, config, codec=codec) as first, Rank(store, config, codec=codec) as second:
        assert first.run(TEXT) == 0
        first.drain()
        assert second.run(TEXT) == 32 and second.num_computed == 1
        request = second.begin([*TEXT, 1])
        assert request.kv_cache.match_info.lossy_tokens == (0 if is_lossless else 33), "of all in and behind what was taken"
        second.load(request)
        second.compute(request, [*TEXT, 1])


@pytest.mark.parametrize("is_lossless", [True, False])
@pytest.mark.parametrize("windows", [(None,), (None, 8), ()])
def test_recurrent_states_are_packed_too(windows: tuple[int | None, ...], is_lossless: bool) -> None:
    def make_rank(store: MemoryStore) -> Rank:
        config = hybrid_config(windows, quota=1 << 18, max_util_for_resume=1.0, snapshot_policy=SnapshotPolicy(every_num_blocks=1))
        return Rank(store, config, codec=ReversingCodec(1, is_lossless))

    store = MemoryStore()
    with make_rank(store) as writer:
        writer.run(TEXT)
        writer.drain()
    with make_rank(store) as reader:
        assert reader.run([*TEXT, 7, 7]) == 32
        with reader.manager.create_kv_cache(input_tokens=[*TEXT[:32], 1, 2], exact=True) as kv_cache:
            assert kv_cache.num_committed_tokens == (32 if is_lossless else 0)


@pytest.mark.parametrize("host_slots", [0, 12])
def test_what_was_evicted_was_packed_once(host_slots: int) -> None:
    """From level 0 by the codec, from host memory as it is."""
    store, codec = MemoryStore(), ReversingCodec(5)
    with Rank(store, shared_config(gpu_slots=12, host_slots=host_slots), write_policy="eviction", codec=codec) as writer:
        for text in OTHERS:
            writer.run(text)
            writer.drain()
        assert writer.level.statistics.dropped_pages == 0
        assert writer.run([*OTHERS[0], 5]) == 16
        writer.drain()
    with Rank(store, shared_config(gpu_slots=200), write_policy="off", codec=codec) as reader:
        assert reader.run([*OTHERS[1], 1]) == 16


def test_each_codec_has_names_of_its_own() -> None:
    """With no codec, with one, and with the same one of other parameters: three spaces of names in one store."""
    store = MemoryStore()
    for number, codec in enumerate([None, ReversingCodec(3), ReversingCodec(4)]):
        with Rank(store, codec=codec) as writer:
            assert writer.run(TEXT) == 0
            writer.drain()
        assert len({key.split(b"/")[1] for key in store.keys()}) == number + 1
        with Rank(store, codec=codec) as reader:
            assert reader.run(TEXT) == 32


def test_an_exact_request_takes_nothing_that_was_packed_with_loss() -> None:
    store = MemoryStore()
    with Rank(store, codec=ReversingCodec(3, False)) as first, Rank(store, codec=ReversingCodec(3, False)) as second:
        first.run(TEXT)
        first.drain()
        assert second.run(TEXT, exact=True) == 0 and second.num_computed == len(TEXT)
        second.forget()
        assert second.run(TEXT) == 32
        assert second.run(TEXT, exact=True) == 0
        # Computed by the exact request, they took the place of those from the store.
        with second.manager.create_kv_cache(input_tokens=TEXT, exact=True) as kv_cache:
            assert kv_cache.num_committed_tokens == len(TEXT) and kv_cache.match_info.lossy_tokens == 0
        # A page that came from the store packed again comes back the same, so it may be stored.
        second.drain()


def test_a_journal_knows_what_was_packed_with_loss(tmp_path: Path) -> None:
    """It runs again without store and codec, and matches of exact requests are the same."""
    store = MemoryStore()
    path = tmp_path / "journal"
    with Rank(store, codec=ReversingCodec(3, False)) as first:
        first.run(TEXT)
        first.drain()
    with Rank(store, codec=ReversingCodec(3, False), journal=str(path)) as second:
        assert second.run(TEXT) == 32
        found: Any = second.begin([*TEXT, 1], exact=True)
        assert found.kv_cache.num_committed_tokens == 0
        found.kv_cache.close()
        digest = second.manager.state_digest()
    assert rerun(path, HostDevice(), check_invariants=True).digest == digest


class FailingCodec(ColdPageCodec):
    """What another codec does, but for calls that are made to fail."""

    def __init__(self) -> None:
        self._codec = ReversingCodec(3)
        self.failing = ""

    @property
    def identity(self) -> str:
        return self._codec.identity

    @property
    def is_lossless(self) -> bool:
        return True

    def cold_bytes(self, page: SlotDescVariant) -> int:
        return self._codec.cold_bytes(page)

    def encode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        if self.failing == "encode":
            raise OverflowError("encode does not want to")
        self._codec.encode(device, stream, page, hot_addresses, cold_addresses)

    def decode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        if self.failing == "decode":
            raise OverflowError("decode does not want to")
        self._codec.decode(device, stream, page, hot_addresses, cold_addresses)


def test_a_codec_that_raises_costs_hits_only() -> None:
    """What it does not pack is not stored; a sequence whose pages it does not unpack is closed, and the manager goes on."""
    store, codec = MemoryStore(), FailingCodec()
    with Rank(store, codec=codec) as first, Rank(store, codec=codec) as second:
        codec.failing = "encode"
        first.run(TEXT)
        first.drain()
        assert store.keys() == [] and first.level.statistics.dropped_pages == 8
        first.forget()
        codec.failing = ""
        first.run(TEXT)
        first.drain()
        codec.failing = "decode"
        request = second.begin(TEXT)
        with pytest.raises(OverflowError, match="decode does not want to"):
            second.load(request)
        assert not request.kv_cache.is_active
        request.cancel_remote()
        codec.failing = ""
        assert second.run(TEXT) == 32
