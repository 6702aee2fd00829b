"""A new snapshot while the log is in use: whenever the process ends, what was appended is found, and nothing that a later record needs is
left out."""

import errno
import json
import os
import random
from collections.abc import Generator, Sequence

import pytest
from librt.vecs import vec
from lossy_files import LossyDisk, LossyFiles

from mypy_extensions import i64

from kv_cache_manager_v2.durable.cache_folder import CacheFolder
from kv_cache_manager_v2.durable.index_compaction import compact
from kv_cache_manager_v2.durable.index_state import IndexState
from kv_cache_manager_v2.durable.record_format import (
    PACKED,
    BadRecordError,
    encode_clear_all,
    encode_clear_scope,
    encode_free,
    encode_node,
    encode_page,
    encode_root,
    encode_weights,
)
from kv_cache_manager_v2.replay.stored_index import list_nodes, list_stored_pages

IDENTITY = json.dumps({"name": "a model"})
LAYOUT = json.dumps({"slots": [[64]]})
NUM_SLOTS = 6


def open_folder(disk: LossyDisk, parent: str, kill_at: int = 1 << 60) -> CacheFolder:
    return CacheFolder(LossyFiles(disk, kill_at), [parent], IDENTITY, LAYOUT)


def describe(state: IndexState) -> tuple[object, ...]:
    """All that a start makes of it: each page with its path of tokens."""
    nodes = list_nodes(state)
    found: list[object] = []
    for place, page in list_stored_pages(state).items():
        path: list[object] = []
        number = page.node
        while number != 0:
            node = nodes[number]
            path.append((node.form, node.tokens, node.lora_id, node.salt))
            number = node.parent
        found.append((place, page.life_cycle, page.generation, page.checksums, path))
    return found, state.next_node, state.next_generation, state.weights


class Tree:
    """Records as a manager makes them: blocks that come and go, the pages of those that are there, slots that are overwritten."""

    def __init__(self, seed: int) -> None:
        self.choices = random.Random(seed)
        self.next_node = 1
        self.next_generation = 1
        self.parents: dict[int, int] = {}
        """Of the blocks that are there."""
        self.salts: dict[int, str] = {}

    def live(self) -> "vec[i64]":
        return vec[i64]([*self.parents, 0, -1])

    def make_records(self) -> bytes:
        choices = self.choices
        kind = choices.randrange(12)
        if kind == 0 or len(self.parents) == 0:
            return self._add_root()
        if kind < 5:
            return self._add_node(choices.choice(list(self.parents)))
        if kind < 9:
            nodes = [node for node, parent in self.parents.items() if parent != 0]
            if len(nodes) == 0:
                return self._add_node(choices.choice(list(self.parents)))
            self.next_generation += 1
            slot = choices.randrange(NUM_SLOTS)
            return encode_page(choices.choice(nodes), self.next_generation - 1, slot, choices.randrange(2), 0, [choices.getrandbits(60)])
        if kind == 9:
            return encode_free(choices.randrange(NUM_SLOTS), 0)
        if kind == 10:
            # A leaf leaves the tree; its page may stay in its slot.
            leaves = [node for node in self.parents if node not in self.parents.values()]
            del self.parents[choices.choice(leaves)]
            return encode_weights(choices.randbytes(8))
        if choices.randrange(6) == 0:
            self.parents.clear()
            return encode_clear_all()
        salt = choices.choice(sorted(set(self.salts.values())))
        self._forget({node for node in self.parents if self.salts.get(node) == salt})
        return encode_clear_scope(None, salt)

    def _forget(self, gone: set[int]) -> None:
        while gone:
            for node in gone:
                self.parents.pop(node, None)
            gone = {node for node, parent in self.parents.items() if parent in gone}

    def _add_root(self) -> bytes:
        salt = self.choices.choice("abc")
        node = self._take(0)
        self.salts[node] = salt
        return encode_root(node, None, salt)

    def _add_node(self, parent: int) -> bytes:
        return encode_node(self._take(parent), parent, self.choices.randbytes(8), PACKED)

    def _take(self, parent: int) -> int:
        self.next_node += 1
        self.parents[self.next_node - 1] = parent
        return self.next_node - 1


def serve(folder: CacheFolder, files: LossyFiles, tree: Tree, num_records: int, appended: list[bytes]) -> None:
    """Append, with a compaction every 20 records, of which a step is made now and then, until the process is killed. ``appended``: gets
    what was before that."""
    compaction: Generator[None, None, None] | None = None
    for number in range(num_records):
        records = tree.make_records()
        folder.append(records)
        if files.is_dead:
            break
        appended.append(records)
        if number % 20 == 19 and compaction is None:
            folder.begin_log()
            compaction = compact(folder, tree.live())
        elif compaction is not None and tree.choices.randrange(2) == 0 and next(compaction, 0) == 0:
            compaction = None


def state_of(appended: list[bytes]) -> IndexState:
    state = IndexState()
    for records in appended:
        state.apply(records)
    return state


@pytest.mark.parametrize("seed", range(6))
def test_whenever_it_is_killed_all_is_found(seed: int, tmp_path: object) -> None:
    """At each of its writes, syncs, renames and removals; half of the time what was not synced is lost too. What is being appended may be
    there or not."""
    disk = LossyDisk()
    whole: list[bytes] = []
    serve(open_folder(disk, str(tmp_path)), LossyFiles(disk), Tree(seed), 70, whole)
    assert len([path for path in disk.paths("snapshot-") if not path.endswith(".new")]) == 1, "older ones are gone"
    expected = [describe(state_of(whole[:count])) for count in range(len(whole) + 1)]
    kill_at = 4
    is_dead = True
    while is_dead:
        disk = LossyDisk()
        folder = open_folder(disk, str(tmp_path), kill_at)
        files = folder.files
        assert isinstance(files, LossyFiles)
        appended: list[bytes] = []
        try:
            serve(folder, files, Tree(seed), 70, appended)
        except FileNotFoundError:
            assert files.is_dead, "what a dead process begins has no name"
        is_dead = files.is_dead
        files.kill()
        if kill_at % 2 == 1:
            disk.fail_power(kill_at)
        found = describe(open_folder(disk, str(tmp_path)).state)
        assert found in expected[len(appended) : len(appended) + 2], f"killed at write {kill_at}"
        kill_at += 1
    assert kill_at > 2 * len(whole), "a write and a sync for each"


@pytest.mark.parametrize("seed", range(20))
def test_later_records_find_their_nodes(seed: int, tmp_path: object) -> None:
    """Also those of blocks that had no page when the snapshot was made; the index stays as large as what is in use."""
    disk = LossyDisk()
    tree = Tree(seed)
    appended: list[bytes] = []
    for _process in range(3):
        folder = open_folder(disk, str(tmp_path))
        files = folder.files
        assert isinstance(files, LossyFiles)
        serve(folder, files, tree, 100, appended)
        folder.close()
        assert describe(open_folder(disk, str(tmp_path)).state) == describe(state_of(appended))
        disk.locked.clear()


def test_nodes_of_nothing_are_left_out(tmp_path: object) -> None:
    """A thousand blocks that came, were written and went again: what is left is one root, one block and one page."""
    disk = LossyDisk()
    folder = open_folder(disk, str(tmp_path))
    folder.append(encode_root(1, None, None))
    for number in range(2, 1002):
        folder.append(encode_node(number, 1, number.to_bytes(4, "little"), PACKED) + encode_page(number, number, 0, 0, 0, [number]))
    log_bytes = folder.log_bytes
    folder.begin_log()
    compaction = compact(folder, vec[i64]([1]))
    assert list(compaction) != []
    assert folder.log_bytes + folder.snapshot_bytes < 200 < log_bytes
    folder.close()
    again = open_folder(disk, str(tmp_path))
    assert sorted(list_nodes(again.state)) == [1, 1001] and again.state.next_node == 1002 and len(list_stored_pages(again.state)) == 1
    assert [os.path.basename(path) for path in disk.paths("log-") + disk.paths("snapshot-")] == ["log-2", "log-3", "snapshot-2"]


def test_ancestors_of_pages_stay(tmp_path: object) -> None:
    """Of a page in a slot that nothing has overwritten, though its block and all above it have left the tree."""
    disk = LossyDisk()
    folder = open_folder(disk, str(tmp_path))
    nodes = [encode_node(number, number - 1, number.to_bytes(4, "little"), PACKED) for number in range(2, 9)]
    appended = [encode_root(1, None, "a"), *nodes, encode_page(7, 1, 3, 0, 0, [5])]
    for records in appended:
        folder.append(records)
    folder.begin_log()
    compaction = compact(folder, vec[i64]())
    assert list(compaction) != []
    folder.close()
    again = open_folder(disk, str(tmp_path))
    assert describe(again.state) == describe(state_of(appended)) and sorted(list_nodes(again.state)) == [1, 2, 3, 4, 5, 6, 7]


def test_snapshots_that_were_not_finished_are_removed(tmp_path: object) -> None:
    """Of a process that was killed while it wrote one."""
    disk = LossyDisk()
    folder = open_folder(disk, str(tmp_path))
    folder.append(encode_root(1, None, "a"))
    folder.begin_log()
    compaction = compact(folder, vec[i64]([1]))
    while disk.paths(".new") == []:
        next(compaction)
    assert isinstance(folder.files, LossyFiles)
    folder.files.kill()
    again = open_folder(disk, str(tmp_path))
    again.begin_log()
    compaction = compact(again, vec[i64]([1]))
    assert list(compaction) != []
    assert disk.paths(".new") == [] and len(disk.paths("log-")) == 1 and len(disk.paths("snapshot-")) == 1


class FullFiles(LossyFiles):
    """Whatever is written to a file whose name has ``part`` is refused."""

    part = "?"

    def open_named(self, path: str, is_direct: bool) -> int:
        file = super().open_named(path, is_direct)
        self.names_of[file] = path
        return file

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        if is_write and self.part in self.names_of.get(file, ""):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().transfer(file, is_write, addresses, sizes, offset)

    def __init__(self, disk: LossyDisk) -> None:
        super().__init__(disk)
        self.names_of: dict[int, str] = {}


@pytest.mark.parametrize("part", ["snapshot-", "log-2"])
def test_a_full_disk_leaves_the_older_files(part: str, tmp_path: object) -> None:
    disk = LossyDisk()
    files = FullFiles(disk)
    folder = CacheFolder(files, [str(tmp_path)], IDENTITY, LAYOUT)
    tree = Tree(1)
    appended = [tree.make_records() for _record in range(60)]
    for records in appended:
        folder.append(records)
    for _attempt in range(2):
        files.part = part
        compaction: Generator[None, None, None] | None = None
        with pytest.raises(OSError):
            folder.begin_log()
            compaction = compact(folder, tree.live())
            list(compaction)
        assert disk.paths(".new") == [], "its space is free again"
        appended.append(tree.make_records())
        files.part = "?"
        folder.append(appended[-1])
    folder.begin_log()
    compaction = compact(folder, tree.live())
    assert list(compaction) != []
    appended.append(tree.make_records())
    folder.append(appended[-1])
    assert len(disk.paths("log-")) == 1 and len(disk.paths("snapshot-")) == 1
    folder.close()
    assert describe(open_folder(disk, str(tmp_path)).state) == describe(state_of(appended))


def test_a_damaged_file_is_not_replaced(tmp_path: object) -> None:
    disk = LossyDisk()
    folder = open_folder(disk, str(tmp_path))
    tree = Tree(1)
    for _record in range(60):
        folder.append(tree.make_records())
    (log,) = disk.paths("log-")
    folder.begin_log()
    disk.files[log].content[-1] ^= 1
    compaction = compact(folder, tree.live())
    with pytest.raises(BadRecordError, match="damaged"):
        list(compaction)
    assert len(disk.paths("log-")) == 2 and disk.paths("snapshot-") == []
