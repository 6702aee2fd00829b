"""Ranks that lost different things when their processes ended decide alike again, once each keeps what all of them have restored."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from durable_models import PROMPTS, SLOT_BYTES, Process, durable_config, next_process
from hybrid_models import hybrid_config
from lossy_files import LossyDisk, LossyFiles

from kv_cache_manager_v2 import (
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    LogicError,
    ModelId,
    ReuseScope,
    SnapshotPolicy,
    compute_block_hashes,
)
from kv_cache_manager_v2.testing.journal_reader import JournalError
from kv_cache_manager_v2.testing import SimulatedDevice
from kv_cache_manager_v2.testing.journal_rerun import rerun

NEVER = -1


def with_policy(config: KVCacheManagerConfig, policy: EvictionPolicy) -> KVCacheManagerConfig:
    tiers: list[Any] = [replace(tier, eviction_policy=policy) for tier in config.cache_tiers]
    return replace(config, cache_tiers=tiers)


def random_text(choices: random.Random) -> list[int]:
    text: list[int] = []
    for depth in range(choices.randrange(1, 4)):
        branch = choices.randrange(4)
        text += [1000 * depth + 100 * branch + position for position in range(choices.choice((3, 4, 8, 9)))]
    return text


def serve(process: Process, files: LossyFiles, seed: int, num_steps: int, dies_at: int) -> list[bytes]:
    """The digest of all decisions after each prompt. From prompt ``dies_at`` on nothing reaches the disk."""
    choices = random.Random(seed)
    digests = []
    for step in range(num_steps):
        if step == dies_at:
            process.settle()
            files.kill()
        process.run(random_text(choices), ReuseScope(salt=choices.choice((None, "a tenant"))))
        if step % 3 == 2:
            # A frame of the log for each, however late the thread that writes them runs.
            process.settle()
        digests.append(process.manager.state_digest())
    return digests


def cut_log(disk: LossyDisk, choices: random.Random) -> None:
    """The end of what was recorded last is gone."""
    log = disk.files[disk.paths("/log-")[-1]]
    log.content = log.content[: len(log.content) - choices.randrange(len(log.content) // 2)]


@pytest.mark.parametrize("policy", [EvictionPolicy.LRU, EvictionPolicy.LEARNED])
@pytest.mark.parametrize("dies", [True, False], ids=["killed at another prompt", "without the end of the log"])
def test_ranks_that_lost_different_things_decide_alike(tmp_path: Path, dies: bool, policy: EvictionPolicy) -> None:
    """Killed at another prompt each, with a small disk, and all in level 0: what a dead process has written it could not read back. Or
    each with another part of its log, with a disk for all, and a small level 0."""
    seed = 1 if policy is EvictionPolicy.LEARNED else 2
    choices = random.Random(seed)
    windows = (None, 8) if dies else (None,)
    gpu_slots, disk_slots = (400, 60) if dies else (20, 600)
    config = with_policy(durable_config(str(tmp_path), gpu_slots=gpu_slots, disk_slots=disk_slots, windows=windows), policy)
    disks = [LossyDisk() for _rank in range(3)]
    num_common = []
    num_dropped = 0
    for life in range(3):
        # One of them loses nothing.
        dies_at = [choices.randrange(4, 15) if dies else NEVER, NEVER, choices.randrange(4, 15) if dies else NEVER]
        ranks = [next_process(disk, config) for disk in disks]
        restored = [set(process.manager.restored()) for process, _files in ranks]
        names = list(restored[0] & restored[1] & restored[2])
        num_common.append(len(names))
        num_dropped += sum(len(found) - len(names) for found in restored)
        for process, _files in ranks:
            choices.shuffle(names)
            assert process.manager.keep_restored(names) <= len(names)
            process.manager.check_invariants()
        digests = [serve(*rank, 10 * seed + life, 15, dies_at[number]) for number, rank in enumerate(ranks)]
        assert digests[0] == digests[1] == digests[2]
        for process, files in ranks:
            process.settle()
            if not files.is_dead:
                files.kill()
            process.end()
        if not dies:
            cut_log(disks[0], choices)
            cut_log(disks[2], choices)
    assert max(num_common) > 4 and num_dropped > 4, f"{num_common} in common, {num_dropped} dropped"


def test_what_is_not_named_is_not_found_again(tmp_path: Path) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first, files = next_process(disk, config)
    for text in PROMPTS:
        first.run(text)
    first.settle()
    files.kill()
    first.end()
    second, files = next_process(disk, config)
    names = second.manager.restored()
    assert len(names) == len(set(names)) == 20 // 4 + 5 * 3, "a page for each block of the system prompt, and of what is behind it"
    assert second.manager.keep_restored(without_the_fifth(names)) == len(names) - 3
    assert second.manager.restored() == without_the_fifth(names)
    assert [second.manager.probe_reuse(None, text) for text in PROMPTS] == [32, 32, 32, 32, 20]
    assert second.manager.get_storage_statistics(1)[0].restored_pages == len(names) - 3
    assert second.run(PROMPTS[0]) == 32, "and its bytes are right"
    second.settle()
    files.kill()
    third, _files = next_process(disk, config)
    assert [third.manager.probe_reuse(None, text) for text in PROMPTS] == [32, 32, 32, 32, 20]
    second.end()
    third.end()


def without_the_fifth(names: list[bytes]) -> list[bytes]:
    """They come in the order of use: after a kill a block is as old as the latest one below it. Paths are used from their ends on: last
    comes the system prompt's first block, 4 others of it before, and before these the 3 blocks of the fifth prompt."""
    return names[:-8] + names[-5:]


@pytest.mark.parametrize("collection", [list, tuple, set, frozenset, iter, lambda names: dict.fromkeys(names).keys()])
def test_names_may_come_in_any_collection(tmp_path: Path, collection: Any) -> None:
    """As docs/tiers-durable.md has them, a set; what it keeps, and what the journal says of it, does not depend on its order."""
    place = tmp_path / "cache"
    place.mkdir()
    config = durable_config(str(place))
    first = Process(config)
    for text in PROMPTS:
        first.run(text)
    first.end()
    journal = tmp_path / "journal"
    device = HostDevice()
    manager = KVCacheManager(config, device=device, journal=journal)
    names = manager.restored()
    common = set.intersection(set(names), set(without_the_fifth(names)))
    assert manager.keep_restored(collection(common)) == len(names) - 3
    assert manager.restored() == without_the_fifth(names)
    digest = manager.state_digest()
    manager.shutdown()
    device.close()
    again = HostDevice()
    assert rerun(journal, again).digest == digest
    again.close()


def test_what_cannot_be_reached_goes_with_it(tmp_path: Path) -> None:
    config = durable_config(str(tmp_path))
    first = Process(config)
    for text in PROMPTS:
        first.run(text)
    first.end()
    again = Process(config)
    names = again.manager.restored()
    assert again.manager.keep_restored(names[:-1]) == 0, "all of it is behind the first block, which was used last"
    assert again.manager.restored() == []
    assert again.manager.get_storage_statistics(1)[0].free == again.manager.get_storage_statistics(1)[0].total
    assert [again.run(text) for text in PROMPTS] == [0, 20, 20, 20, 20]
    again.end()


@pytest.mark.parametrize("learns", [True, False])
def test_what_was_learned_has_a_name_where_a_policy_learns(tmp_path: Path, learns: bool) -> None:
    """The process before has learned, whatever this one's policy is."""
    config = durable_config(str(tmp_path))
    first = Process(with_policy(config, EvictionPolicy.LEARNED))
    for text in [*PROMPTS, *PROMPTS]:
        first.run(text)
    first.end()
    second = Process(with_policy(config, EvictionPolicy.LEARNED) if learns else config)
    names = second.manager.restored()
    assert len(names) == second.manager.get_storage_statistics(1)[0].restored_pages + learns == 20 + learns
    second.end()


@pytest.mark.parametrize("share", [1, 2, 3])
def test_snapshots_of_recurrent_states_have_names_too(tmp_path: Path, share: int) -> None:
    tiers: list[Any] = [GpuCacheTierConfig(1 << 14), DiskCacheTierConfig(1 << 16, str(tmp_path), durable=True, model_id=ModelId("hybrid"))]
    config = hybrid_config((None,), cache_tiers=tiers, snapshot_policy=SnapshotPolicy(every_num_blocks=2))
    device = HostDevice()
    manager = KVCacheManager(config, device=device)
    text = list(range(24))
    kv_cache = manager.create_kv_cache(input_tokens=text)
    assert kv_cache.resume() and kv_cache.resize(len(text))
    kv_cache.commit(text)
    kv_cache.close()
    manager.shutdown()
    with KVCacheManager(config, device=device) as again:
        names = again.restored()
        left = again.keep_restored(names[::share])
        assert left <= len(names[::share]) and len(again.restored()) - left in (0, 1), "one more for what the policies had learned"
        again.check_invariants()
    device.close()


def test_it_comes_before_the_first_sequence(tmp_path: Path) -> None:
    first = Process(durable_config(str(tmp_path)))
    first.run(PROMPTS[0])
    with pytest.raises(LogicError, match=r"restored\(\) comes before the first sequence"):
        first.manager.restored()
    first.end()
    for change in (
        lambda manager: manager.create_kv_cache().close(),
        lambda manager: manager.clear_reusable_blocks(),
        lambda manager: manager.invalidate_reuse_scope(),
        lambda manager: manager.demote(PROMPTS[0]),
        lambda manager: manager.resize(0, manager.get_quota(0) + 8 * SLOT_BYTES),
        lambda manager: manager.adjust(),
    ):
        with KVCacheManager(durable_config(str(tmp_path))) as manager:
            found = manager.restored()
            change(manager)
            with pytest.raises(LogicError, match="right after the manager is made"):
                manager.keep_restored(found)
            manager.check_invariants()


def test_names_that_are_none_are_refused(tmp_path: Path) -> None:
    first = Process(durable_config(str(tmp_path)))
    first.run(PROMPTS[0])
    first.end()
    with KVCacheManager(durable_config(str(tmp_path))) as manager:
        names = manager.restored()
        digest = manager.state_digest()
        wrong: list[tuple[Any, type[Exception], str]] = [
            ([*names, b"x" * 16], ValueError, "names has 1 of 9 that"),
            (b"x" * 16, TypeError, "names must be a sequence, not bytes"),
            (7, TypeError, "names must be a sequence, not int"),
            ({"x": 1}, TypeError, "names must be a sequence, not dict"),
            ([names[0].hex()], TypeError, "item 0 is a str"),
            ({names[0].hex()}, TypeError, "the set has a str"),
        ]
        for given, error, text in wrong:
            with pytest.raises(error, match=text):
                manager.keep_restored(given)
        assert manager.restored() == names and manager.state_digest() == digest
        assert manager.keep_restored(iter([*names, *names])) == 8, "named twice is named"


def test_events_say_what_was_restored_and_what_was_dropped(tmp_path: Path) -> None:
    config = durable_config(str(tmp_path))
    first = Process(config)
    for text in PROMPTS:
        first.run(text)
    first.end()
    events = KVCacheEventManager(1000)
    with KVCacheManager(config, event_manager=events) as manager:
        index = KVCacheEventIndex()

        def seen() -> list[int]:
            events.flush_iteration_events()
            index.apply(events.get_latest_events())
            return [index.count_leading_blocks(compute_block_hashes(text, manager.tokens_per_block)) for text in PROMPTS]

        assert seen() == [8] * 5
        manager.keep_restored(without_the_fifth(manager.restored()))
        assert seen() == [8, 8, 8, 8, 5] and len(index) == 5 + 4 * 3


def test_a_rerun_needs_a_device_with_files(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    KVCacheManager(durable_config(str(tmp_path)), device=HostDevice(), journal=path).shutdown()
    with pytest.raises(JournalError, match="no files that outlive"):
        rerun(path, SimulatedDevice(1))
    data = path.read_bytes()
    for length in range(len(data) - 60, len(data), 5):
        # Cut anywhere: what was restored is there as a whole, or nothing can be done again.
        path.write_bytes(data[:length])
        try:
            assert rerun(path, HostDevice()).num_calls == 0
        except JournalError as error:
            assert "ends inside" in str(error) or "cannot be used" in str(error)
    assert sorted(name.name[:5] for name in tmp_path.iterdir()) == ["journ", "kvcm-"]


def test_without_a_durable_level_there_is_nothing(tmp_path: Path) -> None:
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(16 * SLOT_BYTES)], durable_config(str(tmp_path)).layers)
    with KVCacheManager(config) as manager:
        assert manager.restored() == [] and manager.keep_restored([]) == 0
        manager.create_kv_cache().close()
        assert manager.restored() == []
        with pytest.raises(ValueError, match=r"names has 1 of 1"):
            manager.keep_restored([b"x" * 16])


@pytest.mark.parametrize("share", [0, 2])
@pytest.mark.parametrize("policy", [EvictionPolicy.LRU, EvictionPolicy.LEARNED])
def test_a_journal_says_what_was_restored(tmp_path: Path, policy: EvictionPolicy, share: int) -> None:
    """A rerun finds the same, keeps the same and decides the same, whatever has become of the folder. ``share``: 0 keeps no less."""
    place = tmp_path / "cache"
    place.mkdir()
    config = with_policy(durable_config(str(place), gpu_slots=20, disk_slots=40), policy)
    for life in range(2):
        path = tmp_path / f"journal-{life}"
        device = HostDevice()
        manager = KVCacheManager(config, device=device, journal=path)
        assert life == 0 or len(manager.restored()) > 8
        if share > 0:
            manager.keep_restored(manager.restored()[: len(manager.restored()) // share])
        choices = random.Random(life)
        for _step in range(12):
            text = random_text(choices)
            kv_cache = manager.create_kv_cache(None, text)
            assert kv_cache.resume() and kv_cache.resize(len(text), kv_cache.num_committed_tokens)
            kv_cache.commit(text[kv_cache.num_committed_tokens :])
            kv_cache.close()
        manager.shutdown()
        device.close()
    for life in range(2):
        again = HostDevice()
        result = rerun(tmp_path / f"journal-{life}", again, check_invariants=True)
        assert result.num_digests == 1 and result.num_calls == 12 * 5 + (share > 0)
        again.close()
    assert [name.name for name in place.iterdir() if not name.name.startswith("kvcm-")] == [], "reruns leave nothing"
