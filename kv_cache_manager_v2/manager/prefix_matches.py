"""Prefix matching as the façade does it: lost pages are left out, and `reuse_match_backoff` is trimmed. Holds nothing."""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..reuse.block import Block
from ..reuse.match import Match
from ..reuse.reuse_scope import ReuseScope
from ..reuse.state_match import NO_STATE_MATCH, StateMatch
from ..reuse.token_packing import TOKEN_BYTES
from ..sequence.planned_blocks import PlannedBlock
from ..sequence.planned_match import find_path
from ..sequence.shared_state import SharedState
from ..sequence.whole_prefix import find_whole, find_whole_with_state
from ..storage.page_removal import settle_reads

NO_PLANNED: Final[list[PlannedBlock]] = []
"""Never changed."""


@final
@mypyc_attr(native_class=True)
class PrefixMatches:
    __slots__ = ("num_untrimmed", "num_content", "counts_content", "planned", "_shared", "_backoff")

    num_untrimmed: i64
    """Tokens of the latest match before `reuse_match_backoff`."""
    num_content: i64
    """Tokens of the latest lookup on a path of the tree, whatever pages are left of it; kept where `counts_content`."""
    counts_content: bool
    planned: list[PlannedBlock]
    """The last blocks of the latest match, as far as they are planned and not published."""
    _shared: Final[SharedState]
    _backoff: Final[i64]

    def __init__(self, shared: SharedState, backoff: int) -> None:
        self.num_untrimmed = 0
        self.num_content = 0
        self.counts_content = False
        self.planned = NO_PLANNED
        self._shared = shared
        self._backoff = backoff

    def count_tokens(self, scope: ReuseScope, packed: bytes | None, with_planned: bool) -> int:
        """How many leading tokens match, as far as is known; asks no device, so from any thread."""
        if self._shared.has_state:
            return int(self.find_with_state(scope, packed, False).match.num_tokens)
        return int(self.find(scope, packed, with_planned, False).num_tokens)

    def find(self, scope: ReuseScope, packed: bytes | None, with_planned: bool, settles: bool = True) -> Match:
        """``with_planned``: also blocks that are planned. ``settles``: ask first which disk reads are done by now."""
        match = self._find_published(scope, packed, settles)
        self.planned = NO_PLANNED
        if not with_planned or self._shared.planned.num_blocks == 0 or packed is None:
            return match
        return self._go_on_planned(scope, packed, match)

    def _go_on_planned(self, scope: ReuseScope, packed: bytes, match: Match) -> Match:
        """The match with planned blocks, if it is longer so."""
        shared = self._shared
        root = shared.tree.find_root(scope)
        if root is None:
            return match
        path = find_path(shared, root, packed)
        if len(path.planned) == 0:
            return match
        num_blocks: i64 = len(path.blocks)
        num_content = num_blocks * shared.tokens_per_block
        num_untrimmed = shared.matcher.count_with_windows(path.blocks, num_blocks) * shared.tokens_per_block
        if self._backoff > 0:
            end = (num_content if num_content > self.num_content else self.num_content) - self._backoff
            if end < num_content:
                num_blocks = end // shared.tokens_per_block if end > 0 else 0
        num_blocks = shared.matcher.count_with_windows(path.blocks, num_blocks)
        num_tokens = num_blocks * shared.tokens_per_block
        if num_tokens <= match.num_tokens:
            return match
        path.cut(num_blocks)
        if len(path.planned) == 0:
            # Blocks that are promised do not make more of the published ones match.
            return match
        if num_content > self.num_content and self.num_content > 0:
            self.num_content = num_content
        self.planned = path.planned
        if num_untrimmed > self.num_untrimmed:
            self.num_untrimmed = num_untrimmed
        return Match(path.blocks, num_tokens)

    def _find_published(self, scope: ReuseScope, packed: bytes | None, settles: bool) -> Match:
        shared = self._shared
        self.num_content = 0
        if packed is None:
            self.num_untrimmed = 0
            return Match([], 0)
        root = shared.tree.find_root(scope)
        match = self._cut_before_lost(root, packed, shared.matcher.find_longest(root, packed), settles)
        self.num_untrimmed = match.num_tokens
        backoff = self._backoff
        if root is None or (backoff == 0 and not self.counts_content):
            return match
        self.num_content = shared.matcher.count_content(root, match, packed)
        if backoff == 0 or match.num_tokens == 0:
            return match
        end = self.num_content - backoff
        if match.num_tokens <= end:
            return match
        # Trimmed, other pages are in the windows and the last block may be another one: look again at what is left.
        return find_whole(shared, root, packed[: int(end) * TOKEN_BYTES]) if end > 0 else Match([], 0)

    def _cut_before_lost(self, root: Block | None, packed: bytes, match: Match, settles: bool) -> Match:
        """The match up to the first page whose bytes a disk has lost: such a page stays in the tree while a sequence holds it."""
        shared = self._shared
        if shared.storage.reads.is_idle:
            return match
        if settles:
            settle_reads(shared.storage)
        return find_whole(shared, root, packed)

    def find_with_state(self, scope: ReuseScope, packed: bytes | None, settles: bool = True) -> StateMatch:
        """`find` for a model with recurrent layers."""
        shared = self._shared
        self.planned = NO_PLANNED
        matcher = shared.state_matcher
        root = shared.tree.find_root(scope)
        self.num_content = 0
        if packed is None or matcher is None or root is None:
            self.num_untrimmed = 0
            return NO_STATE_MATCH
        found = matcher.find_longest(root, packed)
        if not shared.storage.reads.is_idle:
            if settles:
                settle_reads(shared.storage)
            found = find_whole_with_state(shared, root, packed)
        self.num_untrimmed = found.match.num_tokens
        backoff = self._backoff
        if backoff == 0 and not self.counts_content:
            return found
        self.num_content = shared.matcher.count_content(root, found.match, packed)
        if backoff == 0 or found.attention_tokens == 0:
            return found
        end = self.num_content - backoff
        if found.attention_tokens <= end:
            return found
        if end <= 0:
            return NO_STATE_MATCH
        trimmed = find_whole_with_state(shared, root, packed[: int(end) * TOKEN_BYTES])
        trimmed.known_blocks = found.known_blocks
        trimmed.extends = found.extends
        return trimmed
