"""Which prefixes were cached and why they left: a bounded memory that explains missed tokens.

A prefix (a path of blocks, whatever its reuse scope) is known by a 62-bit hash of its tokens, a scope by 20 bits. `RemovalHistory`
remembers prefixes that are no longer cached. Everything depends on the calls alone. Two prefixes with one hash are taken for each other
here, and by eviction policies, which know by it what comes back (`RadixTree.content_key`): no page is matched by it.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..stats.block_times import BlockTimes
from ..storage.page_rows import NO_SHIFT, PageRows, WordColumn
from .reuse_scope import ReuseScope
from .prefix_hash import EMPTY_PREFIX, RUN_WORDS, WORD_BYTES, hash_block, hash_run
from .removal_history import FIRST_DROPPED, IS_HERE, NO_PREFIX, SCOPE_MASK, RemovalHistory

NO_SAMPLE: Final = -1
_SCOPE_SHIFT: Final = 34
_OWN: Final = 1 << 33
_SAMPLE_MASK: Final = _OWN - 1
_MOST_TOLD: Final = 128
_PART_WORDS: Final = 2048
_SAMPLED_SHIFT: Final = 17
_SAMPLED_MASK: Final = (1 << 20) - 1
"""A key is sampled if these bits of it are under the threshold."""

SCOPE_SHIFT: Final = 36
"""Shift of a scope in a key."""


def key_of(prefix: i64, scope: i64) -> i64:
    """One number for a prefix in a scope, as well mixed as the prefix."""
    return prefix ^ (scope << SCOPE_SHIFT)


@final
class BlockHistory:
    __slots__ = (
        "_rows", "_scopes", "_tells_scopes", "_num_told", "_told_end", "_prefixes", "_marks", "_table", "times", "sampling",
        "num_blocks", "_threshold",
    )  # fmt: skip

    def __init__(self, rows: PageRows, num_entries: int, sampling: float) -> None:
        """``num_entries``: of the `RemovalHistory`."""
        self.times: BlockTimes | None = None
        """Measures the times of sampled blocks that are published from now on."""
        self.sampling: Final = sampling
        """The share of blocks that are sampled."""
        self._threshold: Final[i64] = max(int(sampling * (_SAMPLED_MASK + 1)), 1)
        self.num_blocks: i64 = 0
        """Published now."""
        self._rows: Final = rows
        self._scopes: Final[dict[int, int]] = {}
        """By the negative page id of the root."""
        self._tells_scopes = False
        """Whether there ever was a second scope: until then the tree itself knows all that is here."""
        self._num_told: i64 = 0
        """Blocks from before the second scope, by number, that the table has been told of since; up to ``_told_end``."""
        self._told_end: i64 = 0
        self._prefixes: Final[WordColumn] = rows.add_words(NO_PREFIX, is_per_block=True)
        """Prefixes of the published blocks, by the number of the block."""
        self._marks: Final[WordColumn] = rows.add_words(0, is_per_block=True)
        """Marks of the published blocks, by number: the scope (bits 34-53) | whether the block is in the sample itself (33) | the number of
        the nearest sampled block before it on its path plus 1, or 0."""
        self._table: Final = RemovalHistory(num_entries)

    # -- what the tree tells ------------------------------------------------------------------------------------------

    def record_root(self, root: i64, scope: ReuseScope) -> None:
        hashed = hash_scope(scope)
        self._scopes[int(root)] = int(hashed)
        if not self._tells_scopes and len(self._scopes) > 1:
            # While there was one scope, no caller could ask whether another had a prefix; once in a manager's life.
            self._tells_scopes = True
            self._table.keep_one_each()
            self._told_end = len(self._prefixes.words)
            self._tell_scopes()

    def _tell_scopes(self) -> None:
        """Tell the table of some more blocks that were here before the second scope: all of them at once would be a pause."""
        prefixes = self._prefixes.words
        marks = self._marks.words
        end = self._num_told + _MOST_TOLD
        if end > self._told_end:
            end = self._told_end
        for number in range(self._num_told, end):
            if prefixes[number] != NO_PREFIX:
                self._table.record(prefixes[number], marks[number] >> _SCOPE_SHIFT, IS_HERE)
        self._num_told = end

    def forget_root(self, root: i64) -> None:
        del self._scopes[int(root)]

    def record_published(self, parent: i64, block: i64, key: bytes) -> None:
        """Both by their first page id; ``parent`` may be a root, ``key`` shorter than a block."""
        prefix = hash_block(self.prefix_of(parent), key)
        scope = self.scope_of_path(parent)
        number = self._rows.block_number(block)
        self._prefixes.words[number] = prefix
        if self._tells_scopes:
            self._table.record(prefix, scope, IS_HERE)
        self.num_blocks += 1
        mark = self._mark_below(parent, scope)
        self._marks.words[number] = mark
        times = self.times
        if times is not None and ((key_of(prefix, scope) >> _SAMPLED_SHIFT) & _SAMPLED_MASK) < self._threshold:
            self._record_sample(times, number, prefix, scope, mark)

    def record_published_run(self, parent: i64, first_pages: vec[i64], packed: memoryview) -> None:
        """Blocks below each other, the first one below ``parent``; ``first_pages`` are theirs, and ``packed`` their prefixes."""
        num_blocks: i64 = len(first_pages)
        if len(packed) % (WORD_BYTES * RUN_WORDS * num_blocks) != 0:
            self._record_one_by_one(parent, first_pages, packed)
            return
        run_prefixes = _hash_in_parts(self.prefix_of(parent), packed, num_blocks)
        scope = self.scope_of_path(parent)
        scope_bits = scope << SCOPE_SHIFT
        times = self.times
        threshold: i64 = 0 if times is None else self._threshold
        mark = self._mark_below(parent, scope)
        prefixes = self._prefixes.words
        marks = self._marks.words
        rows = self._rows
        first_of_all = rows.first_page_of_blocks
        shift = rows.block_shift
        for first_page, prefix in zip(first_pages, run_prefixes):
            # What `block_number` does, without a call for each block.
            number = (first_page - first_of_all) >> shift if shift != NO_SHIFT else rows.block_number(first_page)
            prefixes[number] = prefix
            marks[number] = mark
            if (((prefix ^ scope_bits) >> _SAMPLED_SHIFT) & _SAMPLED_MASK) < threshold and times is not None:
                mark = self._record_sample(times, number, prefix, scope, mark)
        self.num_blocks += num_blocks
        if self._tells_scopes:
            self._table.record_run(run_prefixes, num_blocks, scope, IS_HERE)

    def _record_one_by_one(self, parent: i64, first_pages: vec[i64], packed: memoryview) -> None:
        block_bytes = len(packed) // len(first_pages)
        position = 0
        for first_page in first_pages:
            self.record_published(parent, first_page, bytes(packed[position : position + block_bytes]))
            parent = first_page
            position += block_bytes

    def record_removal(self, block: i64, cause: i64) -> None:
        """The block left the tree, for a `removal_cause`."""
        number = self._rows.block_number(block)
        prefix = self._prefixes.words[number]
        self._prefixes.words[number] = NO_PREFIX
        mark = self._marks.words[number]
        scope = mark >> _SCOPE_SHIFT
        self._table.record(prefix, scope, FIRST_DROPPED + cause)
        if mark & _OWN != 0 and self.times is not None:
            self.times.record_removal(int(key_of(prefix, scope)))
        self.num_blocks -= 1

    def record_path_removal(self, first_pages: vec[i64], num_blocks: i64, cause: i64) -> None:
        """`record_removal` for the first ``num_blocks`` of them, blocks of one path that go one after the other."""
        if self.times is not None:
            for position in range(num_blocks):
                self.record_removal(first_pages[position], cause)
            return
        prefixes = self._prefixes.words
        rows = self._rows
        first_of_all = rows.first_page_of_blocks
        shift = rows.block_shift
        scope = self.scope_of_path(first_pages[0])
        gone = vec[i64]([NO_PREFIX] * num_blocks)
        for ordinal in range(num_blocks):
            first_page = first_pages[ordinal]
            number = (first_page - first_of_all) >> shift if shift != NO_SHIFT else rows.block_number(first_page)
            gone[ordinal] = prefixes[number]
            prefixes[number] = NO_PREFIX
        self._table.record_run(gone, num_blocks, scope, FIRST_DROPPED + cause)
        self.num_blocks -= num_blocks

    # -- the sample ---------------------------------------------------------------------------------------------------

    def _mark_below(self, block: i64, scope: i64) -> i64:
        """The mark of a block that is not in the sample, below this published block or root."""
        return (scope << _SCOPE_SHIFT) | (self._nearest_sample(block) + 1)

    def _nearest_sample(self, block: i64) -> i64:
        """The number of the last sampled block on the path that ends at this published block, or at a root; or NO_SAMPLE."""
        if block < 0:
            return NO_SAMPLE
        number = self._rows.block_number(block)
        mark = self._marks.words[number]
        return number if mark & _OWN != 0 else (mark & _SAMPLE_MASK) - 1

    def _record_sample(self, times: BlockTimes, number: i64, prefix: i64, scope: i64, mark: i64) -> i64:
        """The block with that number was published and is sampled. Returns the mark of the blocks below it."""
        self._marks.words[number] = mark | _OWN
        times.record_published(int(key_of(prefix, scope)))
        return (scope << _SCOPE_SHIFT) | (number + 1)

    def _sampled_keys(self, block: i64) -> list[int]:
        """The sampled blocks of the path that ends at this published block, or at a root; the last block first. None of a retired path."""
        keys: list[int] = []
        if self.times is not None and block >= 0 and self.prefix_of(block) != NO_PREFIX:
            scope = self.scope_of_path(block)
            sample = self._nearest_sample(block)
            while sample != NO_SAMPLE:
                keys.append(int(key_of(self._prefixes.words[sample], scope)))
                sample = (self._marks.words[sample] & _SAMPLE_MASK) - 1
        return keys

    def record_lookup(self, block: i64) -> None:
        """A prompt asked for the path that ends at this published block, and found it."""
        times = self.times
        if times is not None:
            for key in self._sampled_keys(block):
                times.record_lookup(key)

    def record_use(self, block: i64) -> None:
        """A sequence begins or stops to use the path that ends at this published block."""
        if self._num_told < self._told_end:
            self._tell_scopes()
        times = self.times
        if times is not None:
            for key in self._sampled_keys(block):
                times.record_used(key)

    # -- what the match asks ------------------------------------------------------------------------------------------

    def prefix_of(self, block: i64) -> i64:
        """Prefix hash of a published block, or of a root."""
        return EMPTY_PREFIX if block < 0 else self._prefixes.words[self._rows.block_number(block)]

    def scope_of(self, root: i64) -> i64:
        return self._scopes[int(root)]

    def scope_of_path(self, block: i64) -> i64:
        """Scope of a published block, or of a root."""
        if block < 0:
            return self._scopes[int(block)]
        return self._marks.words[self._rows.block_number(block)] >> _SCOPE_SHIFT

    def key_of_path(self, block: i64) -> i64:
        """`key_of` a published block: of the path that ends there, in its scope."""
        return key_of(self.prefix_of(block), self.scope_of_path(block))

    def find(self, prefix: i64, scope: i64) -> i64:
        """See `RemovalHistory.find`."""
        return self._table.find(prefix, scope)


def _hash_in_parts(prefix: i64, packed: memoryview, num_blocks: i64) -> vec[i64]:
    """The prefixes of blocks below each other, the first one below ``prefix``; each part is a copy that stays in L1."""
    prefixes = vec[i64]([0] * num_blocks)
    words = packed.cast("q")
    words_per_block: i64 = len(words) // num_blocks
    blocks_per_part = _PART_WORDS // words_per_block + 1
    begin: i64 = 0
    while begin < num_blocks:
        end = min(begin + blocks_per_part, num_blocks)
        part = words[begin * words_per_block : end * words_per_block]
        hash_run(prefix, vec[i64](part), words_per_block, prefixes, begin)
        prefix = prefixes[end - 1]
        begin = end
    return prefixes


def hash_scope(scope: ReuseScope) -> i64:
    """20 bits. From the scope's prefix, not from `hash`, which differs between processes."""
    encoded = repr((scope.lora_id, scope.salt)).encode(errors="surrogatepass")
    encoded += bytes(-len(encoded) % WORD_BYTES)
    return (hash_block(EMPTY_PREFIX, encoded) >> 40) & SCOPE_MASK
