"""A match for a model with recurrent layers: the longest reusable prefix of a prompt.

A prefix of ``n`` tokens is reusable when its attention is (`Matcher`) and a snapshot of the state at exactly ``n`` is there: on
the block that ends at ``n``, which may be a partial one that has nothing else. The blocks that the attention match found are
searched for snapshots from their end upwards; one beyond that end is never looked at.

With `max_state_replay_tokens` the state may be behind: the match is as long as that of attention, ``H``, if there is a snapshot at
some ``C >= H - max_state_replay_tokens``, and no window has moved past a block between ``C`` and ``H``. The engine then runs tokens
``C .. H-1`` again to bring the state up to ``H``. Without attention layers there is nothing that replaying would save, and the match
ends at the snapshot.
"""

from typing import Final, final

from mypy_extensions import i64

from ..config.manager_config import KVCacheManagerConfig
from ..storage.page_rows import PageRows
from .block import Block
from .match import Match, Matcher
from .radix_tree import RadixTree
from .token_packing import TOKEN_BYTES


@final
class StateMatch:
    """``match`` is what to hold. ``attention_tokens``: as many could be had without recurrent layers."""

    __slots__ = ("match", "attention_tokens", "state_tokens", "snapshot", "branch_tokens", "known_blocks", "extends")

    def __init__(self, match: Match, attention_tokens: i64, state_tokens: i64, snapshot: Block | None) -> None:
        self.match: Final = match
        self.attention_tokens: Final = attention_tokens
        self.state_tokens: Final = state_tokens
        """Where the state begins: the length of ``match``, or less if tokens are to be replayed."""
        self.snapshot: Final = snapshot
        """The block with the state's snapshot; None for the state of an empty prefix."""
        self.branch_tokens: i64 = 0
        """The last block boundary at which the prefix is one that the tree knows and after which it is not; 0 if there is none."""
        self.known_blocks: i64 = 0
        """Blocks of the whole prompt that are on a path of the tree, whatever pages they have."""
        self.extends = False
        """Whether these are all that is known of the path: the prompt goes on where nothing goes on otherwise."""


NO_STATE_MATCH: Final = StateMatch(Match([], 0), 0, 0, None)


@final
class StateMatcher:
    """Finds matches in one tree. Holds nothing."""

    __slots__ = ("_tree", "_rows", "_matcher", "_life_cycle", "_tokens_per_block", "_partial", "_max_replay_tokens")

    def __init__(self, tree: RadixTree, matcher: Matcher, life_cycle: int, config: KVCacheManagerConfig) -> None:
        self._tree: Final = tree
        self._rows: Final[PageRows] = tree.storage.rows
        self._matcher: Final = matcher
        self._life_cycle: Final[i64] = life_cycle
        self._tokens_per_block: Final[i64] = config.tokens_per_block
        self._partial: Final[bool] = config.enable_partial_reuse
        self._max_replay_tokens: Final[i64] = config.max_state_replay_tokens if matcher.has_attention else 0

    def find_longest(self, root: Block | None, packed: bytes) -> StateMatch:
        """The longest reusable prefix of the packed tokens below ``root``; an empty match if there is none."""
        if root is None:
            return NO_STATE_MATCH
        attention = self._matcher.find_longest(root, packed)
        node, known_blocks = self._find_known(root, attention, packed)
        found = self._find_with_snapshot(root, attention, packed)
        found.branch_tokens = self._find_branch(node, known_blocks, packed)
        found.known_blocks = known_blocks
        found.extends = known_blocks > 0 and found.branch_tokens == 0
        return found

    def _find_with_snapshot(self, root: Block, attention: Match, packed: bytes) -> StateMatch:
        """The longest part of the attention's match for which there is a state."""
        attention_tokens = attention.num_tokens
        if self._max_replay_tokens > 0:
            replayed = self._find_replay(root, attention, packed)
            if replayed is not None:
                return replayed
        size = self._tokens_per_block
        ordinal = attention_tokens // size
        longest = attention_tokens - ordinal * size
        if longest > 0 and not self._partial:
            # The attention match is exact: so must the snapshot be.
            parent = attention.blocks[ordinal - 1] if ordinal > 0 else root
            snapshot = self._find_partial_snapshot(parent, packed, ordinal * self._tree.block_bytes, longest, longest)
            if snapshot is not None:
                return StateMatch(attention, attention_tokens, attention_tokens, snapshot)
        while ordinal >= 0:
            if self._partial and longest > 0:
                found = self._find_partial(root, attention, packed, ordinal, longest)
                if found is not None:
                    return found
            longest = size - 1
            if ordinal > 0:
                block = attention.blocks[ordinal - 1]
                num_tokens = ordinal * size
                if self._has_snapshot(block) and self._matcher.has_windows(attention.blocks, ordinal, num_tokens):
                    match = Match(attention.blocks[: int(ordinal)], num_tokens)
                    return StateMatch(match, attention_tokens, num_tokens, block)
            ordinal -= 1
        return StateMatch(Match([], 0), attention_tokens, 0, None)

    def _has_snapshot(self, block: Block) -> bool:
        page = block.first_page + self._life_cycle
        if not self._rows.has_page(page):
            return False
        reads = self._tree.storage.reads
        return reads.is_idle or int(page) not in reads.lost

    def _find_partial_snapshot(self, parent: Block, packed: bytes, begin: i64, longest: i64, least: i64) -> Block | None:
        """The longest child of ``parent`` that is the prompt's next ``least`` to ``longest`` tokens and has a snapshot."""
        only_child = parent.only_child
        children = parent.children
        if only_child is not None:
            if self._tree.is_full(only_child):
                return None
        elif children is None or children.num_partial == 0:
            return None
        for length in range(longest, least - 1, -1):
            child = self._tree.find_child(parent, packed[begin : begin + length * TOKEN_BYTES])
            if child is not None and self._has_snapshot(child):
                return child
        return None

    def _find_partial(self, root: Block, attention: Match, packed: bytes, ordinal: i64, longest: i64) -> StateMatch | None:
        """The longest match that ends inside the block ``ordinal``."""
        parent = attention.blocks[ordinal - 1] if ordinal > 0 else root
        begin = ordinal * self._tree.block_bytes
        while longest > 0:
            snapshot = self._find_partial_snapshot(parent, packed, begin, longest, 1)
            if snapshot is None:
                return None
            key = self._tree.key_of(snapshot)
            longest = len(key) // TOKEN_BYTES
            # Whichever child begins like that may serve the attention's part; the snapshot's block need not have any.
            match = self._matcher.find_partial(parent, key, attention.blocks[: int(ordinal)])
            if match is not None and match.num_tokens == ordinal * self._tokens_per_block + longest:
                return StateMatch(match, attention.num_tokens, match.num_tokens, snapshot)
            longest -= 1
        return None

    def _find_replay(self, root: Block, attention: Match, packed: bytes) -> StateMatch | None:
        """The match of attention with the latest snapshot from which its state may be replayed."""
        size = self._tokens_per_block
        num_tokens = attention.num_tokens
        least = num_tokens - self._max_replay_tokens
        if least < 1:
            least = 1
        ordinal = num_tokens // size
        longest = num_tokens - ordinal * size
        while ordinal >= 0 and ordinal * size + longest >= least:
            if longest > 0:
                parent = attention.blocks[ordinal - 1] if ordinal > 0 else root
                shortest = least - ordinal * size if least > ordinal * size else 1
                begin = ordinal * self._tree.block_bytes
                snapshot = self._find_partial_snapshot(parent, packed, begin, longest, shortest)
                if snapshot is not None:
                    state_tokens = ordinal * size + len(self._tree.key_of(snapshot)) // TOKEN_BYTES
                    if not self._matcher.moves_window(state_tokens, num_tokens):
                        return StateMatch(attention, num_tokens, state_tokens, snapshot)
            if ordinal > 0 and ordinal * size >= least:
                block = attention.blocks[ordinal - 1]
                if self._has_snapshot(block) and not self._matcher.moves_window(ordinal * size, num_tokens):
                    return StateMatch(attention, num_tokens, ordinal * size, block)
            longest = size - 1
            ordinal -= 1
        return None

    def _find_known(self, root: Block, attention: Match, packed: bytes) -> tuple[Block, i64]:
        """The last block of the prompt that the tree knows, by content alone, and how many come before its end."""
        block_bytes = self._tree.block_bytes
        ordinal = attention.num_tokens // self._tokens_per_block
        node = attention.blocks[ordinal - 1] if ordinal > 0 else root
        known = self._tree.find_path(node, packed, ordinal * block_bytes)[: int(len(packed) // block_bytes - ordinal)]
        return known[-1] if len(known) > 0 else node, ordinal + len(known)

    def _find_branch(self, node: Block, ordinal: i64, packed: bytes) -> i64:
        """Where the prompt leaves what the tree knows; 0 if it stays on a known path, or follows none. ``node``: its last known block."""
        block_bytes = self._tree.block_bytes
        position = ordinal * block_bytes
        num_bytes: i64 = len(packed)
        if ordinal == 0 or position == num_bytes or not self._matcher.leaves_at(node, packed[position : position + block_bytes]):
            return 0
        return ordinal * self._tokens_per_block
