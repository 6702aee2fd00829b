"""`PageEventSink`: the interface through which storage and the tree report changes of published pages.

The code that changes a published page calls the matching method right there. `PageStorage.sink` is None without a listener, and
the test for None is then the whole cost. A sink only logs: it never calls back, never fails, decides nothing.
    on_root_made         a reuse scope gets its root
    on_block_published   a full block joined the tree; its pages follow, each with on_page_published
    on_page_published    a page of a block in the tree exists now: with its block, or added to it later
    on_run_published     both, for a path of full blocks
    on_page_moved        the page's bytes are on another cache level now
    on_priority_changed
    on_page_removed      the page is gone; or its block is private to a sequence again
    on_pages_removed     the same for many
    on_block_removed     the block left the tree, after its pages
    on_path_removed      both, for a path of blocks
    on_root_removed
    on_levels_resized    pool groups have another number of slots

Blocks are full, except for a sink that `wants_partial_blocks`. Changes of other blocks' pages are reported, too: a sink tracks which
blocks it was told of and ignores the others. A page is named by its page id, a block by its first page id, a root by a negative number
that is never used again.
"""

from abc import ABCMeta, abstractmethod

from librt.vecs import vec
from typing import ClassVar

from mypy_extensions import i64, mypyc_attr

from ..base.handle import Handle
from ..base.ids import TokenIdExt
from .published_run import PublishedRun, unpack_level, unpack_priority
from .removal_cause import UNREACHABLE


@mypyc_attr(allow_interpreted_subclasses=True)
class PageEventSink(Handle, metaclass=ABCMeta):
    __slots__ = ()

    _NAMES: ClassVar[str] = "a listener of this process"

    @property
    def wants_partial_blocks(self) -> bool:
        """Whether partial blocks are to be announced as well."""
        return False

    @abstractmethod
    def on_root_made(self, root: i64, lora_id: int | None, salt: int | str | None) -> None:
        raise NotImplementedError("PageEventSink.on_root_made is for subclasses to define")

    @abstractmethod
    def on_root_removed(self, root: i64) -> None:
        raise NotImplementedError("PageEventSink.on_root_removed is for subclasses to define")

    @abstractmethod
    def on_block_published(self, block: i64, parent: i64, key: bytes, mixed: list[TokenIdExt] | None) -> None:
        """``key``: the tokens as packed int32; ``mixed``: the tokens as the user gave them, if a digest is among them."""
        raise NotImplementedError("PageEventSink.on_block_published is for subclasses to define")

    def on_run_published(self, run: PublishedRun) -> None:
        """`on_block_published` and `on_page_published` for all blocks of the run."""
        parent = run.parent
        num_life_cycles: i64 = len(run.levels_and_priorities) // len(run.first_pages)
        ordinal: i64 = 0
        for block in run.first_pages:
            self.on_block_published(block, parent, run.key(ordinal), None)
            for life_cycle in range(num_life_cycles):
                level_and_priority = run.levels_and_priorities[ordinal * num_life_cycles + life_cycle]
                if level_and_priority >= 0:
                    self.on_page_published(block + life_cycle, unpack_level(level_and_priority), unpack_priority(level_and_priority))
            parent = block
            ordinal += 1

    def on_pages_removed(self, pages: vec[i64], num_pages: i64, cause: i64) -> None:
        """`on_page_removed` for the first ``num_pages`` pages."""
        for position in range(num_pages):
            self.on_page_removed(pages[position], cause)

    def on_path_removed(
        self, pages: vec[i64], num_pages: i64, blocks: vec[i64], num_blocks: i64, life_cycle: i64, num_life_cycles: i64, cause: i64
    ) -> None:  # fmt: skip
        """Removed pages, and then the removed ``blocks`` (the first ``num_blocks``), leaf first. Of each block the page of
        ``life_cycle`` comes first and was removed for ``cause``; its other pages follow and are UNREACHABLE."""
        end: i64 = 0
        for position in range(num_pages):
            page = pages[position]
            if end - num_life_cycles <= page < end:
                self.on_page_removed(page, UNREACHABLE)
            else:
                end = page - life_cycle + num_life_cycles
                self.on_page_removed(page, cause)
        for position in range(num_blocks):
            self.on_block_removed(blocks[position])

    @abstractmethod
    def on_block_removed(self, block: i64) -> None:
        raise NotImplementedError("PageEventSink.on_block_removed is for subclasses to define")

    @abstractmethod
    def on_page_published(self, page: i64, level: i64, priority: i64) -> None:
        raise NotImplementedError("PageEventSink.on_page_published is for subclasses to define")

    @abstractmethod
    def on_page_removed(self, page: i64, cause: i64) -> None:
        """``cause``: a value of `removal_cause`."""
        raise NotImplementedError("PageEventSink.on_page_removed is for subclasses to define")

    @abstractmethod
    def on_page_moved(self, page: i64, old_level: i64, new_level: i64) -> None:
        raise NotImplementedError("PageEventSink.on_page_moved is for subclasses to define")

    @abstractmethod
    def on_priority_changed(self, page: i64, old_priority: i64, new_priority: i64) -> None:
        raise NotImplementedError("PageEventSink.on_priority_changed is for subclasses to define")

    @abstractmethod
    def on_levels_resized(self, num_blocks: list[tuple[int, ...]]) -> None:
        """By layer group, the slots of each cache level."""
        raise NotImplementedError("PageEventSink.on_levels_resized is for subclasses to define")

    @abstractmethod
    def is_announced(self, page: i64) -> bool:
        """Whether the page was published as part of a full block and not removed since; for checks."""
        raise NotImplementedError("PageEventSink.is_announced is for subclasses to define")
