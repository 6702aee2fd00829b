"""A journal holds every call; run again, the same calls make the same decisions: on any device, whenever copies finish."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from random_calls import drive
from small_models import config_of, manager_of

from kv_cache_manager_v2 import Device, GpuCacheTierConfig, HostDevice, KVCacheManager, LogicError, ReuseScope, SwaScratchReuseConfig
from kv_cache_manager_v2.config.learned_prior import NUM_PRIOR_WEIGHTS, encode_prior
from kv_cache_manager_v2.testing.journal_reader import JournalError
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.rerun import RerunMismatch, rerun
from kv_cache_manager_v2.testing import SimulatedDevice

NUM_CALLS = 3000


def record(path: Path, seed: int, device: Device, scratch: bool) -> bytes:
    settings: dict[str, Any] = {"swa_scratch_reuse": SwaScratchReuseConfig()} if scratch else {}
    with KVCacheManager(config_of([None, 8], num_slots=60, **settings), device=device, journal=path) as manager:
        if scratch:
            with manager.create_kv_cache() as kv_cache:
                kv_cache.enable_swa_scratch_reuse = False
                assert kv_cache.resume() and kv_cache.resize(40, 0) and kv_cache.resize(44, 40)
            with manager.create_kv_cache() as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(60, 0) and kv_cache.resize(64, 60)
        else:
            drive(manager, seed, NUM_CALLS)
        manager.clear_reusable_blocks()
        return manager.state_digest()


@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_rerun_makes_the_same_decisions(tmp_path: Path, seed: int, scratch: bool) -> None:
    path = tmp_path / "calls.journal"
    digest = record(path, seed, HostDevice(), scratch)
    result = rerun(path, HostDevice(), check_invariants=seed == 0)
    assert result.digest == digest and result.num_digests >= 1
    assert main(["rerun", str(path)]) == 0


def test_what_learned_knew_at_first_is_in_the_journal(tmp_path: Path) -> None:
    """The same calls decide otherwise without it, so a journal without it could not run again."""
    digests: set[bytes] = set()
    for name, prior in (("without", None), ("with", encode_prior([(number % 9 - 4) / 2 for number in range(NUM_PRIOR_WEIGHTS)]))):
        path = tmp_path / name
        config = config_of([None, 8], num_slots=60)
        config = replace(config, cache_tiers=[GpuCacheTierConfig(config.cache_tiers[0].quota)], learned_prior=prior)
        with KVCacheManager(config, device=HostDevice(), journal=path) as manager:
            drive(manager, 5, NUM_CALLS)
            digest = manager.state_digest()
        result = rerun(path, HostDevice())
        assert result.digest == digest and result.num_digests >= 1
        digests.add(digest)
    assert len(digests) == 2


@pytest.mark.parametrize("seed", range(3))
def test_timing_of_the_device_decides_nothing(tmp_path: Path, seed: int) -> None:
    digests = {record(tmp_path / "host", seed, HostDevice(), False)}
    for device_seed in range(4):
        device = SimulatedDevice(device_seed)
        digests.add(record(tmp_path / f"simulated{device_seed}", seed, device, False))
    assert len(digests) == 1


def test_hash_seed_decides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "calls.journal"
    digest = record(path, 7, HostDevice(), False)
    for hash_seed in ("0", "1", "4242"):
        code = (
            "import sys; from pathlib import Path; from kv_cache_manager_v2 import HostDevice;"
            "from kv_cache_manager_v2.replay.rerun import rerun;"
            "print(rerun(Path(sys.argv[1]), HostDevice()).digest.hex())"
        )
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        found = subprocess.run(
            [sys.executable, "-P", "-c", code, str(path)], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == digest.hex()


def test_another_decision_is_noticed(tmp_path: Path) -> None:
    """The recorded result of the resume is flipped: False where it was True."""
    path = tmp_path / "calls.journal"
    with KVCacheManager(config_of(), device=HostDevice(), journal=path) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            manager.flush_journal()
            end = path.stat().st_size
    data = bytearray(path.read_bytes())
    assert data[end - 1] == 1
    data[end - 1] = 0
    path.write_bytes(data)
    with pytest.raises(RerunMismatch, match="call 2"):
        rerun(path, HostDevice())
    assert main(["rerun", str(path)]) == 1


def test_decode_calls_take_few_bytes(tmp_path: Path) -> None:
    path = tmp_path / "calls.journal"
    with KVCacheManager(config_of(num_slots=5000), device=HostDevice(), journal=path) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(10000)
            manager.flush_journal()
            before = path.stat().st_size
            for step in range(1000):
                assert kv_cache.resize(10001 + step)
                kv_cache.commit([100_000 + step])
            manager.flush_journal()
            # 8 each, but for those that begin or end a block; and 9 for a digest every 1024 calls.
            assert (path.stat().st_size - before) / 2000 < 9


def test_prompts_are_written_once(tmp_path: Path) -> None:
    """4 bytes a token when the sequence is made; what is committed of them, in whatever pieces, is a few bytes each time."""
    path = tmp_path / "calls.journal"
    prompt = [5 * token % 1999 for token in range(3000)]
    with KVCacheManager(config_of(num_slots=3000), device=HostDevice(), journal=path) as manager:
        for length, pieces in ((3000, [1000, 2, 1998]), (2000, [8, 1500]), (2900, [2900])):
            manager.flush_journal()
            before = path.stat().st_size
            kv_cache = manager.create_kv_cache(input_tokens=prompt[:length])
            assert kv_cache.resume() and kv_cache.resize(4000)
            begin = kv_cache.num_committed_tokens
            for piece in pieces:
                tokens = prompt[begin : min(begin + piece, length)]
                kv_cache.commit(tokens)
                begin += len(tokens)
            manager.flush_journal()
            # Nothing of the rest is longer than 40 bytes, and a digest is 9.
            assert 4 * length <= path.stat().st_size - before < 4 * length + 40 * (3 + len(pieces))
            kv_cache.close()
        digest = manager.state_digest()
    assert rerun(path, HostDevice(), check_invariants=True).digest == digest


def test_commits_that_differ_from_the_prompt_run_again(tmp_path: Path) -> None:
    """They go beyond it, leave it at once or later, have digests, or are those of a fork."""
    path = tmp_path / "calls.journal"
    prompt: list[int | bytes] = list(range(50))
    digest_token: list[int | bytes] = [b"d" * 16]
    with KVCacheManager(config_of(num_slots=3000), device=HostDevice(), journal=path) as manager:
        made: list[list[list[int | bytes]]] = [
            [prompt + [7, 8]], [prompt[:20], prompt[20:] + [9]], [[3, 4], prompt[2:]], [prompt[:20], [1, 2], prompt[22:30]],
            [prompt + digest_token], [prompt[:30], digest_token + prompt[31:]], [prompt, [1, 2, 3]], [[0], prompt[1:9], []],
        ]  # fmt: skip
        texts: list[list[int | bytes]] = []
        for number, commits in enumerate(made):
            kv_cache = manager.create_kv_cache(ReuseScope(salt=number), prompt)
            assert kv_cache.resume() and kv_cache.resize(100)
            for tokens in commits:
                kv_cache.commit(tokens)
            child = kv_cache.fork()
            assert child.resize(102)
            child.commit(prompt[-5:])
            texts.append([token for tokens in commits for token in tokens])
            kv_cache.close()
            child.close()
        digest = manager.state_digest()
        for number, text in enumerate(texts):
            assert manager.probe_reuse(ReuseScope(salt=number), text) == len(text)
    assert rerun(path, HostDevice(), check_invariants=True).digest == digest


def test_every_form_of_a_resize_runs_again(tmp_path: Path) -> None:
    """With and without a new history, refused, and as part of a batch."""
    path = tmp_path / "calls.journal"
    with KVCacheManager(config_of([None, 8], num_slots=40), device=HostDevice(), journal=path) as manager:
        first, second = manager.create_kv_cache(), manager.create_kv_cache()
        assert first.resume() and second.resume()
        assert first.resize(5) and first.resize(6, 2) and first.resize(6, 6) and not first.resize(10_000)
        assert manager.resize_batch([first, second], [7, 9]) == 2
        assert manager.resize_batch([first, second], [8, 10], [7, 9]) == 2
        assert manager.resize_batch([first, second], [8, 11], [7, 10]) == 2
        assert manager.resize_batch([first, second], [9, 10_000]) == 1
        first.commit([1])
        second.commit([1, 2])
        first.close()
        second.close()
        digest = manager.state_digest()
    assert rerun(path, HostDevice()).digest == digest


def test_headless_and_foreign_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "calls.journal"
    record(path, 1, HostDevice(), False)
    data = path.read_bytes()
    (tmp_path / "torn").write_bytes(data[:40])
    with pytest.raises(JournalError, match="configuration"):
        rerun(tmp_path / "torn", HostDevice())
    (tmp_path / "foreign").write_bytes(b"something else")
    with pytest.raises(JournalError):
        rerun(tmp_path / "foreign", HostDevice())
    (tmp_path / "newer").write_bytes(data[:4] + bytes([99]) + data[5:])
    with pytest.raises(JournalError):
        rerun(tmp_path / "newer", HostDevice())
    assert main(["rerun", str(tmp_path / "foreign")]) == 3
    assert main(["rerun", str(tmp_path / "nothing")]) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_ends_the_journal_and_not_the_service() -> None:
    with KVCacheManager(config_of(num_slots=2000), device=HostDevice(), journal="/dev/full") as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(4)
            with pytest.raises(OSError):
                manager.flush_journal()
            assert kv_cache.resize(400)
            kv_cache.commit(list(range(400)))
            manager.check_invariants()


def test_manager_without_a_journal() -> None:
    with manager_of() as manager, pytest.raises(LogicError):
        manager.flush_journal()


def test_journal_that_cannot_be_made(tmp_path: Path) -> None:
    device = HostDevice()
    with pytest.raises(OSError):
        KVCacheManager(config_of(), device=device, journal=tmp_path / "no" / "such" / "folder")
    device.close()
