"""Pages whose bytes a disk has lost: dropped as soon as no sequence holds them."""

from ..events.removal_cause import FAILURE
from ..stats.page_counters import PageCounters
from .page_removal import drop_with_owner
from .page_storage import PageStorage


def settle_reads(storage: PageStorage, account: PageCounters | None = None) -> None:
    """Look at the outcome of disk reads, and drop pages that are lost and that no sequence holds.

    ``account``: of the sequence whose call it is.
    """
    reads = storage.reads
    rows = storage.rows
    reads.settle()
    # From the leaf of each path, so that each goes for its own reason.
    for page in reversed(list(reads.lost)):
        if page in reads.lost and rows.num_holds(page) == 0:
            life_cycle = (page - rows.first_page_of_blocks) % rows.num_life_cycles
            drop_with_owner(storage, page, storage.pool_group_of[life_cycle], FAILURE, account)
