"""Before a manager ends: published pages that the durable level does not have yet are written to it, parents before children."""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..device.monotonic_clock import MonotonicClock
from ..reuse.block import Block
from ..sequence.shared_state import SharedState

_BATCH_BLOCKS: Final = 256
"""Between two looks at the clock."""


def drain_pages(shared: SharedState, seconds: float) -> None:
    """No sequence is open. What is not begun within so many seconds is not written."""
    early = shared.early_copies
    assert early is not None, "a durable level without copies"
    clock = MonotonicClock()
    deadline = clock.seconds() + seconds
    tree = shared.tree
    pending: list[Block] = []
    for scope in tree.scopes():
        root = tree.find_root(scope)
        if root is not None:
            pending.extend(tree.children_of(root))
    pages = vec[i64]()
    num_blocks = 0
    position = 0
    # Breadth first: what many prefixes share comes first.
    while position < len(pending):
        block = pending[position]
        position += 1
        pending.extend(tree.children_of(block))
        for life_cycle in range(shared.num_life_cycles):
            pages = append(pages, block.first_page + life_cycle)
        num_blocks += 1
        if num_blocks == _BATCH_BLOCKS or position == len(pending):
            if clock.seconds() >= deadline:
                return
            shared.guard.begin_change()
            early.offload_copies(pages)
            shared.guard.end_change()
            shared.order.synchronize_all()
            pages = vec[i64]()
            num_blocks = 0


def record_weights(shared: SharedState) -> None:
    """What the policies have learned is for the next process."""
    storage = shared.storage
    if storage.durable is not None and storage.learns:
        storage.durable.record_weights(storage.learning.model.to_bytes())
