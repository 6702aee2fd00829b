"""Invariants of events: with a listener, exactly the pages of published blocks are announced, of full ones or of all."""

from ..base.errors import CorruptedError
from ..sequence.shared_state import SharedState


def check_announcements(shared: SharedState) -> None:
    """Raise `CorruptedError` with the first page that is announced and should not be, or should be and is not."""
    storage = shared.storage
    sink = storage.sink
    if sink is None:
        return
    for block in shared.tree.pool.all_blocks():
        is_told_of = block.parent is not None and (sink.wants_partial_blocks or shared.tree.is_full(block))
        for life_cycle in range(shared.num_life_cycles):
            page = block.first_page + life_cycle
            expected = is_told_of and storage.rows.has_page(page)
            if sink.is_announced(page) != expected:
                raise CorruptedError(
                    f"page {page} of a {'published' if is_told_of else 'private or partial'} block is "
                    f"{'not announced' if expected else 'announced'} to the event sink"
                )
