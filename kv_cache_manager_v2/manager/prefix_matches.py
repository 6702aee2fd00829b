"""Prefix matching as the façade does it: lost pages are left out, and `reuse_match_backoff` is trimmed. Holds nothing."""

from typing import Final, final

from mypy_extensions import i64

from ..reuse.block import Block
from ..reuse.match import Match
from ..reuse.reuse_scope import ReuseScope
from ..reuse.state_match import NO_STATE_MATCH, StateMatch
from ..reuse.token_packing import TOKEN_BYTES
from ..sequence.planned_blocks import PlannedBlock
from ..sequence.planned_match import cut_path, find_path
from ..sequence.shared_state import SharedState
from ..sequence.whole_prefix import count_exact, count_resumable, cut_to_slots, find_longest, find_whole
from ..storage.page_removal import settle_reads

NO_PLANNED: Final[list[PlannedBlock]] = []
"""Never changed."""


@final
class PrefixMatches:
    __slots__ = ("num_untrimmed", "num_content", "counts_content", "planned", "_shared", "_backoff")

    def __init__(self, shared: SharedState, backoff: int) -> None:
        self.num_untrimmed: i64 = 0
        """Tokens of the latest match before `reuse_match_backoff`."""
        self.num_content: i64 = 0
        """Tokens of the latest lookup on a path of the tree, whatever pages are left of it; kept where `counts_content`."""
        self.counts_content = False
        self.planned: list[PlannedBlock] = NO_PLANNED
        """The last blocks of the latest match, as far as they are planned and not published."""
        self._shared: Final = shared
        self._backoff: Final[i64] = backoff

    def count_tokens(self, scope: ReuseScope, packed: bytes, with_planned: bool, is_whole: bool) -> i64:
        """How many leading tokens match, as far as is known; asks no device, so from any thread. -1 where the tokens are the first ones of
        more (not ``is_whole``), and those behind may match too."""
        found = self.find(scope, packed, with_planned, False).match
        root = None if is_whole else self._shared.tree.find_root(scope)
        if root is None:
            return found.num_tokens
        if with_planned and self._shared.claims.planned.num_blocks > 0:
            return -1
        size = self._shared.tokens_per_block
        # The first block that is not in the tree as a whole must be here as a whole: what is behind it decides nothing.
        num_decisive = (self._shared.matcher.count_content(root, found, packed) // size + 1) * size
        return found.num_tokens if num_decisive * TOKEN_BYTES <= len(packed) else -1

    def find(self, scope: ReuseScope, packed: bytes | None, with_planned: bool, settles: bool = True, is_exact: bool = False) -> StateMatch:
        """``with_planned``: also blocks that are planned. ``settles``: ask first which disk reads are done by now. ``is_exact``: only pages
        that were never packed with loss."""
        shared = self._shared
        self.planned = NO_PLANNED
        self.num_untrimmed = 0
        self.num_content = 0
        root = shared.tree.find_root(scope)
        if packed is None or root is None:
            return NO_STATE_MATCH
        found = self._find_published(root, packed, settles, is_exact)
        if not with_planned or shared.claims.planned.num_blocks == 0:
            return found
        return self._go_on_planned(root, packed, found, is_exact)

    def _go_on_planned(self, root: Block, packed: bytes, found: StateMatch, is_exact: bool) -> StateMatch:
        """The match with planned blocks, if it is longer so."""
        shared = self._shared
        blocks, planned = find_path(shared, root, packed)
        if len(planned) == 0:
            return found
        num_blocks: i64 = len(blocks)
        num_content = num_blocks * shared.tokens_per_block
        num_untrimmed = shared.matcher.count_with_windows(blocks, num_blocks) * shared.tokens_per_block
        if self._backoff > 0:
            end = (num_content if num_content > self.num_content else self.num_content) - self._backoff
            if end < num_content:
                num_blocks = end // shared.tokens_per_block if end > 0 else 0
        if is_exact:
            end = num_blocks * shared.tokens_per_block
            num_blocks = count_exact(shared, StateMatch(Match(blocks[: int(num_blocks)], end), end, end, None)) // shared.tokens_per_block
        num_blocks = count_resumable(shared, num_blocks * shared.tokens_per_block) // shared.tokens_per_block
        num_blocks = shared.matcher.count_with_windows(blocks, num_blocks)
        num_tokens = num_blocks * shared.tokens_per_block
        if num_tokens <= found.match.num_tokens:
            return found
        cut_path(blocks, planned, num_blocks)
        if len(planned) == 0:
            # Blocks that are promised do not make more of the published ones match.
            return found
        if num_content > self.num_content and self.num_content > 0:
            self.num_content = num_content
        self.planned = planned
        if num_untrimmed > self.num_untrimmed:
            self.num_untrimmed = num_untrimmed
        return StateMatch(Match(blocks, num_tokens), num_tokens, num_tokens, None)

    def _find_published(self, root: Block, packed: bytes, settles: bool, is_exact: bool) -> StateMatch:
        shared = self._shared
        longest = find_longest(shared, root, packed)
        if not shared.storage.reads.is_idle:
            if settles:
                settle_reads(shared.storage)
            longest = find_whole(shared, root, packed, False)
        found = find_whole(shared, root, packed, True) if is_exact else longest
        self.num_untrimmed = found.match.num_tokens
        if self._backoff > 0 or self.counts_content:
            self.num_content = shared.matcher.count_content(root, found.match, packed)
            end = max(int(self.num_content - self._backoff), 0)
            if self._backoff > 0 and found.attention_tokens > end:
                # Trimmed, other pages are in the windows and the last block may be another one: look again at what is left.
                found = find_whole(shared, root, packed[: end * TOKEN_BYTES], is_exact)
        found = cut_to_slots(shared, root, packed, found, is_exact)
        if found is not longest:
            found.known_blocks = longest.known_blocks
            found.extends = longest.extends
        return found
