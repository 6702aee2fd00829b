"""What was published to a durable level is found by the next process, byte for byte; what is torn, foreign or stale is a miss."""

import errno
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from durable_models import PROMPTS, SLOT_BYTES, SYSTEM, TOKENS_PER_BLOCK, Process, durable_config, next_process
from lossy_files import LossyDisk

from kv_cache_manager_v2 import (
    CacheTierConfig,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManager,
    LogicError,
    ModelId,
    ReuseScope,
)
from kv_cache_manager_v2.config.learned_prior import NUM_PRIOR_WEIGHTS, encode_prior
from kv_cache_manager_v2.testing import SimulatedDevice
from kv_cache_manager_v2.testing.journal_rerun import rerun
from kv_cache_manager_v2.testing.reversing_codec import ReversingCodec


@pytest.mark.parametrize("host_slots", [0, 12], ids=["gpu and disk", "host memory between"])
def test_a_restart_finds_what_was_published(tmp_path: object, host_slots: int) -> None:
    config = durable_config(str(tmp_path), host_slots=host_slots)
    first = Process(config)
    assert [first.run(text) for text in PROMPTS] == [0, 20, 20, 20, 20]
    first.end()
    for restart in range(3):
        again = Process(config)
        for text in PROMPTS:
            assert again.manager.probe_reuse(None, text) == len(text)
            assert again.run(text + [7 + restart]) == len(text)
        again.end()


@pytest.mark.parametrize("host_slots", [0, 12], ids=["gpu and disk", "host memory between"])
def test_packed_pages_are_found_by_the_same_codec_alone(tmp_path: Path, host_slots: int) -> None:
    """Of another version, with other parameters, or without a codec the folder is another one: a miss, and never other bytes. Two windows
    share a pool group, and pack to pages of their own sizes."""
    config = durable_config(str(tmp_path), gpu_slots=32, host_slots=host_slots, disk_slots=160, windows=(None, 8))
    for codec, is_known in [
        (ReversingCodec(3), False), (ReversingCodec(3), True), (None, False), (ReversingCodec(5), False), (None, True),
        (ReversingCodec(3), True),
    ]:  # fmt: skip
        process = Process(config, codec=codec)
        for text in PROMPTS:
            assert process.manager.probe_reuse(None, text) == (len(text) if is_known else 0)
        assert [process.run(text) for text in PROMPTS] == [len(text) if is_known else 20 * (text != PROMPTS[0]) for text in PROMPTS]
        process.end()
    assert len(list(tmp_path.iterdir())) == 3


def test_what_a_lossy_codec_has_stored_is_lossy_after_a_restart(tmp_path: Path) -> None:
    config = durable_config(str(tmp_path))
    for _restart in range(2):
        process = Process(config, codec=ReversingCodec(0, is_lossless=False))
        assert process.run(PROMPTS[0]) in (0, len(PROMPTS[0]))
        process.end()
    again = Process(config, codec=ReversingCodec(0, is_lossless=False))
    for exact, tokens in ((False, len(PROMPTS[0])), (True, 0)):
        kv_cache = again.manager.create_kv_cache(input_tokens=PROMPTS[0], exact=exact)
        assert kv_cache.num_committed_tokens == kv_cache.match_info.lossy_tokens == tokens
        kv_cache.close()
    again.end()


def test_journals_of_packed_durable_levels_are_repeated(tmp_path: Path) -> None:
    config = durable_config(str(tmp_path), host_slots=6)
    for restart in range(2):
        process = Process(config, codec=ReversingCodec(3), journal=str(tmp_path / f"journal-{restart}"))
        assert [process.run(text) for text in PROMPTS] == [len(text) * restart or 20 * (text != PROMPTS[0]) for text in PROMPTS]
        process.end()
        assert rerun(tmp_path / f"journal-{restart}", HostDevice()).num_calls > 20


def test_a_packed_page_that_is_damaged_is_lost_and_computed_again(tmp_path: Path) -> None:
    config = durable_config(str(tmp_path))
    first = Process(config, codec=ReversingCodec(7))
    assert first.run(PROMPTS[0]) == 0
    first.end()
    (data,) = tmp_path.glob("*/data-0-0")
    content = bytearray(data.read_bytes())
    content[9] ^= 1
    data.write_bytes(content)
    again = Process(config, codec=ReversingCodec(7))
    assert again.run(PROMPTS[0]) == -1 and again.run(PROMPTS[0]) < len(PROMPTS[0])
    assert again.manager.get_storage_statistics(1)[0].damaged_pages == 1
    again.end()


def test_a_killed_process_has_left_what_was_written(tmp_path: object) -> None:
    """No shutdown: pages are written as they are published, parents first."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first, files = next_process(disk, config)
    for text in PROMPTS:
        first.run(text)
    first.settle()
    files.kill()
    again, _files = next_process(disk, config)
    assert [again.run(text + [7]) for text in PROMPTS] == [len(text) for text in PROMPTS]
    again.end()
    first.end()


def test_what_an_idle_engine_has_published_is_there(tmp_path: object) -> None:
    """Pages are written several at once; once no sequence is active, none is put off any longer."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=64)
    first, files = next_process(disk, config)
    durable = first.manager._shared.storage.durable
    assert durable is not None
    sequences = []
    for text in PROMPTS:
        kv_cache = first.manager.create_kv_cache(None, text)
        assert kv_cache.resume() and kv_cache.resize(len(text), kv_cache.num_committed_tokens)
        kv_cache.commit(text[kv_cache.num_committed_tokens :])
        sequences.append(kv_cache)
    for kv_cache in sequences:
        first.manager._shared.order.synchronize_all()
        durable.writer.flush()
        recorded = sum(int(is_recorded) for is_recorded in durable.groups[0].recorded)
        assert recorded == 0, "20 blocks are published, fewer than are put off, and sequences are active"
        kv_cache.close()
    first.manager._shared.order.synchronize_all()
    durable.writer.flush()
    files.kill()
    again, _files = next_process(disk, config)
    assert [again.manager.probe_reuse(None, text) for text in PROMPTS] == [len(text) for text in PROMPTS]
    again.end()
    first.end()


def test_decoding_writes_many_pages_at_once(tmp_path: object) -> None:
    """A request to the disk costs as much for one page as for many: 16 sequences fill 16 blocks each, one in a step."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=400, disk_slots=400)
    process, _files = next_process(disk, config)
    manager = process.manager
    sequences = []
    for number in range(16):
        # Each at another place in its block.
        kv_cache = manager.create_kv_cache(None, [1000 * number + position for position in range(number % TOKENS_PER_BLOCK + 1)])
        assert kv_cache.resume() and kv_cache.resize(number % TOKENS_PER_BLOCK + 1)
        kv_cache.commit([1000 * number + position for position in range(number % TOKENS_PER_BLOCK + 1)])
        sequences.append(kv_cache)
    counts = set()
    for step in range(16 * TOKENS_PER_BLOCK):
        capacities = [kv_cache.capacity for kv_cache in sequences]
        assert manager.resize_batch(sequences, [capacity + 1 for capacity in capacities], capacities) == 16
        manager.commit_batch(sequences, [step] * 16)
        manager._shared.order.synchronize_all()
        counts.add(sum(transfer.blocks for transfer in manager.get_statistics().transfers if transfer.target_level == 1))
    assert len(counts) - 1 == 16 * 16 // 64, "256 pages, 64 at once"
    for kv_cache in sequences:
        kv_cache.close()
    process.end()


def test_shared_beginnings_outlast_what_is_behind_them(tmp_path: object) -> None:
    """Many turns under one system prompt, on a disk that is too small for all: each that is found has all its ancestors."""
    config = durable_config(str(tmp_path), gpu_slots=12, host_slots=12, disk_slots=40)
    first = Process(config)
    texts = [SYSTEM + [1000 * number + position for position in range(8)] for number in range(1, 60)]
    for text in texts:
        assert first.run(text) >= (0 if text is texts[0] else len(SYSTEM))
    first.end()
    again = Process(config)
    found = [again.manager.probe_reuse(None, text) for text in texts]
    assert found[-1] == len(texts[-1]), "the latest turn is there, with the system prompt that all of them begin with"
    assert len([number for number in found if number > len(SYSTEM)]) >= 12
    statistics = again.manager.get_storage_statistics(2)[0]
    assert statistics.total - statistics.free >= 30, "what cannot be reached was not kept"
    again.end()


def test_bytes_that_are_not_what_was_written_are_a_miss(tmp_path: object) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first, _files = next_process(disk, config)
    for text in PROMPTS:
        first.run(text)
    first.end()
    (data,) = disk.paths("/data-")
    for position in range(0, len(disk.files[data].content), SLOT_BYTES // 2):
        disk.files[data].content[position] ^= 1
    again, _files = next_process(disk, config)
    assert again.run(PROMPTS[0]) == -1, "refused as lost; the engine saw no byte of it"
    assert again.run(PROMPTS[1]) == 0, "what is behind lost pages cannot be reached, and was dropped with them"
    assert [again.run(text) for text in PROMPTS] == [20, 32, 20, 20, 20]
    again.manager.check_invariants()
    again.end()
    third, _files = next_process(disk, config)
    assert third.run(PROMPTS[0] + [7]) == len(PROMPTS[0]), "what was computed anew is durable again"
    third.end()


def test_cleared_scopes_stay_cleared(tmp_path: object) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    tenants = [ReuseScope(salt="one"), ReuseScope(salt=2), ReuseScope(lora_id=3)]
    first, files = next_process(disk, config)
    for scope in tenants:
        first.run(PROMPTS[0], scope)
    first.settle()
    first.manager.invalidate_reuse_scope(tenants[0])
    files.kill()
    second, files = next_process(disk, config)
    found = [second.manager.probe_reuse(scope, PROMPTS[0]) for scope in tenants]
    assert found == [0, len(PROMPTS[0]), 0], "the id of an adapter names nothing in another process"
    # Nothing of the scope is in the tree, but the disk still has its bytes.
    second.manager.invalidate_reuse_scope(tenants[1])
    files.kill()
    third, files = next_process(disk, config)
    assert third.manager.probe_reuse(tenants[1], PROMPTS[0]) == 0
    third.run(PROMPTS[1])
    third.settle()
    third.manager.clear_reusable_blocks()
    files.kill()
    fourth, _files = next_process(disk, config)
    assert fourth.manager.probe_reuse(None, PROMPTS[1]) == 0
    for process in (first, second, third, fourth):
        process.end()


def test_other_models_find_nothing(tmp_path: object) -> None:
    first = Process(durable_config(str(tmp_path)))
    first.run(PROMPTS[0])
    first.end()
    others = [
        ModelId("another model"),
        ModelId("a model", "r2"),
        ModelId("a model", dtype="fp8"),
        ModelId("a model", details={"rope": "2"}),
        ModelId("a model", salt_domain="s"),
        ModelId("a model", heads=(0, 4)),
        ModelId("a model", heads=(4, 8)),
    ]
    for model_id in others:
        other = Process(durable_config(str(tmp_path), model_id=model_id))
        assert other.manager.probe_reuse(None, PROMPTS[0]) == 0
        other.end()
    again = Process(durable_config(str(tmp_path)))
    assert again.run(PROMPTS[0]) == len(PROMPTS[0])
    again.end()


def test_digests_are_compared_in_full(tmp_path: object) -> None:
    config = durable_config(str(tmp_path))
    one: list[int | bytes] = [b"aaaa", b"\xff\xff\xff\xffcccc", 1, 2]
    two: list[int | bytes] = [b"aaaa\xff\xff\xff\xff", b"cccc", 1, 2]
    manager = KVCacheManager(config)
    with manager.create_kv_cache(input_tokens=one) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(4)
        kv_cache.commit(one)
    manager.shutdown()
    with KVCacheManager(config) as again:
        assert again.probe_reuse(None, one) == 4
        assert again.probe_reuse(None, two) == 0
        again.check_invariants()


def test_windows_are_found_at_the_end_of_a_prefix(tmp_path: object) -> None:
    config = durable_config(str(tmp_path), gpu_slots=40, disk_slots=160, windows=(None, 8))
    first = Process(config)
    for text in PROMPTS:
        first.run(text)
    first.end()
    again = Process(config)
    assert [again.run(text + [7]) for text in PROMPTS] == [len(text) for text in PROMPTS]
    again.end()


@pytest.mark.parametrize("slots", [16, 32, 200])
def test_quotas_may_change_between_processes(tmp_path: object, slots: int) -> None:
    first = Process(durable_config(str(tmp_path), disk_slots=64))
    for text in PROMPTS:
        first.run(text)
    first.end()
    again = Process(durable_config(str(tmp_path), disk_slots=slots))
    found = [again.run(text) for text in PROMPTS]
    assert found[0] == len(PROMPTS[0]), "the first slots are there in any case"
    assert slots < 40 or found == [len(text) for text in PROMPTS]
    again.end()


def test_a_disk_that_fails_costs_durability_only(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first, files = next_process(disk, config)
    first.run(PROMPTS[0])
    first.settle()
    files.failing_writes = errno.ENOSPC
    with caplog.at_level(logging.ERROR):
        for text in PROMPTS[1:]:
            assert first.run(text) == len(SYSTEM)
            first.settle()
    assert "keeps" in caplog.text or "kept in memory" in caplog.text
    files.kill()
    again, _files = next_process(disk, config)
    assert again.run(PROMPTS[0]) == len(PROMPTS[0])
    assert again.manager.probe_reuse(None, PROMPTS[1]) == len(SYSTEM)
    again.end()
    first.end()


def test_a_killed_process_leaves_what_its_policies_had_learned_by_then(tmp_path: object) -> None:
    """Said every 4,096 pages: the next one after a prompt of so many is written."""
    disk = LossyDisk()
    base = durable_config(str(tmp_path), gpu_slots=4200, disk_slots=8600)
    config = replace(base, cache_tiers=[replace(tier, eviction_policy=EvictionPolicy.LEARNED) for tier in base.cache_tiers])
    first, files = next_process(disk, config)
    model = first.manager._shared.storage.learning.model
    untaught = model.to_bytes()
    for _round in range(4):
        for text in PROMPTS:
            first.run(text)
    kv_cache = first.manager.create_kv_cache(None, [5] * 4100 * TOKENS_PER_BLOCK)
    assert kv_cache.resume() and kv_cache.resize(4100 * TOKENS_PER_BLOCK)
    learned = model.to_bytes()
    kv_cache.commit([5] * 4100 * TOKENS_PER_BLOCK)
    first.settle()
    files.kill()
    second, _files = next_process(disk, config)
    assert second.manager._shared.storage.learning.model.to_bytes() == learned != untaught
    second.end()
    kv_cache.close()
    first.end()


def test_two_managers_cannot_have_one_folder(tmp_path: object) -> None:
    config = durable_config(str(tmp_path))
    with KVCacheManager(config):
        with pytest.raises(LogicError, match="in use by process"):
            KVCacheManager(config)
    KVCacheManager(config).shutdown()


def test_an_end_without_time_writes_nothing_more(tmp_path: object) -> None:
    """Pages that have no copy yet, since the level was full of held pages when they were published, are written at the end."""
    config = durable_config(str(tmp_path))
    process = Process(config)
    process.run(PROMPTS[0])
    for wrong in (-1.0, float("nan"), 1e12):
        with pytest.raises(ValueError, match="drain_seconds"):
            process.manager.shutdown(wrong)
    process.end(0)
    again = Process(config)
    assert again.run(PROMPTS[0]) == len(PROMPTS[0])
    again.end()


def test_configurations_that_cannot_work_are_refused(tmp_path: object) -> None:
    quota = 64 * SLOT_BYTES
    folder = str(tmp_path)
    with pytest.raises(ValueError, match="needs a model_id"):
        DiskCacheTierConfig(quota, folder, durable=True)
    with pytest.raises(ValueError, match="durable is False"):
        DiskCacheTierConfig(quota, folder, model_id=ModelId("a model"))
    with pytest.raises(ValueError, match="only the last tier"):
        base = durable_config(folder)
        tiers = [*base.cache_tiers, DiskCacheTierConfig(quota, folder)]
        type(base)(TOKENS_PER_BLOCK, tiers, base.layers)
    with pytest.raises(ValueError, match="write_policy"):
        durable_config(folder, host_slots=4, write_policy="through")
    with pytest.raises(ValueError, match="no files that outlive"):
        KVCacheManager(durable_config(folder), device=SimulatedDevice(1))
    with KVCacheManager(durable_config(folder)) as manager:
        with pytest.raises(ValueError, match="is durable"):
            manager.resize(1, quota // 2)


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_policies_have_learned_is_restored(tmp_path: object, is_killed: bool) -> None:
    """As it was at the end, and to be found again teaches nothing; a process that is killed early leaves what it had found."""
    disk = LossyDisk()
    base = durable_config(str(tmp_path), gpu_slots=12, disk_slots=30)
    config = replace(base, cache_tiers=[replace(tier, eviction_policy=EvictionPolicy.LEARNED) for tier in base.cache_tiers])
    first, _files = next_process(disk, config)
    untaught = first.manager._shared.storage.learning.model.to_bytes()
    for _round in range(4):
        for text in PROMPTS:
            first.run(text)
    learned = first.manager._shared.storage.learning.model.to_bytes()
    assert learned != untaught
    first.end()
    second, files = next_process(disk, config)
    assert second.manager._shared.storage.learning.model.to_bytes() == learned
    second.settle()
    if is_killed:
        files.kill()
        second.run(PROMPTS[0])
    second.end()
    third, _files = next_process(disk, config)
    assert third.manager._shared.storage.learning.model.to_bytes() == learned
    names = third.manager.restored()
    third.manager.keep_restored(names[:-1])
    assert third.manager._shared.storage.learning.model.to_bytes() == untaught, "the last name is that of what was learned"
    third.end()


def test_what_a_folder_knows_wins_over_a_prior_and_a_prior_over_nothing(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    """A folder with weights that this release cannot read is named in the log, and its pages are there all the same."""
    disk = LossyDisk()
    base = durable_config(str(tmp_path), gpu_slots=12, disk_slots=30)
    prior = encode_prior([(number % 9 - 4) / 16 for number in range(NUM_PRIOR_WEIGHTS)])
    tiers = [replace(tier, eviction_policy=EvictionPolicy.LEARNED) for tier in base.cache_tiers]
    config = replace(base, cache_tiers=tiers, learned_prior=prior)
    first, _files = next_process(disk, config)
    begun = first.manager._shared.storage.learning.model.to_bytes()
    first.run(PROMPTS[0])
    first.run(PROMPTS[0])
    learned = first.manager._shared.storage.learning.model.to_bytes()
    assert learned != begun
    first.end()
    second, _files = next_process(disk, config)
    assert second.manager._shared.storage.learning.model.to_bytes() == learned
    names = second.manager.restored()
    second.manager.keep_restored(names[:-1])
    assert second.manager._shared.storage.learning.model.to_bytes() == begun
    assert "another release" not in caplog.text
    second.end()
    third, files = next_process(disk, config)
    durable = third.manager._shared.storage.durable
    assert durable is not None
    durable.record_weights(b"no number"[:8] * 3)
    third.settle()
    files.kill()
    with caplog.at_level(logging.WARNING):
        fourth, _files = next_process(disk, config)
    assert "weights of another release; LEARNED begins without" in caplog.text
    assert fourth.manager._shared.storage.learning.model.to_bytes() == begun
    assert fourth.manager.probe_reuse(None, PROMPTS[0]) == len(PROMPTS[0])
    fourth.end()
    third.end()


def test_nothing_of_it_costs_without_durable(tmp_path: object) -> None:
    """A level that is not durable leaves nothing in its folder."""
    tiers: list[CacheTierConfig] = [
        GpuCacheTierConfig(16 * SLOT_BYTES),
        HostCacheTierConfig(8 * SLOT_BYTES),
        DiskCacheTierConfig(64 * SLOT_BYTES, str(tmp_path)),
    ]
    base = durable_config(str(tmp_path))
    process = Process(type(base)(TOKENS_PER_BLOCK, tiers, base.layers))
    process.run(PROMPTS[0])
    process.end()
    assert os.listdir(str(tmp_path)) == []
