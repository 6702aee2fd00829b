"""`kvcm inspect`: a recorded state as words, as JSON and as a dump, from a journal or from what describe() said."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from every_call import EveryCall, config_of_every_kind
from random_calls import drive
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostCacheTierConfig, HostDevice, KVCacheManager
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.rerun import rerun, rerun_to
from kv_cache_manager_v2.replay.slot_statuses import list_slot_statuses

NUM_SLOTS = 16


def record(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A journal that ends with one active and one suspended sequence, closed afterwards; and the dump before the end."""
    path = folder / "journal"
    with KVCacheManager(config_of((None, 8), num_slots=NUM_SLOTS), device=HostDevice(), journal=path) as manager:
        run_prompt(manager, list(range(8)), id=10).close()
        active = run_prompt(manager, list(range(10)), id=11)
        suspended = run_prompt(manager, [50, 51, 52, 53, 54], id=12)
        suspended.suspend()
        dump = manager.describe()
        active.close()
        suspended.close()
    return path, dump


def counts_of(dump: dict[str, Any], pool_group: int = 0) -> Counter[str]:
    return Counter(list_slot_statuses(dump, 0, pool_group))


def test_every_slot_has_the_owner_that_the_dump_has(tmp_path: Path) -> None:
    _, dump = record(tmp_path)
    # Sequence 11: blocks 0, 1, 2 in both groups (a window of 8 at history 10 reads 3..10): 6 locked. Sequence 12: 2 blocks in
    # both groups: 4 held. 16 slots.
    assert counts_of(dump) == {"locked": 6, "held": 4, "free": 6}


def test_random_states_have_no_slot_without_owner(tmp_path: Path) -> None:
    for seed in range(8):
        with KVCacheManager(config_of((None, 8), num_slots=24), device=HostDevice()) as manager:
            drive(manager, seed, 40)
            kv_cache = run_prompt(manager, [1, 2, 3, 4, 5])
            dump = manager.describe()
            group = dump["levels"][0]["pool_groups"][0]
            counts = counts_of(dump)
            assert counts.get("free", 0) == group["free"], f"seed {seed}"
            assert counts.get("locked", 0) + counts.get("scratch", 0) == group["locked"], f"seed {seed}"
            kv_cache.close()


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_beams_states_and_leases_own_their_slots(seed: int, has_state: bool, tmp_path: Path) -> None:
    """After calls of every kind: what is not free has an owner, on every level."""
    config = config_of_every_kind(has_state, str(tmp_path), 60)
    with KVCacheManager(config, device=HostDevice()) as manager:
        calls = EveryCall(manager, seed)
        for _ in range(10):
            calls.run(40)
            dump = json.loads(json.dumps(manager.describe()))
            for level, tier in enumerate(dump["levels"]):
                for pool_group, group in enumerate(tier["pool_groups"]):
                    statuses = list_slot_statuses(dump, level, pool_group)
                    assert len(statuses) == group["slots"]
                    assert statuses.count("free") == group["free"], (level, pool_group)
        calls.finish()


def test_a_journal_of_many_pools_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three levels with a pool of pages and two of recurrent states each: nine address ranges of all the memory there could be."""
    path = tmp_path / "journal"
    with KVCacheManager(config_of_every_kind(True, str(tmp_path)), device=HostDevice(), journal=path) as manager:
        dump = manager.describe()
        assert [len(group["slot_bytes"]) for group in dump["levels"][2]["pool_groups"]] == [1, 2]
    assert main(["inspect", str(path)]) == 0
    assert "level 2, DISK" in capsys.readouterr().out


def test_a_page_that_only_a_lease_keeps_is_no_free_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with KVCacheManager(config_of(num_slots=4), device=HostDevice()) as manager:
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(8)
        lease = kv_cache.reserve_transfer(0)
        kv_cache.close()
        state = tmp_path / "state.json"
        state.write_text(json.dumps(manager.describe()))
        assert main(["inspect", str(state)]) == 0
        # 8 tokens in blocks of 4, of 4 slots; the lease is the first of this manager.
        assert "2 free, 2 locked" in capsys.readouterr().out
        lease.settle()


def test_held_pages_are_shown_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(num_slots=4)
    tiers = [*config.cache_tiers, HostCacheTierConfig(8 * 64)]
    with KVCacheManager(replace(config, cache_tiers=tiers), device=HostDevice()) as manager:
        suspended = run_prompt(manager, list(range(12)), id=5)
        suspended.suspend()
        active = run_prompt(manager, [50 + token for token in range(12)], id=6)
        state = tmp_path / "state.json"
        state.write_text(json.dumps(manager.describe()))
        assert main(["inspect", str(state)]) == 0
        words = capsys.readouterr().out
        # 4 slots on level 0, of which the active one needs 3: two of the suspended one's three pages had to go down.
        assert "0 free, 3 locked, 0 scratch, 1 held" in words and "6 free, 0 locked, 0 scratch, 2 held" in words
        suspended.close()
        active.close()


def test_a_journal_is_looked_at_after_any_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, dump = record(tmp_path)
    # At the end everything is closed.
    assert main(["inspect", str(path)]) == 0
    assert "0 open sequences" in capsys.readouterr().out
    # Three times create, resume, resize and commit, one close and one suspend are 14 calls; two closes follow.
    assert main(["inspect", str(path), "--call", "14", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for sequence in [*found["sequences"], *dump["sequences"]]:
        del sequence["id"], sequence["stream"]  # the journal has neither
    assert found == json.loads(json.dumps(dump))
    assert main(["inspect", str(path), "--call", "0"]) == 0
    assert "tree: 0 blocks" in capsys.readouterr().out
    assert main(["inspect", str(path), "--call", "99"]) == 3
    assert "fewer than 99" in capsys.readouterr().err


def test_text_from_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, dump = record(tmp_path)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(dump))
    assert main(["inspect", str(state)]) == 0
    words = capsys.readouterr().out
    assert "6 free, 6 locked, 0 scratch, 4 held, 0 droppable" in words
    assert "11: active, capacity 10, history 10, committed 10, 2 published blocks, pages 3 + 3" in words
    assert "[0] 0 1 2 3" in words


def test_wrong_files_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong"
    for content in (b"", b"[]", b"{}", b"KVCM\xff"):
        wrong.write_bytes(content)
        assert main(["inspect", str(wrong)]) == 3
    assert main(["inspect", str(tmp_path / "nowhere")]) == 3
    path, dump = record(tmp_path)
    assert main(["inspect", str(path), "--call", "-1"]) == 2
    wrong.write_text(json.dumps(dump))
    assert main(["inspect", str(wrong), "--call", "1"]) == 3


def test_doing_a_journal_again_shows_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "long.kvj"
    with KVCacheManager(config_of(), device=HostDevice(), journal=path) as manager:
        for _ in range(200):
            manager.probe_reuse(None, [1, 2, 3])
    seen: list[tuple[int, int]] = []
    rerun(path, HostDevice(), False, lambda done, total: seen.append((done, total)))
    # Each 64 calls, from the first on.
    assert len(seen) == 4 and {total for _done, total in seen} == {path.stat().st_size}
    done = [done for done, _total in seen]
    assert done == sorted(set(done)) and done[-1] > path.stat().st_size // 2
    again: list[int] = []
    rerun_to(path, HostDevice(), 100, lambda done, total: again.append(done))
    assert again == done[:2]
