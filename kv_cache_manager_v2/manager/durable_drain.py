"""Before a manager ends: published pages that the durable level does not have yet are written to it, parents before children."""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..device.monotonic_clock import MonotonicClock
from ..reuse.block import Block
from ..reuse.radix_tree import RadixTree
from ..sequence.shared_state import SharedState

_BATCH_BLOCKS: Final = 256
"""Between two looks at the clock."""


def drain_pages(shared: SharedState, seconds: float) -> None:
    """No sequence is open. What is not begun within so many seconds is not written."""
    early = shared.early_copies
    assert early is not None, "a durable level without copies"
    clock = MonotonicClock()
    deadline = clock.seconds() + seconds
    pending = _list_blocks(shared.tree)
    pages = vec[i64]()
    num_blocks = 0
    position = 0
    while position < len(pending):
        block = pending[position]
        position += 1
        for life_cycle in range(shared.num_life_cycles):
            pages = append(pages, block.first_page + life_cycle)
        num_blocks += 1
        if num_blocks == _BATCH_BLOCKS or position == len(pending):
            if clock.seconds() >= deadline:
                break
            shared.guard.begin_change()
            early.offload_copies(pages)
            shared.guard.end_change()
            shared.order.synchronize_all()
            pages = vec[i64]()
            num_blocks = 0
    shared.order.synchronize_all()
    record_written(shared)


def record_written(shared: SharedState) -> None:
    """Pages that lie on the durable level and are not in its index: they were written there before they were published."""
    storage = shared.storage
    durable = storage.durable
    assert durable is not None, "what is written is recorded without a durable level"
    storage.reads.settle()
    for block in _list_blocks(shared.tree):
        for life_cycle in range(shared.num_life_cycles):
            page = block.first_page + life_cycle
            if not storage.rows.has_page(page) or storage.reads.knows(int(page)):
                continue
            pool_group = storage.pool_group_of[life_cycle]
            if storage.rows.level(page) == durable.index:
                slot = storage.rows.slot(page)
            elif storage.copies.has_copy_at(page, durable.index * storage.num_pool_groups + pool_group):
                slot = storage.copies.slot_of(page)
            else:
                continue
            node = shared.tree.durable_nodes(vec[i64]([page]))[0]
            if node > 0:
                durable.record_page(pool_group, slot, node, life_cycle)


def _list_blocks(tree: RadixTree) -> list[Block]:
    """Breadth first: what many prefixes share comes first."""
    blocks: list[Block] = []
    for scope in tree.scopes():
        root = tree.find_root(scope)
        if root is not None:
            blocks.extend(tree.children_of(root))
    position = 0
    while position < len(blocks):
        blocks.extend(tree.children_of(blocks[position]))
        position += 1
    return blocks


def record_weights(shared: SharedState) -> None:
    """Record what the policies have learned, for the next process."""
    storage = shared.storage
    if storage.durable is not None and storage.learns:
        storage.durable.record_weights(storage.learning.model.to_bytes())
