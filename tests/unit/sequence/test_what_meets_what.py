"""The table "What meets what" of docs/design.md: each refusal that it names is made, and each name in it is in the code."""

import re
from pathlib import Path

import pytest
from durable_models import durable_config
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import KVCacheManager, LogicError

ROOT = Path(__file__).resolve().parents[3]
SECTION = "## What meets what\n"


def cells() -> dict[tuple[str, str], str]:
    text = (ROOT / "docs" / "design.md").read_text().split(SECTION)[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    head = [name.replace("`", "") for name in rows[0][1:]]
    return {(row[0], name): cell for row in rows[2:] for name, cell in zip(head, row[1:], strict=True)}


def commit_other_tokens_beside_a_fork(_tmp_path: Path) -> None:
    with manager_of(num_slots=4) as manager, run_prompt(manager, [1, 2]) as kv_cache:
        assert kv_cache.resize(4)
        with kv_cache.fork() as fork:
            kv_cache.commit([3, 4])
            with pytest.raises(ValueError, match="has committed other tokens"):
                fork.commit([3, 5])
            manager.check_invariants()


def commit_before_the_writer(_tmp_path: Path) -> None:
    with manager_of(num_slots=8) as manager, manager.create_kv_cache(input_tokens=range(4)) as writer:
        assert writer.resume() and writer.resize(4) and writer.publish_planned(range(4)) == 4
        with manager.create_kv_cache(input_tokens=range(5)) as reader:
            assert reader.num_committed_tokens == 4 and reader.resume() and reader.resize(5)
            with pytest.raises(LogicError, match="has planned and not committed"):
                reader.commit([4])
            manager.check_invariants()


def resize_a_durable_level(tmp_path: Path) -> None:
    with KVCacheManager(durable_config(str(tmp_path))) as manager, pytest.raises(ValueError, match="which is durable"):
        manager.resize(1, 1 << 20)


def cut_a_leased_slot_off(_tmp_path: Path) -> None:
    with manager_of(num_slots=4, windows=[4]) as manager, run_prompt(manager, range(16)) as kv_cache:
        lease = kv_cache.reserve_transfer(3)
        kv_cache.close()
        assert not manager.resize(0, manager.get_quota(0) // 2)
        assert "lease" in str(manager.last_refusal)
        manager.check_invariants()
        lease.settle()


REFUSALS = {
    ("fork", "commit"): commit_other_tokens_beside_a_fork,
    ("planned, its reader", "commit"): commit_before_the_writer,
    ("durable level", "level's resize"): resize_a_durable_level,
    ("lease", "level's resize"): cut_a_leased_slot_off,
}


def test_all_that_is_refused_is_tried_here() -> None:
    assert {place for place, cell in cells().items() if "refused" in cell} == set(REFUSALS)
    assert len(cells()) == 14 * 7 and all(cells().values())


@pytest.mark.parametrize("place", REFUSALS)
def test_what_the_table_calls_refused_is_refused(place: tuple[str, str], tmp_path: Path) -> None:
    REFUSALS[place](tmp_path)


def test_names_in_the_table_are_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "kv_cache_manager_v2").rglob("*.py"))
    names = {name for cell in cells().values() for name in re.findall(r"`(\w+)`", cell)}
    assert len(names) > 20
    assert not [name for name in names if re.search(rf"def {name}\(|^    {name}: ", code, re.MULTILINE) is None]


def test_there_is_one_door_into_the_tree() -> None:
    """What a start restores has no sequence, and no equal block can be there."""
    package = ROOT / "kv_cache_manager_v2"
    doors = {str(path.relative_to(package)) for path in package.rglob("*.py") if re.search(r"tree\.attach(_run)?\(", path.read_text())}
    assert doors == {"sequence/publishing.py", "manager/durable_restore.py"}
