"""A new snapshot while the manager serves, made step by step by the thread that writes the index, from the files before the present log.

The present log is new when it begins (`CacheFolder.begin_log`), so that until the end the older files and the present log say all there is,
as they do while a manager starts. Nothing is read of the manager but the numbers of the blocks in the tree, copied at the beginning.

Law: a start finds the same pages with the new snapshot as with the files that it replaces, and each block in the tree keeps its node. Nodes
without either, of blocks that have left the tree and whose pages were overwritten, are left out.
"""

import os
from collections.abc import Generator
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.fair_turns import FairTurns
from .cache_folder import CacheFolder
from .index_files import apply_file
from .index_snapshot import IndexSnapshot
from .index_state import IS_GONE, NO_ORDINAL, IndexState

_STEP_BYTES: Final = 1 << 16
"""Read at once: how long other threads may have to wait for the interpreter."""
_AT_ONCE: Final = 1 << 10


def compact(folder: CacheFolder, live: vec[i64]) -> Generator[None, None, None]:
    """Steps of a millisecond or so, begun right after `CacheFolder.begin_log`; after the last one the snapshot has its name, and what it
    replaces is gone. ``live``: the numbers of the blocks in the tree. The older files stay after `OSError` or `BadRecordError`, and
    where the steps are closed early."""
    state = IndexState()
    for name in folder.list_older():
        yield from apply_file(folder.files, os.path.join(folder.path, name), _STEP_BYTES, state)
    snapshot = choose_snapshot(state, live)
    yield
    yield from folder.write_snapshot(snapshot)


def choose_snapshot(state: IndexState, live: vec[i64]) -> IndexSnapshot:
    """All pages, the nodes of the tree, the nodes of the pages, and their ancestors. Other threads run meanwhile. ``live``: the numbers of
    the blocks in the tree; numbers below 1 mean nothing."""
    turns = FairTurns()
    parents = state.parents
    is_kept = vec[bool]()
    nodes = vec[i64]()
    pages = vec[i64]()
    count: i64 = len(parents)
    for node in range(count):
        is_kept = append(is_kept, False)
        _pause(turns, node)
    for position in range(len(live)):
        found = state.find(live[position]) if live[position] > 0 else NO_ORDINAL
        if found != NO_ORDINAL:
            is_kept[found] = True
        _pause(turns, position)
    for page in range(len(state.page_nodes)):
        owner = state.page_nodes[page]
        if owner != IS_GONE:
            is_kept[owner] = True
            pages = append(pages, page)
        _pause(turns, page)
    for position in range(count):
        last = count - 1 - position
        if is_kept[last] and parents[last] >= 0:
            is_kept[parents[last]] = True
        _pause(turns, position)
    for node in range(count):
        if is_kept[node] and parents[node] != IS_GONE:
            nodes = append(nodes, node)
        _pause(turns, node)
    return IndexSnapshot(state, nodes, parents, pages, state.page_nodes, state.next_generation)


def _pause(turns: FairTurns, position: i64) -> None:
    if position % _AT_ONCE == 0:
        turns.pause()
