"""Invariants of events: with a listener, exactly the pages of full published blocks are announced."""

from ..base.errors import CorruptedError
from ..sequence.shared_state import SharedState


def check_announcements(shared: SharedState) -> None:
    """Raise `CorruptedError` with the first page that is announced and should not be, or should be and is not."""
    storage = shared.storage
    sink = storage.sink
    if sink is None:
        return
    for block in shared.tree.pool.all_blocks():
        is_full = block.parent is not None and shared.tree.is_full(block)
        for life_cycle in range(shared.num_life_cycles):
            page = block.first_page + life_cycle
            expected = is_full and storage.rows.has_page(page)
            if sink.is_announced(page) != expected:
                raise CorruptedError(
                    f"page {page} of a {'full published' if is_full else 'private or partial'} block is "
                    f"{'not announced' if expected else 'announced'} to the event sink"
                )
