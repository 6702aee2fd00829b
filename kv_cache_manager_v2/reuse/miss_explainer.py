"""Why the tokens behind a match were not reused: walks on where the match ended, and gives each token one cause.

In the tree, the walk goes on as long as it finds blocks: what is there and did not match has lost a window or has no recurrent
state. From where the prompt leaves the tree, the history says the outcome of each block, until it knows nothing of one. That block
is new or its history entry is gone, and what follows counts as `NOT_REMEMBERED` with it.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..events.removal_cause import CAPACITY, FAILURE
from ..events.removal_cause import SHRUNK as SHRUNK_REMOVAL
from ..events.removal_cause import UNREACHABLE as UNREACHABLE_REMOVAL
from ..stats.miss_cause import (
    BACKOFF,
    DROPPED,
    EVICTED,
    LOAD_FAILED,
    NOT_REMEMBERED,
    NO_SNAPSHOT,
    OTHER_SCOPE,
    PARTIAL_BLOCK,
    SHRUNK,
    UNREACHABLE,
    WINDOW_BROKEN,
)
from .block import Block
from .block_history import BlockHistory
from .match import Match, count_shared_with_children
from .radix_tree import RadixTree
from .prefix_hash import hash_block
from .removal_history import FIRST_DROPPED, IN_OTHER_SCOPE, IS_HERE, NOT_KNOWN
from .token_packing import TOKEN_BYTES


@final
class MissExplainer:
    __slots__ = ("_tree", "_history", "_tokens_per_block", "_incomplete", "_checks_parts", "_unused_part")

    def __init__(
        self, tree: RadixTree, history: BlockHistory, tokens_per_block: int, has_recurrent_layers: bool, checks_parts: bool,
        is_partial_reuse_enabled: bool,
    ) -> None:
        self._checks_parts: Final = checks_parts
        """Whether the match may have left out tokens that a block here begins with."""
        self._tree: Final = tree
        self._history: Final = history
        self._tokens_per_block: Final[i64] = tokens_per_block
        self._incomplete: Final[i64] = NO_SNAPSHOT if has_recurrent_layers else WINDOW_BROKEN
        """The cause where whole blocks are there and do not match."""
        self._unused_part: Final[i64] = self._incomplete if is_partial_reuse_enabled else PARTIAL_BLOCK
        """The cause where the match has, right behind its end."""

    def explain(self, root: Block, packed: bytes, match: Match, num_untrimmed: i64, misses: vec[i64], misses_at: i64) -> None:
        """Add every token of ``packed`` behind the match to its cause, ``misses[misses_at + cause]``. ``num_untrimmed``: how long the match
        was before `reuse_match_backoff`."""
        num_tokens: i64 = len(packed) // TOKEN_BYTES
        position = match.num_tokens
        if num_untrimmed > position:
            misses[misses_at + BACKOFF] += num_untrimmed - position
            position = num_untrimmed
        if position >= num_tokens:
            return
        size = self._tokens_per_block
        ordinal = match.num_tokens // size
        # Planned blocks are in no tree, and nothing is below them there.
        num_published = ordinal
        while num_published > 0 and match.blocks[num_published - 1].parent is None:
            num_published -= 1
        above = root if num_published == 0 else match.blocks[num_published - 1]
        node: Block | None = above if num_published == ordinal else None
        text = self._history.prefix_of(above.first_page)
        for planned in range(num_published, ordinal):
            text = hash_block(text, packed[planned * size * TOKEN_BYTES : (planned + 1) * size * TOKEN_BYTES])
        scope = self._history.scope_of(root.first_page)
        is_gone_before = False
        unused_part = self._unused_part
        while ordinal * size < num_tokens:
            end = (ordinal + 1) * size
            if end > num_tokens:
                end = num_tokens
            key = packed[ordinal * size * TOKEN_BYTES : end * TOKEN_BYTES]
            child = None if node is None else self._tree.find_child(node, key)
            if child is not None:
                text = self._history.prefix_of(child.first_page)
                node = child
                if end > position:
                    misses[misses_at + self._incomplete] += end - position
                    position = end
                    unused_part = self._incomplete
                ordinal += 1
                continue
            text = hash_block(text, key)
            cause = _cause_of(self._history.find(text, scope))
            if cause == NOT_REMEMBERED:
                num_shared: i64 = 0
                if node is not None and self._checks_parts:
                    num_shared = count_shared_with_children(self._tree, node, key)
                elif is_gone_before and end < (ordinal + 1) * size:
                    num_shared = end - ordinal * size
                    unused_part = PARTIAL_BLOCK
                shared_end = ordinal * size + num_shared
                if shared_end > position:
                    misses[misses_at + unused_part] += shared_end - position
                    position = shared_end
                misses[misses_at + NOT_REMEMBERED] += num_tokens - position
                return
            node = None
            is_gone_before = cause != OTHER_SCOPE
            if end > position:
                misses[misses_at + cause] += end - position
                position = end
            ordinal += 1


def _cause_of(state: i64) -> i64:
    if state == NOT_KNOWN:
        return NOT_REMEMBERED
    if state == IN_OTHER_SCOPE:
        return OTHER_SCOPE
    removal = state - FIRST_DROPPED
    if removal == UNREACHABLE_REMOVAL:
        return UNREACHABLE
    if removal == SHRUNK_REMOVAL:
        return SHRUNK
    if removal == FAILURE:
        return LOAD_FAILED
    # A prefix that is here, but not on the path: its entry was written before others of the path were forgotten.
    return EVICTED if removal == CAPACITY or state == IS_HERE else DROPPED
