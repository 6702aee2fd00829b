"""What one manager has computed another one takes from the shared level, byte for byte, through one door; ranks decide alike."""

import pickle
from pathlib import Path

import pytest
from shared_models import Rank, agree, shared_config, wait_until

from kv_cache_manager_v2 import HostDevice, LogicError, ModelId, ReuseScope
from kv_cache_manager_v2.shared import MemoryStore, ObjectStore, RemoteReport, SharedLevel, StoreError
from kv_cache_manager_v2.testing.journal_rerun import rerun

TEXT = list(range(100, 133))  # 8 whole blocks and the token that the model must compute


@pytest.mark.parametrize("windows", [(None,), (None, 8), (8,), (4, None, 20)])
@pytest.mark.parametrize("host_slots", [0, 64])
def test_what_one_has_computed_another_takes(windows: tuple[int | None, ...], host_slots: int) -> None:
    store = MemoryStore()
    config = shared_config(windows, host_slots=host_slots)
    with Rank(store, config) as first, Rank(store, config) as second:
        assert first.run(TEXT) == 0
        first.drain()
        assert second.run(TEXT) == 32
        assert second.num_computed == 1
        # What was taken is published: the next prompt finds it without the store.
        request = second.begin(TEXT + [1])
        assert request.kv_cache.num_committed_tokens >= 32
        second.load(request)
        second.compute(request, TEXT + [1])


def test_only_what_differs_is_computed() -> None:
    store = MemoryStore()
    with Rank(store) as first, Rank(store) as second:
        first.run(TEXT)
        first.drain()
        assert second.run(TEXT[:18] + [7] * 9) == 16
        # Of the whole prompt, 18 tokens match here, the last two in the middle of a block.
        request = second.begin(TEXT)
        assert request.kv_cache.num_committed_tokens == 18
        assert second.load(request) == 14
        second.compute(request, TEXT)
        second.drain()
        first.forget()
        assert first.run(TEXT[:18] + [7] * 9 + [8]) == 24


def test_a_prompt_longer_than_the_staging_slots_comes_in_turns() -> None:
    store = MemoryStore()
    text = [(7 * position) % 1000 for position in range(401)]
    config = shared_config(gpu_slots=256)
    with Rank(store, config) as first, Rank(store, config, load_bytes=7 * 4096) as second:
        first.run(text)
        first.drain()
        assert second.run(text) == 400
        assert second.num_computed == 1


def test_a_look_up_is_not_known_before_it_is_admitted() -> None:
    store = MemoryStore()
    with Rank(store) as first, Rank(store) as second:
        first.run(TEXT)
        first.drain()
        request = second.begin(TEXT)
        seen = [request.remote_tokens]
        assert not request.fetch()
        wait_until(lambda: len(second.level.remote_report().answers) > 0)
        seen.append(request.remote_tokens)
        report = second.level.remote_report()
        assert second.level.remote_report() == report == pickle.loads(pickle.dumps(report))
        second.level.admit(report)
        seen.append(request.remote_tokens)
        second.level.admit(report)  # again: nothing happens
        seen.append(request.remote_tokens)
        assert seen == [None, None, 32, 32] and request.arrived_tokens is None
        with pytest.raises(LogicError, match="take"):
            request.take()
        second.load(request)
        second.compute(request, TEXT)


def test_ranks_whose_stores_differ_decide_alike() -> None:
    """One rank's store has lost the end of the prefix, and then a page in the middle between look-up and load."""
    stores = [MemoryStore(), MemoryStore()]
    for store in stores:
        with Rank(store) as writer:
            writer.run(TEXT)
            writer.drain()
    keys = [key for key in stores[1].keys() if b"/g0/" in key]
    stores[1].discard(keys[-1])
    ranks = [Rank(store) for store in stores]
    requests = [rank.begin(TEXT) for rank in ranks]
    while any(request.remote_tokens is None for request in requests):
        agree(*ranks)
    assert [request.remote_tokens for request in requests] == [28, 28]
    stores[0].discard([key for key in stores[0].keys() if b"/g0/" in key][4])
    for request in requests:
        assert request.kv_cache.resume() and request.fetch()
    while any(request.arrived_tokens is None for request in requests):
        agree(*ranks)
    assert [request.arrived_tokens for request in requests] == [16, 16]
    assert all([request.take() for request in requests])
    assert [request.remote_tokens for request in requests] == [0, 0]
    for rank, request in zip(ranks, requests, strict=True):
        rank.compute(request, TEXT)
    assert ranks[0].manager.state_digest() == ranks[1].manager.state_digest()
    for rank in ranks:
        rank.end()


def test_a_report_that_says_too_much_is_refused() -> None:
    with Rank(MemoryStore()) as writer:
        store = MemoryStore()
        with Rank(store) as full:
            full.run(TEXT)
            full.drain()
            known = full.begin([1, *TEXT])
            full.load(known)
            full.compute(known, [1, *TEXT])
        request = writer.begin(TEXT)
        wait_until(lambda: len(writer.level.remote_report().answers) > 0)
        (answer,) = writer.level.remote_report().answers
        more = RemoteReport((type(answer)(answer.request, answer.step, ((1, 8),), True),))
        with pytest.raises(LogicError, match="reduce"):
            writer.level.admit(more)
        assert request.remote_tokens is None
        writer.load(request)
        writer.compute(request, TEXT)


def test_a_journal_has_all_of_it(tmp_path: Path) -> None:
    """Without the store: what was taken is calls on the manager, and the rerun decides the same."""
    store = MemoryStore()
    path = tmp_path / "journal"
    with Rank(store) as first:
        first.run(TEXT)
        first.drain()
    with Rank(store, journal=str(path)) as second:
        second.run(TEXT)
        second.run(TEXT[:10] + [5] * 10)
        digest = second.manager.state_digest()
        second.manager.flush_journal()
    assert rerun(path, HostDevice(), check_invariants=True).digest == digest


def test_nothing_foreign_is_found() -> None:
    store = MemoryStore()
    other_layers = shared_config((None, 8))
    with Rank(store) as writer:
        writer.run(TEXT)
        writer.run(TEXT, ReuseScope(salt="one tenant"))
        writer.drain()
    for model_id in (ModelId("another"), ModelId("a model", "r2"), ModelId("a model", salt_domain="x"), ModelId("a model", heads=(0, 1))):
        with Rank(store, model_id=model_id) as rank:
            assert rank.run(TEXT) == 0
    with Rank(store, other_layers) as rank:
        assert rank.run(TEXT) == 0
    with Rank(store) as rank:
        assert rank.run(TEXT, ReuseScope(salt="another tenant")) == 0
        assert rank.run(TEXT, ReuseScope(lora_id=3)) == 0
        assert rank.run(TEXT, ReuseScope(salt="one tenant")) == 32


def test_digests_are_shared_in_full() -> None:
    """Multimodal tokens: by their digests, however the two processes number them."""
    store = MemoryStore()
    image = [bytes([number]) * 32 for number in range(9)]
    text: list[int | bytes] = [5, 6, *image[:6], 7, 8, 9, 10, 11]
    with Rank(store) as first, Rank(store) as second:
        reversed_image: list[int | bytes] = [1, *image[::-1], 2]
        first.manager.create_kv_cache(None, text).close()
        second.manager.create_kv_cache(None, reversed_image).close()
        kv_cache = first.manager.create_kv_cache(None, text[:-1])
        request = first.level.look_up(kv_cache)
        first.wait(lambda: request.remote_tokens == 0)
        assert kv_cache.resume() and kv_cache.resize(12, 0)
        kv_cache.commit(text[:-1])
        assert request.store() == 3
        first.drain()
        kv_cache.close()
        found = second.level.look_up(second.manager.create_kv_cache(None, text[:-1]))
        assert second.load(found) == 12
        found.kv_cache.close()
        changed: list[int | bytes] = [5, 6, *image[:5], b"another" * 4, 7, 8, 9, 10]
        found = second.level.look_up(second.manager.create_kv_cache(None, changed))
        second.wait(lambda: found.remote_tokens is not None)
        assert found.remote_tokens == 0
        found.kv_cache.close()


@pytest.mark.parametrize("policy", ["commit", "second_hit", "off"])
def test_the_write_policy_says_what_is_stored(policy: str) -> None:
    store = MemoryStore()
    with Rank(store, write_policy=policy) as rank:
        rank.run(TEXT)
        rank.drain()
        assert len(store.keys()) == (8 if policy == "commit" else 0)
        rank.run(TEXT[:20] + [7] * 10)
        rank.drain()
        assert len(store.keys()) == {"commit": 10, "second_hit": 5, "off": 0}[policy]


@pytest.mark.parametrize("position", [0, 9, 30, 70, 120, 200, 260, 319])
def test_a_wrong_byte_is_a_miss(position: int) -> None:
    """In the head, the tokens, the checksums or the page: the record is removed, and stored anew."""
    store = MemoryStore()
    with Rank(store) as first, Rank(store) as second:
        first.run(TEXT)
        first.drain()
        key = store.keys()[2]
        value = bytearray(store.get(key) or b"")
        assert len(value) == 320
        value[position] ^= 4
        store.put(key, bytes(value))
        assert second.run(TEXT) == 8
        second.drain()
        assert second.level.statistics.corrupt_pages == 1
        second.forget()
        assert second.run(TEXT) == 32


def test_records_under_the_names_of_others_are_misses() -> None:
    """Each page under its neighbour's key: all checksums are right, the tokens are not."""
    store = MemoryStore()
    with Rank(store) as first, Rank(store) as second:
        first.run(TEXT)
        first.drain()
        keys = store.keys()
        values = [store.get(key) or b"" for key in keys]
        for key, value in zip(keys, values[1:] + values[:1], strict=True):
            store.put(key, value)
        assert second.run(TEXT) == 0


def test_a_sequence_may_go_its_own_way() -> None:
    """Given up, computed all the same, or closed in the middle: at each point, and no staging slot is lost."""
    store = MemoryStore()
    with Rank(store) as first:
        first.run(TEXT)
        first.drain()
    for point in range(5):
        with Rank(store, write_policy="off") as rank:
            num_free = rank.level._loads.num_free
            for way in ("give up", "close", "compute"):
                rank.forget()
                request = rank.begin(TEXT)
                assert request.kv_cache.resume()
                if point >= 1:
                    rank.wait(lambda: request.remote_tokens is not None)
                if point >= 2:
                    assert request.fetch()
                if point >= 3:
                    rank.wait(lambda: request.arrived_tokens is not None)
                if point >= 4:
                    assert request.take()
                rank.level.check_invariants()
                if way == "give up":
                    request.cancel_remote()
                    request.cancel_remote()
                    assert request.remote_tokens == 0 and not request.fetch()
                if way == "close":
                    request.kv_cache.close()
                else:
                    rank.compute(request, TEXT)
                rank.level.check_invariants()
                rank.wait(lambda: rank.level._loads.num_free == num_free)


def test_taking_needs_pages_and_says_so() -> None:
    store = MemoryStore()
    with Rank(store) as first:
        first.run(TEXT)
        first.drain()
    with Rank(store, shared_config(gpu_slots=9)) as rank:
        holder = rank.manager.create_kv_cache()
        assert holder.resume() and holder.resize(8)
        request = rank.begin(TEXT)
        rank.wait(lambda: request.remote_tokens == 32)
        assert request.kv_cache.resume() and request.fetch()
        rank.wait(lambda: request.arrived_tokens == 32)
        assert not request.take()
        assert rank.manager.last_refusal is not None
        holder.close()
        assert request.take()
        rank.compute(request, TEXT)


def test_misuse_is_named() -> None:
    store = MemoryStore()
    with Rank(store) as rank, Rank(store) as other:
        with pytest.raises(ValueError, match="another manager"):
            rank.level.look_up(other.manager.create_kv_cache(None, TEXT))
        for kv_cache in other.manager.open_kv_caches:
            kv_cache.close()
        request = rank.begin(TEXT)
        with pytest.raises(LogicError, match="ACTIVE"):
            request.store()
        request.kv_cache.close()
        manager = rank.manager
        for settings, message in (
            ({"write_policy": "always"}, "second_hit"),
            ({"load_bytes": 100}, "load_bytes"),
            ({"store_bytes": 100}, "store_bytes"),
            ({"num_load_threads": 0}, "num_load_threads"),
        ):
            with pytest.raises(ValueError, match=message):
                SharedLevel(manager, store, ModelId("m"), **settings)
        level = SharedLevel(manager, store, ModelId("m"), load_bytes=1 << 16, store_bytes=1 << 16)
        level.close()
        level.close()
        with pytest.raises(LogicError, match="closed"):
            level.remote_report()


def test_a_shared_folder_serves_as_a_store(tmp_path: Path) -> None:
    """Through obstore: cold, but the same pages; a record that is cut is a miss."""
    local = pytest.importorskip("obstore.store")
    with Rank(ObjectStore(local.LocalStore(str(tmp_path)))) as first, Rank(ObjectStore(local.LocalStore(str(tmp_path)))) as second:
        first.run(TEXT)
        first.drain()
        assert second.run(TEXT) == 32
        second.forget()
        records = [path for path in tmp_path.rglob("g0/*") if path.is_file()]
        assert len(records) == 8
        for record in records:
            record.write_bytes(record.read_bytes()[:-1])
        assert second.run(TEXT) == 0
        second.drain()
    with pytest.raises(TypeError, match="LocalStore"):
        ObjectStore(str(tmp_path))
    # One line for the log, though obstore adds its own structures.
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError) as caught:
        ObjectStore(local.LocalStore(str(tmp_path)), "cold").connect("cold").store([b"file/key"], [[memoryview(b"1")]])
    assert str(caught.value).startswith("the store cold fails: ") and "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    (tmp_path / "kvcm" / "format").write_bytes(b"KVCMSHR9")
    with pytest.raises(ValueError, match="KVCMSHR9"):
        Rank(ObjectStore(local.LocalStore(str(tmp_path))))
