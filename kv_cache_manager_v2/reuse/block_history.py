"""Which texts were here and what became of them: a bounded memory, for telling why a token was missed.

A text (a path of blocks, whatever its reuse scope) is known by a 62-bit hash of its tokens, a scope by 20 bits. The table has a
fixed number of entries, eight to a bucket; a full bucket forgets the entry that was written first, of a block that is gone if
there is one. Everything depends on the calls alone. Two texts with one hash are taken for each other here, and only here: no
decision is made from it.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..events.removal_cause import CAPACITY, UNREACHABLE
from ..stats.reuse_sampler import NO_KEY, SAMPLED_MASK, SAMPLED_SHIFT, ReuseSampler
from ..storage.page_rows import PageRows
from .block import Block
from .reuse_scope import ReuseScope
from .text_hash import EMPTY_TEXT, WORD_BYTES, hash_block, hash_run

IS_HERE: Final = 0
"""The text was published, and not dropped; told only once there is a second scope. Other states: `FIRST_DROPPED` + the
`removal_cause`."""
FIRST_DROPPED: Final = 1
NOT_KNOWN: Final = -1
IN_OTHER_SCOPE: Final = -2

NO_SAMPLE: Final = -1
_WAYS: Final = 8
_NO_TEXT: Final = -1
# An entry beside its text: state (bits 0-7) | scope (8-27) | when it was written (28-61).
_STATE_MASK: Final = 255
_SCOPE_SHIFT: Final = 8
_SCOPE_MASK: Final = (1 << 20) - 1
_TIME_SHIFT: Final = 28
_LAST_TIME: Final = (1 << 34) - 1


SCOPE_SHIFT: Final = 36
"""Of a scope in a key."""


def key_of(text: i64, scope: i64) -> i64:
    """One number for a text in a scope, as well mixed as the text."""
    return text ^ (scope << SCOPE_SHIFT)


@final
@mypyc_attr(native_class=True)
class BlockHistory:
    __slots__ = (
        "_rows", "_scopes", "_tells_scopes", "_only_scope", "_block_texts", "_block_scopes", "_texts", "_entries", "_bucket_mask",
        "_time", "sampler", "num_blocks", "_num_evicted", "_num_blocks_at_evictions", "_block_samples", "_samples_before",
        "_block_bytes",
    )  # fmt: skip

    _rows: Final[PageRows]
    _scopes: Final[dict[int, int]]
    """By the negative page id of the root."""
    _tells_scopes: bool
    """Whether there ever was a second scope: until then the tree itself knows all that is here."""
    _block_texts: vec[i64]
    """Of the published blocks, by the number of the block."""
    _only_scope: i64
    """Until there was a second scope: that of all blocks."""
    _block_scopes: vec[i64]
    """Of the published blocks, by number, from the second scope on."""
    _texts: Final[vec[i64]]
    _entries: Final[vec[i64]]
    _bucket_mask: Final[i64]
    _time: i64
    _block_bytes: Final[i64]
    """Of the tokens of a full block."""
    sampler: Final[ReuseSampler | None]
    """Measures how long ago blocks were used; None: nobody does."""
    num_blocks: i64
    """Published now."""
    _num_evicted: i64
    _num_blocks_at_evictions: i64
    """The sum of `num_blocks` over all evictions."""
    _block_samples: vec[i64]
    """For each published block the number of the nearest sampled one on its path, itself included; or NO_SAMPLE."""
    _samples_before: Final[dict[int, int]]
    """For each sampled block the nearest one before it on its path."""

    def __init__(self, rows: PageRows, num_entries: int, sampler: ReuseSampler | None, block_bytes: int = 0) -> None:
        """``num_entries`` is rounded up to a power of two of at least one bucket; an entry is 16 bytes."""
        self.sampler = sampler
        self._block_bytes = block_bytes
        self.num_blocks = 0
        self._num_evicted = 0
        self._num_blocks_at_evictions = 0
        self._block_samples = vec[i64]()
        self._samples_before = {}
        num_buckets = 1
        while num_buckets * _WAYS < num_entries:
            num_buckets *= 2
        self._rows = rows
        self._scopes = {}
        self._tells_scopes = False
        self._only_scope = 0
        self._block_texts = vec[i64]()
        self._block_scopes = vec[i64]()
        self._texts = vec[i64]([_NO_TEXT] * (num_buckets * _WAYS))
        self._entries = vec[i64]([0] * (num_buckets * _WAYS))
        self._bucket_mask = num_buckets - 1
        self._time = 0

    @property
    def num_entries(self) -> int:
        return len(self._texts)

    # -- what the tree tells ------------------------------------------------------------------------------------------

    def note_root(self, root: i64, scope: ReuseScope) -> None:
        hashed = hash_scope(scope)
        self._scopes[int(root)] = int(hashed)
        if self._tells_scopes:
            return
        if len(self._scopes) == 1:
            self._only_scope = hashed
            return
        # While there was one scope, nobody could ask whether another had a text; once in a manager's life.
        self._tells_scopes = True
        number: i64 = 0
        while number < len(self._block_texts):
            self._block_scopes = append(self._block_scopes, self._only_scope)
            if self._block_texts[number] != _NO_TEXT:
                self._write(self._block_texts[number], self._only_scope, IS_HERE)
            number += 1

    def forget_root(self, root: i64) -> None:
        del self._scopes[int(root)]

    def note_published(self, parent: i64, block: i64, key: bytes) -> None:
        """Both by their first page id; ``parent`` may be a root, ``key`` shorter than a block."""
        text = hash_block(self.text_of(parent), key)
        scope = self._scope_of_path(parent)
        number = self._reach(block)
        self._block_texts[number] = text
        if self._tells_scopes:
            self._block_scopes[number] = scope
            self._write(text, scope, IS_HERE)
        self.num_blocks += 1
        sampler = self.sampler
        if sampler is not None:
            is_full: bool = len(key) == self._block_bytes
            self._block_samples[number] = self._note_sample(sampler, number, text, scope, self._sample_of(parent), is_full)

    def note_published_run(self, parent: i64, blocks: list[Block], begin: i64, end: i64, packed: memoryview) -> None:
        """``blocks[begin:end]``, each below the one before it, the first one below ``parent``; ``packed`` are their texts."""
        if len(packed) % (WORD_BYTES * (end - begin)) != 0:
            self._note_one_by_one(parent, blocks, begin, end)
            return
        run_texts = vec[i64]([0] * (end - begin))
        hash_run(self.text_of(parent), vec[i64](packed.cast("q")), run_texts)
        rows = self._rows
        scope = self._scope_of_path(parent)
        scope_bits = scope << SCOPE_SHIFT
        tells_scopes = self._tells_scopes
        sampler = self.sampler
        threshold: i64 = 0 if sampler is None else sampler.threshold
        sample = self._sample_of(parent)
        texts = self._block_texts
        samples = self._block_samples
        ordinal = begin
        for text in run_texts:
            number = rows.block_number(blocks[ordinal].first_page)
            if number >= len(texts):
                self._reach(blocks[ordinal].first_page)
                texts = self._block_texts
                samples = self._block_samples
            texts[number] = text
            if tells_scopes:
                self._block_scopes[number] = scope
                self._write(text, scope, IS_HERE)
            if threshold > 0:
                if (((text ^ scope_bits) >> SAMPLED_SHIFT) & SAMPLED_MASK) < threshold and sampler is not None:
                    sample = self._note_sample(sampler, number, text, scope, sample, True)
                samples[number] = sample
            ordinal += 1
        self.num_blocks += end - begin

    def _note_one_by_one(self, parent: i64, blocks: list[Block], begin: i64, end: i64) -> None:
        ordinal = begin
        while ordinal < end:
            self.note_published(parent, blocks[ordinal].first_page, blocks[ordinal].key)
            parent = blocks[ordinal].first_page
            ordinal += 1

    def _reach(self, block: i64) -> i64:
        """The block's number; there is an entry for it."""
        number = self._rows.block_number(block)
        while number >= len(self._block_texts):
            self._block_texts = append(self._block_texts, _NO_TEXT)
            if self.sampler is not None:
                self._block_samples = append(self._block_samples, NO_SAMPLE)
            if self._tells_scopes:
                self._block_scopes = append(self._block_scopes, 0)
        return number

    def note_gone(self, block: i64, cause: i64) -> None:
        """The block left the tree, for a `removal_cause`."""
        number = self._rows.block_number(block)
        texts = self._block_texts
        text = texts[number]
        texts[number] = _NO_TEXT
        scope = self._only_scope
        if self._tells_scopes:
            scope = self._block_scopes[number]
        self._write(text, scope, FIRST_DROPPED + cause)
        sampler = self.sampler
        if sampler is not None and self._block_samples[number] == number:
            del self._samples_before[int(number)]
            if sampler.times is not None:
                sampler.note_gone(key_of(text, scope))
        num_blocks = self.num_blocks
        if cause == CAPACITY or cause == UNREACHABLE:
            self._num_evicted += 1
            self._num_blocks_at_evictions += num_blocks
        self.num_blocks = num_blocks - 1

    # -- the sample ---------------------------------------------------------------------------------------------------

    def _sample_of(self, block: i64) -> i64:
        """Of a published block, or of a root."""
        if block < 0 or self.sampler is None:
            return NO_SAMPLE
        return self._block_samples[self._rows.block_number(block)]

    def _note_sample(self, sampler: ReuseSampler, number: i64, text: i64, scope: i64, before: i64, is_full: bool) -> i64:
        """The block's number if it is in the sample, else that of the one before it."""
        key = key_of(text, scope)
        if not sampler.is_sampled(key):
            return before
        self._samples_before[int(number)] = int(before)
        key_before: i64 = NO_KEY
        if before != NO_SAMPLE:
            key_before = key_of(self._block_texts[before], scope)
        sampler.note_published(key, key_before, is_full)
        return number

    def _list_samples(self, block: i64) -> list[int]:
        """Keys of the sampled blocks of the path that ends at this published block, the last one first."""
        keys: list[int] = []
        scope = self._scope_of_path(block)
        sample = self._sample_of(block)
        while sample != NO_SAMPLE:
            keys.append(int(key_of(self._block_texts[sample], scope)))
            sample = self._samples_before[int(sample)]
        return keys

    def note_asked(self, block: i64) -> None:
        """A prompt asked for the path that ends at this published block, and found it."""
        sampler = self.sampler
        if sampler is None or block < 0:
            return
        for key in self._list_samples(block):
            sampler.note_asked(key)

    def note_held(self, block: i64) -> None:
        """A sequence uses the path that ends at this published block from now on."""
        sampler = self.sampler
        if sampler is None or block < 0:
            return
        for key in self._list_samples(block):
            sampler.note_held(key)

    def note_given_back(self, block: i64) -> None:
        """The path that ends at this published block was used until now; its far end is the first to go."""
        sampler = self.sampler
        if sampler is None or block < 0:
            return
        for key in self._list_samples(block):
            sampler.note_given_back(key)

    def forget_full_size(self) -> None:
        """The cache has another size now."""
        self._num_evicted = 0
        self._num_blocks_at_evictions = 0

    def compute_full_size(self) -> float:
        """Published blocks that were there when room had to be made, on average; 0.0 if it never had."""
        if self._num_evicted == 0:
            return 0.0
        return float(self._num_blocks_at_evictions) / float(self._num_evicted)

    # -- what the match asks ------------------------------------------------------------------------------------------

    def text_of(self, block: i64) -> i64:
        """Of a published block, or of a root."""
        return EMPTY_TEXT if block < 0 else self._block_texts[self._rows.block_number(block)]

    def scope_of(self, root: i64) -> i64:
        return self._scopes[int(root)]

    def _scope_of_path(self, block: i64) -> i64:
        """Of a published block, or of a root."""
        if block < 0:
            return self._scopes[int(block)]
        if self._tells_scopes:
            return self._block_scopes[self._rows.block_number(block)]
        return self._only_scope

    def find(self, text: i64, scope: i64) -> i64:
        """What became of the text in that scope: IS_HERE or dropped; else IN_OTHER_SCOPE if another one had it, or NOT_KNOWN."""
        texts = self._texts
        entries = self._entries
        at = (text & self._bucket_mask) * _WAYS
        end = at + _WAYS
        found: i64 = NOT_KNOWN
        while at < end:
            if texts[at] == text:
                entry = entries[at]
                if ((entry >> _SCOPE_SHIFT) & _SCOPE_MASK) == scope:
                    return entry & _STATE_MASK
                found = IN_OTHER_SCOPE
            at += 1
        return found

    # -- the table ----------------------------------------------------------------------------------------------------

    def _write(self, text: i64, scope: i64, state: i64) -> None:
        texts = self._texts
        entries = self._entries
        begin = (text & self._bucket_mask) * _WAYS
        end = begin + _WAYS
        at = begin
        place: i64 = -1
        oldest = begin
        # The time is above all else in an entry: the least one was written first.
        oldest_entry = entries[begin]
        while at < end:
            # Entries are overwritten, never emptied: behind the first empty one there is none.
            known = texts[at]
            if known == _NO_TEXT:
                place = at
                break
            entry = entries[at]
            if known == text and ((entry >> _SCOPE_SHIFT) & _SCOPE_MASK) == scope:
                place = at
                break
            if entry < oldest_entry:
                oldest_entry = entry
                oldest = at
            at += 1
        if place < 0:
            # With one scope there are only entries of blocks that are gone.
            place = self._find_room(begin) if self._tells_scopes else oldest
        time = self._time
        texts[place] = text
        entries[place] = state | (scope << _SCOPE_SHIFT) | (time << _TIME_SHIFT)
        if time < _LAST_TIME:
            self._time = time + 1

    def _find_room(self, begin: i64) -> i64:
        """In a full bucket: the oldest entry of a block that is gone; else the oldest."""
        entries = self._entries
        oldest = begin
        oldest_gone: i64 = -1
        at = begin
        while at < begin + _WAYS:
            entry = entries[at]
            if (entry >> _TIME_SHIFT) < (entries[oldest] >> _TIME_SHIFT):
                oldest = at
            if (entry & _STATE_MASK) != IS_HERE:
                if oldest_gone < 0 or (entry >> _TIME_SHIFT) < (entries[oldest_gone] >> _TIME_SHIFT):
                    oldest_gone = at
            at += 1
        return oldest_gone if oldest_gone >= 0 else oldest


def hash_scope(scope: ReuseScope) -> i64:
    """20 bits. From the scope's text, not from `hash`, which differs between processes."""
    encoded = repr((scope.lora_id, scope.salt)).encode(errors="surrogatepass")
    encoded += bytes(-len(encoded) % WORD_BYTES)
    return (hash_block(EMPTY_TEXT, encoded) >> 40) & _SCOPE_MASK
