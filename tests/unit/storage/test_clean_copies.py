"""Clean copies: a slot stands aside while it holds one, the oldest gives way first, and the page's slot waits for what reads it."""

import random

from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2 import HostDevice
from kv_cache_manager_v2.device.stream_order import StreamOrder, timeline_of_point
from kv_cache_manager_v2.pools.slot_allocator import SlotAllocator
from kv_cache_manager_v2.storage.clean_copies import CleanCopies
from kv_cache_manager_v2.storage.page_rows import PLACE, ROW_WORDS, PageRows, pack_place

NUM_SLOTS = 12


class Cellar:
    """Two levels of one pool group; each page lies in its own slot of level 0."""

    def __init__(self, num_pages: int) -> None:
        self.device = HostDevice()
        self.order = StreamOrder(self.device)
        self.rows = PageRows(1, 0)
        self.allocators = [SlotAllocator(num_pages, 0), SlotAllocator(NUM_SLOTS, 0)]
        self.copies = CleanCopies(self.rows, self.order, self.allocators, 1, 2)
        self.pages = []
        for _ in range(num_pages):
            page = int(self.rows.add_block())
            slot = self.allocators[0].allocate()
            self.rows.words[page * ROW_WORDS + PLACE] = pack_place(slot, 0, 35)
            self.pages.append(page)

    def keep(self, page: int, read_point: i64 = 0) -> int:
        slot = int(self.allocators[1].allocate())
        self.copies.keep(page, 1, slot, read_point)
        return slot

    def check(self, expected: dict[int, int]) -> None:
        """``expected``: the slot of each copy, oldest first."""
        assert self.copies.collect() == {page: (1, slot) for page, slot in expected.items()}
        assert list(self.copies.collect()) == list(expected)
        assert self.copies.num_copies == self.allocators[1].num_aside == len(expected)
        self.allocators[1].check()


def test_copies_come_and_go_at_random() -> None:
    for seed in range(20):
        choices = random.Random(seed)
        cellar = Cellar(20)
        expected: dict[int, int] = {}
        in_use: set[int] = set()
        for _step in range(200):
            page = choices.choice(cellar.pages)
            kind = choices.random()
            allocator = cellar.allocators[1]
            if kind < 0.4 and allocator.num_free > allocator.num_aside:
                slot = cellar.keep(page)
                expected.pop(page, None)
                expected[page] = slot
            elif kind < 0.45:
                fresh = [other for other in choices.sample(cellar.pages, 4) if other not in expected]
                fresh = fresh[: int(allocator.num_free - allocator.num_aside)]
                slots = allocator.allocate_many(len(fresh))
                cellar.copies.keep_all(vec[i64](fresh), 1, slots, 0)
                expected.update(zip(fresh, [int(slot) for slot in slots], strict=True))
            elif kind < 0.55 and page in expected:
                assert cellar.copies.has_copy(page) and cellar.copies.has_copy_at(page, 1)
                assert cellar.copies.take(page) == expected[page]
                in_use.add(expected.pop(page))
            elif kind < 0.62:
                cellar.copies.touch_block(page, 1)
                if page in expected:
                    expected[page] = expected.pop(page)
            elif kind < 0.7:
                cellar.copies.forget(page)
                expected.pop(page, None)
                assert not cellar.copies.has_copy(page)
            elif kind < 0.85 and allocator.num_free > 0:
                # Somebody needs a slot: a plain one if there is one, else that of the oldest copy.
                oldest = next(iter(expected), None)
                had_plain = allocator.num_free > allocator.num_aside
                cellar.copies.make_plain_slot(1)
                slot = int(allocator.allocate())
                if not had_plain:
                    assert oldest is not None and slot == expected.pop(oldest)
                assert slot not in expected.values() and slot not in in_use
                in_use.add(slot)
            elif len(in_use) > 0:
                slot = in_use.pop()
                allocator.free(slot, 0)
            cellar.check(expected)
        cellar.copies.forget_all(0)
        cellar.check({})
        assert cellar.allocators[1].num_free == NUM_SLOTS - len(in_use)


def test_a_forgotten_copy_leaves_what_reads_the_page() -> None:
    """The page's slot may not be touched before the copy was made; a copy that came the other way asks for nothing."""
    cellar = Cellar(2)
    user = cellar.order.enter(cellar.device.create_stream())
    copier = cellar.order.enter_slow(cellar.device.create_stream())
    ready = cellar.allocators[0].ready
    written = cellar.order.mark(user)
    ready[0] = written
    cellar.order.wait(copier, written)
    copied = cellar.order.mark(copier)
    cellar.keep(cellar.pages[0], copied)
    assert cellar.copies.read_point(cellar.pages[0]) == copied
    assert cellar.allocators[0].ready[0] == written, "readers do not wait for the copy"
    cellar.copies.forget(cellar.pages[0])
    # Nothing has happened to the slot since: the copy was made behind all of that.
    assert cellar.allocators[0].ready[0] == copied
    # Read again since: whoever takes the slot waits for both, on a stream of the library's own.
    ready[0] = written
    cellar.keep(cellar.pages[0], copied)
    ready[0] = cellar.order.mark(user)
    cellar.copies.forget(cellar.pages[0])
    assert timeline_of_point(cellar.allocators[0].ready[0]) not in (user, copier)
    ready[1] = written
    cellar.keep(cellar.pages[1])
    cellar.copies.forget(cellar.pages[1])
    assert cellar.allocators[0].ready[1] == written
    cellar.order.close()
