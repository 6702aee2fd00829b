"""The longest prefix of a text that can be reused: asked for by itself, or by `create_kv_cache`. Base of `KVCacheManager`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from ..base.given import Given
from ..reuse.block import Block
from ..reuse.match import Match
from ..reuse.reuse_scope import ReuseScope, to_scope
from ..reuse.state_match import NO_STATE_MATCH, StateMatch
from ..reuse.token_packing import TOKEN_BYTES, pack_tokens
from ..storage.lost_pages import settle_reads
from .scope_control import ScopeControl

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens


@mypyc_attr(native_class=True)
class PrefixMatches(ScopeControl):
    __slots__ = ("_num_untrimmed",)

    _num_untrimmed: i64
    """Tokens of the latest match before `reuse_match_backoff`."""

    def probe_reuse(self, reuse_scope: Given[ReuseScope | None] = None, input_tokens: Tokens | None = None) -> int:
        """How many leading tokens could be reused now; holds nothing."""
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            scope = to_scope(reuse_scope)
            shared = self._shared
            packed = None if input_tokens is None else pack_tokens(input_tokens, shared.tree.digests, False)
            if shared.has_state:
                num_tokens = int(self._find_state_match(scope, packed).match.num_tokens)
            else:
                num_tokens = int(self._find_match(scope, packed).num_tokens)
            if shared.journal is not None:
                listed, packed = self._to_journal_tokens(input_tokens, packed)
                shared.journal.probe(scope.lora_id, scope.salt, listed, packed)
            return num_tokens
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def _find_match(self, scope: ReuseScope, packed: bytes | None) -> Match:
        shared = self._shared
        if packed is None:
            self._num_untrimmed = 0
            return Match([], 0)
        root = shared.tree.find_root(scope)
        match = self._leave_lost_out(root, packed, shared.matcher.find_longest(root, packed))
        self._num_untrimmed = match.num_tokens
        backoff = self._config.reuse_match_backoff
        if backoff == 0 or match.num_tokens == 0 or root is None:
            return match
        end = shared.matcher.count_content(root, match, packed) - backoff
        if match.num_tokens <= end:
            return match
        # Trimmed, other pages are in the windows and the last block may be another one: look again at what is left.
        return shared.matcher.find_longest(root, packed[: int(end) * TOKEN_BYTES]) if end > 0 else Match([], 0)

    def _leave_lost_out(self, root: Block | None, packed: bytes, match: Match) -> Match:
        """Pages whose bytes a disk has lost may be there while somebody holds them; the text in front of them matches."""
        shared = self._shared
        if shared.storage.reads.is_idle:
            return match
        settle_reads(shared.storage)
        found = shared.matcher.find_longest(root, packed)
        while True:
            end = shared.count_whole_blocks(found.blocks) * shared.tokens_per_block
            if end >= found.num_tokens:
                return found
            found = shared.matcher.find_longest(root, packed[: int(end) * TOKEN_BYTES]) if end > 0 else Match([], 0)

    def _find_state_match(self, scope: ReuseScope, packed: bytes | None) -> StateMatch:
        """`_find_match` for a model with recurrent layers."""
        shared = self._shared
        matcher = shared.state_matcher
        root = shared.tree.find_root(scope)
        if packed is None or matcher is None or root is None:
            self._num_untrimmed = 0
            return NO_STATE_MATCH
        found = matcher.find_longest(root, packed)
        if not shared.storage.reads.is_idle:
            settle_reads(shared.storage)
            found = matcher.find_longest(root, packed)
            end = shared.count_whole_blocks(found.match.blocks) * shared.tokens_per_block
            while end < found.match.num_tokens:
                found = matcher.find_longest(root, packed[: int(end) * TOKEN_BYTES]) if end > 0 else NO_STATE_MATCH
                end = shared.count_whole_blocks(found.match.blocks) * shared.tokens_per_block
        self._num_untrimmed = found.match.num_tokens
        backoff = self._config.reuse_match_backoff
        if backoff == 0 or found.attention_tokens == 0:
            return found
        end = shared.matcher.count_content(root, found.match, packed) - backoff
        if found.attention_tokens <= end:
            return found
        return matcher.find_longest(root, packed[: int(end) * TOKEN_BYTES]) if end > 0 else NO_STATE_MATCH
