"""Which texts were here and what became of them: a bounded memory, for telling why a token was missed.

A text (a path of blocks, whatever its reuse scope) is known by a 62-bit hash of its tokens, a scope by 20 bits. The table has a
fixed number of entries, eight to a bucket; a full bucket forgets the entry that was written first, of a block that is gone if
there is one. Everything depends on the calls alone. Two texts with one hash are taken for each other here, and only here: no
decision is made from it.
"""

from typing import Final, final

from librt.strings import read_i32_le, read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..events.removal_cause import CAPACITY, UNREACHABLE
from ..stats.reuse_sampler import NO_KEY, ReuseSampler
from ..storage.page_rows import PageRows
from .reuse_scope import ReuseScope

IS_HERE: Final = 0
"""The text was published, and not dropped; told only once there is a second scope. Other states: `FIRST_DROPPED` + the
`removal_cause`."""
FIRST_DROPPED: Final = 1
NOT_KNOWN: Final = -1
IN_OTHER_SCOPE: Final = -2

EMPTY_TEXT: Final = 0
NO_SAMPLE: Final = -1
_MASK: Final = (1 << 62) - 1
_FIRST_FACTOR: Final = 0x1E3779B97F4A7C15
_SECOND_FACTOR: Final = 0x0F58476D1CE4E5B9
_WORD_BYTES: Final = 8
_TOKEN_BYTES: Final = 4
_WAYS: Final = 8
_NO_TEXT: Final = -1
# An entry beside its text: state (bits 0-7) | scope (8-27) | when it was written (28-61).
_STATE_MASK: Final = 255
_SCOPE_SHIFT: Final = 8
_SCOPE_MASK: Final = (1 << 20) - 1
_TIME_SHIFT: Final = 28
_LAST_TIME: Final = (1 << 34) - 1


def hash_block(parent_text: i64, key: bytes) -> i64:
    """The text that ``parent_text`` becomes with the packed tokens ``key`` behind it; never negative."""
    num_bytes: i64 = len(key)
    text = (parent_text ^ (num_bytes * _SECOND_FACTOR)) & _MASK
    position: i64 = 0
    # The upper half of a product reaches the lower one every other word: often enough, and half the work.
    while position + 2 * _WORD_BYTES <= num_bytes:
        text = ((text ^ read_i64_le(key, position)) * _FIRST_FACTOR) & _MASK
        text = ((text ^ (text >> 31) ^ read_i64_le(key, position + _WORD_BYTES)) * _SECOND_FACTOR) & _MASK
        position += 2 * _WORD_BYTES
    while position < num_bytes:
        text = ((text ^ (text >> 31) ^ i64(read_i32_le(key, position))) * _FIRST_FACTOR) & _MASK
        position += _TOKEN_BYTES
    return ((text * _SECOND_FACTOR) & _MASK) ^ (text >> 31)


def key_of(text: i64, scope: i64) -> i64:
    """One number for a text in a scope, as well mixed as the text."""
    return text ^ (scope << 36)


@final
@mypyc_attr(native_class=True)
class BlockHistory:
    __slots__ = (
        "_rows", "_scopes", "_tells_scopes", "_block_texts", "_block_scopes", "_texts", "_entries", "_bucket_mask", "_time",
        "sampler", "num_blocks", "_num_evicted", "_num_blocks_at_evictions", "_block_samples", "_samples_before",
        "_block_bytes",
    )  # fmt: skip

    _rows: Final[PageRows]
    _scopes: Final[dict[int, int]]
    """By the negative page id of the root."""
    _tells_scopes: bool
    """Whether there ever was a second scope: until then the tree itself knows all that is here."""
    _block_texts: vec[i64]
    """Of the published blocks, by the number of the block."""
    _block_scopes: vec[i64]
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
    _samples_before: vec[i64]
    """The same without itself."""

    def __init__(self, rows: PageRows, num_entries: int, sampler: ReuseSampler | None, block_bytes: int = 0) -> None:
        """``num_entries`` is rounded up to a power of two of at least one bucket; an entry is 16 bytes."""
        self.sampler = sampler
        self._block_bytes = block_bytes
        self.num_blocks = 0
        self._num_evicted = 0
        self._num_blocks_at_evictions = 0
        self._block_samples = vec[i64]()
        self._samples_before = vec[i64]()
        num_buckets = 1
        while num_buckets * _WAYS < num_entries:
            num_buckets *= 2
        self._rows = rows
        self._scopes = {}
        self._tells_scopes = False
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
        self._scopes[int(root)] = int(hash_scope(scope))
        if len(self._scopes) > 1 and not self._tells_scopes:
            self._tells_scopes = True
            self._write_present_blocks()

    def _write_present_blocks(self) -> None:
        """While there was one scope, nobody could ask whether another had a text; once in a manager's life."""
        number: i64 = 0
        while number < len(self._block_texts):
            if self._block_texts[number] != _NO_TEXT:
                self._write(self._block_texts[number], self._block_scopes[number], IS_HERE)
            number += 1

    def forget_root(self, root: i64) -> None:
        del self._scopes[int(root)]

    def note_published(self, parent: i64, block: i64, key: bytes) -> None:
        """Both by their first page id; ``parent`` may be a root, ``key`` shorter than a block."""
        if parent < 0:
            scope: i64 = self._scopes[int(parent)]
            parent_text: i64 = EMPTY_TEXT
            sample: i64 = NO_SAMPLE
        else:
            number_of_parent = self._number(parent)
            scope = self._block_scopes[number_of_parent]
            parent_text = self._block_texts[number_of_parent]
            sample = self._block_samples[number_of_parent]
        text = hash_block(parent_text, key)
        number = self._number(block)
        while number >= len(self._block_texts):
            self._block_texts = append(self._block_texts, _NO_TEXT)
            self._block_scopes = append(self._block_scopes, 0)
            self._block_samples = append(self._block_samples, NO_SAMPLE)
            self._samples_before = append(self._samples_before, NO_SAMPLE)
        self._block_texts[number] = text
        self._block_scopes[number] = scope
        if self._tells_scopes:
            self._write(text, scope, IS_HERE)
        self.num_blocks += 1
        sampler = self.sampler
        if sampler is not None:
            self._samples_before[number] = sample
            sample_key = key_of(text, scope)
            if sampler.is_sampled(sample_key):
                before: i64 = NO_KEY
                if sample != NO_SAMPLE:
                    before = key_of(self._block_texts[sample], self._block_scopes[sample])
                sampler.note_published(sample_key, before, len(key) == self._block_bytes)
                sample = number
            self._block_samples[number] = sample

    def note_gone(self, block: i64, cause: i64) -> None:
        """The block left the tree, for a `removal_cause`."""
        number = self._number(block)
        self._write(self._block_texts[number], self._block_scopes[number], FIRST_DROPPED + cause)
        sampler = self.sampler
        if sampler is not None and sampler.times is not None:
            sampler.note_gone(key_of(self._block_texts[number], self._block_scopes[number]))
        self._block_texts[number] = _NO_TEXT
        if cause == CAPACITY or cause == UNREACHABLE:
            self._num_evicted += 1
            self._num_blocks_at_evictions += self.num_blocks
        self.num_blocks -= 1

    # -- the sample ---------------------------------------------------------------------------------------------------

    def note_asked(self, block: i64) -> None:
        """A prompt asked for the path that ends at this published block, and found it."""
        sampler = self.sampler
        if sampler is None or block < 0:
            return
        sample = self._block_samples[self._number(block)]
        while sample != NO_SAMPLE:
            sampler.note_asked(key_of(self._block_texts[sample], self._block_scopes[sample]))
            sample = self._samples_before[sample]

    def note_held(self, block: i64) -> None:
        """A sequence uses the path that ends at this published block from now on."""
        sampler = self.sampler
        if sampler is None or block < 0:
            return
        sample = self._block_samples[self._number(block)]
        while sample != NO_SAMPLE:
            sampler.note_held(key_of(self._block_texts[sample], self._block_scopes[sample]))
            sample = self._samples_before[sample]

    def note_given_back(self, block: i64) -> None:
        """The path that ends at this published block was used until now; its far end is the first to go."""
        sampler = self.sampler
        if sampler is None or block < 0:
            return
        sample = self._block_samples[self._number(block)]
        while sample != NO_SAMPLE:
            sampler.note_given_back(key_of(self._block_texts[sample], self._block_scopes[sample]))
            sample = self._samples_before[sample]

    def forget_full_size(self) -> None:
        """The cache has another size now."""
        self._num_evicted = 0
        self._num_blocks_at_evictions = 0

    def compute_full_size(self) -> float:
        """Published blocks that were there when room had to be made, on average; 0.0 if it never had."""
        if self._num_evicted == 0:
            return 0.0
        return float(self._num_blocks_at_evictions) / float(self._num_evicted)

    def _number(self, first_page: i64) -> i64:
        rows = self._rows
        return (first_page - rows.first_page_of_blocks) // rows.num_life_cycles

    # -- what the match asks ------------------------------------------------------------------------------------------

    def text_of(self, block: i64) -> i64:
        """Of a published block, or of a root."""
        return EMPTY_TEXT if block < 0 else self._block_texts[self._number(block)]

    def scope_of(self, root: i64) -> i64:
        return self._scopes[int(root)]

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
        at = begin
        place: i64 = -1
        while at < begin + _WAYS:
            # Entries are overwritten, never emptied: behind the first empty one there is none.
            known = texts[at]
            if known == _NO_TEXT or (known == text and ((entries[at] >> _SCOPE_SHIFT) & _SCOPE_MASK) == scope):
                place = at
                break
            at += 1
        if place < 0:
            place = self._find_room(begin)
        texts[place] = text
        entries[place] = state | (scope << _SCOPE_SHIFT) | (self._time << _TIME_SHIFT)
        if self._time < _LAST_TIME:
            self._time += 1

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
    encoded += bytes(-len(encoded) % _WORD_BYTES)
    return (hash_block(EMPTY_TEXT, encoded) >> 40) & _SCOPE_MASK
