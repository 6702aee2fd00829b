"""The narrow way out: what storage and the tree tell of published pages while somebody listens.

Whoever changes a published page calls the matching method at the place of the change; `PageStorage.sink` is None when nobody
listens, and the test for that is all it costs. A sink only takes notes: it never calls back, never fails, decides nothing.

    on_root_made         a reuse scope gets its root
    on_block_published   a full block joined the tree; its pages follow, each with on_page_published
    on_page_published    a page of a block in the tree exists now: with its block, or added to it later
    on_run_published     both, for blocks below each other
    on_page_moved        the page's bytes are on another cache level now
    on_priority_changed
    on_page_removed      the page is gone; or its block is a sequence's own again
    on_block_removed     the block left the tree, after its pages
    on_root_removed
    on_levels_resized    pool groups have another number of slots

Pages are told of whether or not their block is full: a sink knows those of full blocks, and ignores all others. A page is named
by its page id, a block by its first page id, a root by a negative number that is never used again.
"""

from abc import ABCMeta, abstractmethod

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.ids import TokenIdExt


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class PageEventSink(metaclass=ABCMeta):
    __slots__ = ()

    @abstractmethod
    def on_root_made(self, root: i64, lora_id: int | None, salt: int | str | None) -> None: ...

    @abstractmethod
    def on_root_removed(self, root: i64) -> None: ...

    @abstractmethod
    def on_block_published(self, block: i64, parent: i64, key: bytes, mixed: list[TokenIdExt] | None) -> None:
        """``key``: the tokens as packed int32; ``mixed``: the same as the user gave them, if a digest is among them."""

    def on_run_published(
        self, parent: i64, first_pages: vec[i64], keys: list[bytes], places: vec[i64], num_life_cycles: i64
    ) -> None:
        """`on_block_published` and `on_page_published` for full blocks without digests, each below the one before it.

        ``places``: of each page of each block, level | priority << 8; negative where there is none.
        """
        position: i64 = 0
        while position < len(first_pages):
            block = first_pages[position]
            self.on_block_published(block, parent, keys[position], None)
            life_cycle: i64 = 0
            while life_cycle < num_life_cycles:
                place = places[position * num_life_cycles + life_cycle]
                if place >= 0:
                    self.on_page_published(block + life_cycle, place & 255, place >> 8)
                life_cycle += 1
            parent = block
            position += 1

    @abstractmethod
    def on_block_removed(self, block: i64) -> None: ...

    @abstractmethod
    def on_page_published(self, page: i64, level: i64, priority: i64) -> None: ...

    @abstractmethod
    def on_page_removed(self, page: i64, cause: i64) -> None:
        """``cause``: one of `removal_cause`."""

    @abstractmethod
    def on_page_moved(self, page: i64, old_level: i64, new_level: i64) -> None: ...

    @abstractmethod
    def on_priority_changed(self, page: i64, old_priority: i64, new_priority: i64) -> None: ...

    @abstractmethod
    def on_levels_resized(self, num_blocks: list[tuple[int, ...]]) -> None:
        """By layer group, how many of its blocks each cache level has slots for."""

    @abstractmethod
    def is_announced(self, page: i64) -> bool:
        """Whether the page was published, as one of a full block, and not removed since; for checks."""
