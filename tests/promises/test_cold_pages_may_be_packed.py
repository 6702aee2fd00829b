"""With a codec the levels below level 0 hold packed pages: more of them in the same bytes, and what comes back is as the codec says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    CacheTier,
    ColdPageCodec,
    CopyBatch,
    Device,
    EvictionPolicy,
    ExternalCacheTierConfig,
    ExternalDevice,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    PageMoveError,
    SlotDescVariant,
    plan_capacity,
)
from kv_cache_manager_v2.codecs.float8_codec import Float8Codec
from kv_cache_manager_v2.testing import SimulatedDevice
from kv_cache_manager_v2.testing.journal_reader import JournalError
from kv_cache_manager_v2.testing.journal_rerun import RerunMismatch, rerun
from kv_cache_manager_v2.testing.reversing_codec import ReversingCodec

HEAD = 16
BUFFER_BYTES = 4 * TOKENS_PER_BLOCK * HEAD
"""Of float32 keys, or values."""
PACKED_BYTES = 144
"""Two buffers of 64 numbers: 2 * (2 + 64) bytes, filled up to a multiple of 16."""


def float_config(gpu_pages: int, host_bytes: int, **settings: Any) -> KVCacheManagerConfig:
    layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", BUFFER_BYTES), BufferConfig("value", BUFFER_BYTES)])
    gpu = GpuCacheTierConfig(gpu_pages * 2 * BUFFER_BYTES, EvictionPolicy.LRU)
    return KVCacheManagerConfig(TOKENS_PER_BLOCK, [gpu, HostCacheTierConfig(host_bytes, EvictionPolicy.LRU)], [layer], **settings)


def float8() -> Float8Codec:
    return Float8Codec("float32", TOKENS_PER_BLOCK * HEAD)


def pages_of(manager: KVCacheManager, kv_cache: KVCache, role: str) -> Any:
    """The pages of an active sequence, as rows of float32: a copy, and the pool and the rows that it was taken from."""
    pool = np.asarray(manager.pool_view(LayerId(0), role, dtype="float32"))
    rows = manager.get_page_index_converter(LayerId(0), role)(kv_cache.get_base_page_indices(0))
    return pool, list(rows)


def write(manager: KVCacheManager, kv_cache: KVCache, seed: int) -> dict[str, Any]:
    """Random keys and values in all pages of an active sequence."""
    random = np.random.default_rng(seed)
    written = {}
    for role in ("key", "value"):
        pool, rows = pages_of(manager, kv_cache, role)
        written[role] = random.standard_normal((len(rows), TOKENS_PER_BLOCK * HEAD)).astype(np.float32)
        pool[rows] = written[role]
    return written


def read(manager: KVCacheManager, kv_cache: KVCache) -> dict[str, Any]:
    found = {}
    for role in ("key", "value"):
        pool, rows = pages_of(manager, kv_cache, role)
        found[role] = pool[rows].copy()
    return found


def test_the_same_bytes_hold_more_pages_and_the_plan_says_so() -> None:
    """20 packed pages where 5 of 512 bytes are; all that tells of slots says the same."""
    config = float_config(4, 20 * PACKED_BYTES)
    assert 20 * PACKED_BYTES // (2 * BUFFER_BYTES) == 5
    with KVCacheManager(config, device=HostDevice()) as plain:
        assert plain.cold_page_codec is None and plain.get_storage_statistics(1)[0].total == 5
    codec = float8()
    plan = plan_capacity(config, cold_page_codec=codec)
    with KVCacheManager(config, device=HostDevice(), cold_page_codec=codec) as manager:
        assert manager.cold_page_codec is codec
        for level, (slots, sizes) in enumerate([(4, (2 * BUFFER_BYTES,)), (20, (PACKED_BYTES,))]):
            counts = manager.get_storage_statistics(level)[0]
            group = plan.levels[level].pool_groups[0]
            assert counts.total == group.num_slots == slots
            assert counts.slot_sizes == sizes and group.slot_bytes == sum(sizes)
            assert manager.describe()["levels"][level]["pool_groups"][0]["slot_bytes"] == list(sizes)


def test_what_comes_back_is_within_the_stated_error_however_often() -> None:
    """Three sequences of 3 pages take turns on 4 slots: each is offloaded and onboarded again and again, and changes once."""
    with KVCacheManager(float_config(4, 20 * PACKED_BYTES), device=HostDevice(), cold_page_codec=float8()) as manager:
        handles, written = [], []
        for number in range(3):
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume() and kv_cache.resize(3 * TOKENS_PER_BLOCK)
            written.append(write(manager, kv_cache, number))
            kv_cache.suspend()
            handles.append(kv_cache)
        packed: list[dict[str, Any]] = [{role: values.copy() for role, values in pages.items()} for pages in written]
        for _ in range(4):
            for kv_cache, before, once in zip(handles, written, packed):
                assert kv_cache.resume()
                for role, found in read(manager, kv_cache).items():
                    values = before[role]
                    most = np.abs(values).max(axis=1, keepdims=True)
                    assert (np.abs(found - values) <= np.maximum(np.abs(values) / 16, most / 229376)).all()
                    was_packed = (once[role] != values).any(axis=1)
                    assert (found[was_packed] == once[role][was_packed]).all()
                    once[role] = found
                kv_cache.suspend()
        assert all((once[role] != before[role]).any() for once, before in zip(packed, written) for role in before)
        (moved,) = [one for one in manager.get_statistics().transfers if one.source_level == 1]
        assert moved.bytes == moved.blocks * PACKED_BYTES
        for kv_cache in handles:
            kv_cache.close()


@pytest.mark.parametrize("write_policy", ["back", "through"])
@pytest.mark.parametrize("host_slots", [5, 20])
def test_lossless_codecs_keep_every_byte(host_slots: int, write_policy: str) -> None:
    """Two windows and full attention share a pool group and pack to pages of their own sizes, of 67 to 69 bytes; in the bytes of
    5 slots are 4 of them, and pages swap."""
    config = tiered_config(8, [("host", host_slots)], windows=(None, 6, 9), write_policy=write_policy)
    for seed in range(4):
        with Bench(config, SimulatedDevice(seed), codec=ReversingCodec(3)) as bench:
            held = [bench.suspended(number, 2 * TOKENS_PER_BLOCK, commit=number == 1) for number in range(2 if host_slots == 5 else 4)]
            for _ in range(3):
                for kv_cache in held:
                    assert kv_cache.resume()
                    bench.check(kv_cache)
                    kv_cache.suspend()
            assert bench.num_copied(1, 0) > 0


def test_pages_swap_where_all_levels_are_full() -> None:
    """4 + 4 slots hold two sequences of 4 pages: each comes up only as the other one sinks."""
    for seed, tier in enumerate(["host", "disk"] * 3):
        with Bench(tiered_config(4, [(tier, 4)]), SimulatedDevice(seed), codec=ReversingCodec(0)) as bench:
            held = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in range(2)]
            for _ in range(3):
                for kv_cache in held:
                    assert kv_cache.resume()
                    bench.check(kv_cache)
                    kv_cache.suspend()


class TurningCodec(ColdPageCodec):
    """In plain Python: a page is its pools, one after another, and each call may be made to fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing = ""

    @property
    def identity(self) -> str:
        return "turning/1"

    @property
    def is_lossless(self) -> bool:
        return True

    def cold_bytes(self, page: SlotDescVariant) -> int:
        return sum(page.slot_size_list)

    def encode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        self._copy("encode", device, stream, page, hot_addresses, cold_addresses)

    def decode(
        self, device: Device, stream: int, page: SlotDescVariant, hot_addresses: Sequence[Sequence[int]], cold_addresses: Sequence[int]
    ) -> None:
        self._copy("decode", device, stream, page, hot_addresses, cold_addresses)

    def _copy(
        self, call: str, device: Device, stream: int, page: SlotDescVariant, hot: Sequence[Sequence[int]], cold: Sequence[int]
    ) -> None:
        self.calls.append(call)
        begin = 0
        for pool, num_bytes in enumerate(page.slot_size_list):
            tiers = (CacheTier.HOST_MEM, CacheTier.GPU_MEM)
            batch = CopyBatch(*(tiers if call == "encode" else tiers[::-1]), num_bytes)
            for high, low in zip(hot[pool], cold, strict=True):
                batch.add(*((low + begin, high) if call == "encode" else (high, low + begin)))
            device.copy_batch(stream, batch)
            begin += num_bytes
        if self.failing == call:
            raise OverflowError(f"{call} does not want to")


@pytest.mark.parametrize("failing", ["encode", "decode"])
@pytest.mark.parametrize("num_slots", [4, 20])
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_codec_that_raises_loses_no_page(tier: str, num_slots: int, failing: str) -> None:
    """Also in the midst of a swap, when a page has been written over."""
    codec = TurningCodec()
    with Bench(tiered_config(4, [(tier, num_slots)]), SimulatedDevice(5), codec=codec) as bench:
        held = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in range(2)]
        codec.failing = failing
        with pytest.raises(PageMoveError, match=f"{failing} does not want to"):
            held[0].resume()
        codec.failing = ""
        bench.manager.check_invariants()
        for kv_cache in held:
            assert kv_cache.resume()
            bench.check(kv_cache)
            kv_cache.suspend()
        assert {"encode", "decode"} == set(codec.calls)


def test_levels_between_memory_copy_packed_pages_as_they_are() -> None:
    """Three levels: what goes from the second to the third is not packed again."""
    codec = TurningCodec()
    with Bench(tiered_config(4, [("host", 4), ("host", 8)]), SimulatedDevice(2), codec=codec) as bench:
        held = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in range(4)]
        assert bench.num_copied(1, 2) > 0
        num_down = bench.num_copied(0, 1) + bench.num_copied(0, 2)
        assert len(codec.calls) <= num_down
        for kv_cache in held:
            assert kv_cache.resume()
            bench.check(kv_cache)
            kv_cache.suspend()


@pytest.mark.parametrize("device_of", [HostDevice, lambda: SimulatedDevice(3)], ids=["host", "simulated"])
def test_pages_pass_to_and_from_a_disk_in_parts(device_of: Any, tmp_path: Path) -> None:
    """20 pages at a time, through 8 staging slots; what lies on the disk is packed."""
    codec = TurningCodec()
    with Bench(tiered_config(24, [("disk", 60)], str(tmp_path)), device_of(), codec=codec) as bench:
        held = [bench.suspended(number, 20 * TOKENS_PER_BLOCK) for number in range(3)]
        for _ in range(2):
            for kv_cache in held:
                assert kv_cache.resume()
                bench.check(kv_cache)
                kv_cache.suspend()
        assert bench.num_copied(1, 0) >= 60 and codec.calls.count("decode") >= 9


def test_a_level_of_packed_pages_can_be_resized() -> None:
    with KVCacheManager(float_config(4, 20 * PACKED_BYTES), device=HostDevice(), cold_page_codec=float8()) as manager:
        assert manager.resize(1, 7 * PACKED_BYTES)
        assert manager.get_storage_statistics(1)[0].total == 7
        with pytest.raises(ValueError, match=f"at least {PACKED_BYTES} are needed: 1 slot of {PACKED_BYTES} bytes"):
            manager.resize(1, PACKED_BYTES - 1)


def lossy_manager(gpu_pages: int = 4, **settings: Any) -> KVCacheManager:
    """Its host level has 40 packed pages."""
    return KVCacheManager(float_config(gpu_pages, 40 * PACKED_BYTES, **settings), device=HostDevice(), cold_page_codec=float8())


def serve(manager: KVCacheManager, tokens: Sequence[int], seed: int, exact: bool = False) -> tuple[int, int]:
    """Reuse what there is of a prompt, write and commit the rest, and close: (matched tokens, of which lossy)."""
    with manager.create_kv_cache(input_tokens=tokens, exact=exact) as kv_cache:
        found = kv_cache.num_committed_tokens
        assert kv_cache.resume() and kv_cache.resize(len(tokens)), manager.last_refusal
        random = np.random.default_rng(seed)
        for role in ("key", "value"):
            pool, rows = pages_of(manager, kv_cache, role)
            values = random.standard_normal((len(rows), TOKENS_PER_BLOCK * HEAD)).astype(np.float32)
            for ordinal in range(-(-found // TOKENS_PER_BLOCK), len(rows)):
                pool[rows[ordinal]] = values[ordinal]
        kv_cache.commit(tokens[found:])
        return found, kv_cache.match_info.lossy_tokens


PROMPT = list(range(1, 13))
OTHERS = [list(range(100 * number, 100 * number + 12)) for number in range(2, 6)]


def test_pages_that_were_packed_with_loss_are_marked_until_they_are_computed_again() -> None:
    """A prompt of 3 blocks leaves level 0, of 4 slots, block by block; the match says from where on it was packed, also when it is back."""
    with lossy_manager() as manager:
        assert serve(manager, PROMPT, 1) == (0, 0)
        assert serve(manager, PROMPT, 1) == (12, 0), "it is on level 0 still"
        assert serve(manager, OTHERS[0][:4], 2) == (0, 0)
        assert serve(manager, OTHERS[0][4:8], 2) == (0, 0)
        with manager.create_kv_cache(input_tokens=PROMPT, exact=True) as kv_cache:
            assert kv_cache.num_committed_tokens == 8 and kv_cache.match_info.lossy_tokens == 0, "the leaf has left"
            child = kv_cache.fork() if kv_cache.resume() else kv_cache
            assert child.rewind(8) == 8, "a fork is as exact"
            child.close()
        for other in OTHERS[1:3]:
            serve(manager, other, 3)
        assert serve(manager, PROMPT, 1) == (12, 12), "all of it was below, and is back"
        assert serve(manager, PROMPT, 1) == (12, 12)
        assert manager.probe_reuse(None, PROMPT) == 12
        # Computed anew, its pages take the place of those that are lossy and that no running sequence has locked.
        assert serve(manager, PROMPT, 1, exact=True) == (0, 0)
        assert serve(manager, PROMPT, 1, exact=True) == (12, 0)
        manager.check_invariants()


def test_an_exact_request_reads_what_was_written_byte_for_byte() -> None:
    with lossy_manager() as manager:
        with manager.create_kv_cache(input_tokens=PROMPT) as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(12)
            written = write(manager, kv_cache, 5)
            kv_cache.commit(PROMPT)
        for other in OTHERS[:3]:
            serve(manager, other, 3)
        for exact, tokens in ((False, 12), (True, 0)):
            with manager.create_kv_cache(input_tokens=PROMPT, exact=exact) as kv_cache:
                assert kv_cache.num_committed_tokens == tokens
                assert kv_cache.resume() and kv_cache.resize(12)
                if exact:
                    write(manager, kv_cache, 5)
                    kv_cache.commit(PROMPT)
                found = read(manager, kv_cache)
                assert all((found[role] == written[role]).all() == exact for role in written)


def test_what_goes_on_in_a_copy_of_a_lossy_page_is_lossy() -> None:
    """Tokens 5 and 6 are in a partial block, which was below level 0: what computes 7 and 8 behind them writes into a copy of it."""
    with lossy_manager() as manager:
        serve(manager, PROMPT[:6], 1)
        for other in OTHERS[:3]:
            serve(manager, other, 3)
        assert serve(manager, PROMPT[:6], 1) == (6, 6)
        assert serve(manager, PROMPT[:8], 1) == (6, 6)
        found = manager.describe()["tree"][0]["blocks"]
        (page,) = [block["pages"][0] for block in found if block["tokens"] == [5, 6, 7, 8]]
        assert page["level"] == 0 and page["is_lossy"]


def test_lossless_codecs_and_no_codec_leave_exact_requests_alone() -> None:
    for codec in (None, ReversingCodec(3)):
        with Bench(tiered_config(4, [("host", 20)]), SimulatedDevice(4), codec=codec) as bench:
            for number in (7, 8):
                bench.suspended(number, 3 * TOKENS_PER_BLOCK, commit=True).close()
            again = bench.manager.create_kv_cache(input_tokens=bench.texts[7], exact=True)
            assert again.num_committed_tokens == 12 and again.match_info.lossy_tokens == 0


def test_pages_behind_a_window_do_not_end_an_exact_match() -> None:
    """Full attention and a window of 4 tokens: of 3 blocks that reads the last. The pages of the others leave level 0, of 8, first."""
    codec = ReversingCodec(0, is_lossless=False)
    with Bench(tiered_config(8, [("host", 40)], windows=(None, 4)), SimulatedDevice(6), codec=codec) as bench:
        bench.suspended(7, 3 * TOKENS_PER_BLOCK, commit=True).close()
        bench.suspended(8, 2 * TOKENS_PER_BLOCK, commit=True).close()
        blocks = [block for block in bench.manager.describe()["tree"][0]["blocks"] if block["tokens"][0] < 8000]
        assert [["is_lossy" in page for page in block["pages"]] for block in blocks] == [[False, True], [False, True], [False, False]]
        again = bench.manager.create_kv_cache(input_tokens=bench.texts[7], exact=True)
        assert again.num_committed_tokens == 12 and again.match_info.lossy_tokens == 0


def test_a_journal_names_the_codec_and_is_repeated_without_it(tmp_path: Path) -> None:
    """Slots below level 0 are those of packed pages, and exact requests refuse what the codec has packed; its code is not needed."""
    path = tmp_path / "journal"
    with KVCacheManager(float_config(4, 7 * PACKED_BYTES), device=HostDevice(), cold_page_codec=float8(), journal=path) as manager:
        for number in range(12):
            serve(manager, [*PROMPT[:4], *OTHERS[number % 4]], number, exact=number % 3 == 0)
        digest = manager.state_digest()
    again = rerun(path, HostDevice(), check_invariants=True)
    assert again.digest == digest and again.num_calls > 40
    data = path.read_bytes()
    assert data.count(float8().identity.encode()) == 1
    path.write_bytes(data.replace(b'"cold_bytes": [144]', b'"cold_bytes": [160]'))
    with pytest.raises((RerunMismatch, JournalError), match="sequence|digest|result|call"):
        rerun(path, HostDevice())
    path.write_bytes(data.replace(b'"cold_bytes"', b'"cold_bites"'))
    with pytest.raises(JournalError, match="describes no codec"):
        rerun(path, HostDevice())


def refuse(text: str, config: KVCacheManagerConfig, codec: Any, error: type[Exception] = ValueError, **arguments: Any) -> None:
    with pytest.raises(error, match=text):
        KVCacheManager(config, cold_page_codec=codec, **arguments)


def test_what_a_codec_does_not_reach_is_refused_by_name() -> None:
    config = float_config(4, 1 << 16)
    external = KVCacheManagerConfig(
        TOKENS_PER_BLOCK, [ExternalCacheTierConfig([8])], config.layers, enable_partial_reuse=False, allow_seq_rebasing=False
    )
    refuse("the engine owns that memory", external, float8(), device=ExternalDevice())
    refuse("cold_page_codec must be a ColdPageCodec or None, not str", config, "float8", TypeError)
    refuse("not the class Float8Codec; make one", config, Float8Codec, TypeError)
    # A buffer has 64 numbers: no run of 48.
    refuse("give another number, or roles without it", config, Float8Codec("float32", 48))
    refuse(r"Float8Codec.roles has 'keys', and no layer has such a buffer; the roles there are \['key', 'value'\]", config,
           Float8Codec("float32", 16, ["key", "keys"]))  # fmt: skip
    with pytest.raises(ValueError, match=r"Float8Codec.roles has 'keys'"):
        plan_capacity(config, cold_page_codec=Float8Codec("float32", 16, ["keys"]))


class LyingCodec(TurningCodec):
    """Says of a page what it is told."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def cold_bytes(self, page: SlotDescVariant) -> int:
        answer: int = self.answer
        return answer


class NamelessCodec(TurningCodec):
    @property
    def identity(self) -> NoReturn:
        raise RuntimeError("no name today")


class RolesCodec(TurningCodec):
    """Says that it packs what it is told."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    @property
    def roles(self) -> Any:
        return self.answer


def test_answers_that_none_may_give_are_named() -> None:
    config = float_config(4, 1 << 16)
    for answer in (0, -1, 1 << 70):
        refuse(r"LyingCodec.cold_bytes\(\) of layer group 0", config, LyingCodec(answer))
    refuse("no name today", config, NamelessCodec(), RuntimeError)
    with pytest.raises(TypeError):
        KVCacheManager(config, cold_page_codec=LyingCodec("many"))
    for wrong, text in (("key", "must be a sequence, not str"), ([7], "one of RolesCodec.roles must be a str"), (7, "RolesCodec.roles")):
        refuse(text, config, RolesCodec(wrong), TypeError)
