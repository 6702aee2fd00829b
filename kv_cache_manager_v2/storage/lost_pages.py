"""What becomes of pages whose bytes a disk has lost: they go as soon as nobody holds them."""

from ..events.removal_cause import FAILURE
from .page_storage import PageStorage


def settle_reads(storage: PageStorage) -> None:
    """See what became of pages that come from a disk, and drop those that are lost and that nobody holds."""
    reads = storage.reads
    rows = storage.rows
    reads.settle()
    # From the far end of each path, so that each goes for its own reason.
    for page in reversed(list(reads.lost)):
        if page in reads.lost and rows.num_holds(page) == 0:
            life_cycle = (page - rows.first_page_of_blocks) % rows.num_life_cycles
            storage.drop_with_owner(page, storage.pool_group_of[life_cycle], FAILURE)
