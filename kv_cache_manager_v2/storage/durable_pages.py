"""Which pages are on their way to the durable level, for its records."""

from librt.vecs import vec
from mypy_extensions import i64

from ..durable.durable_level import DurableLevel
from .page_storage import PageStorage


def announce_pages(
    storage: PageStorage, durable: DurableLevel, pool_group: i64, pages: vec[i64], slots: vec[i64], count: i64
) -> None:
    """These pages are about to be written to those slots. Pages that are private, or whose own bytes a disk may have failed to read,
    are not recorded."""
    rows = storage.rows
    owner = storage.owner()
    for position in range(count):
        page = pages[position]
        if not storage.reads.knows(int(page)):
            node = owner.durable_node(page)
            if node != 0:
                life_cycle = (page - rows.first_page_of_blocks) % rows.num_life_cycles
                durable.announce(pool_group, slots[position], node, life_cycle)
