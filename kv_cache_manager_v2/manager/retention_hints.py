"""Hints about prefixes that are in the cache, after the fact: keep, let go, bring near. They never make a call fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsIndex

from mypy_extensions import mypyc_attr

from ..base.checks import to_int
from ..base.given import Given
from ..base.ids import GPU_LEVEL, PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN
from ..config.retention import to_duration
from ..journal.journal_format import DEMOTE, RELEASE, RETAIN, WARM
from ..reuse.block import Block
from ..reuse.reuse_scope import ReuseScope, to_scope
from ..reuse.token_packing import TOKEN_BYTES, has_digest, pack_tokens
from ..sequence.prefetching import try_prefetch_blocks
from ..sequence.retention_plan import FOR_EVER
from ..stats.hint_result import HintResult
from .tier_control import TierControl

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens

@mypyc_attr(native_class=True)
class RetentionHints(TierControl):
    """Base of `KVCacheManager`."""

    __slots__ = ()

    def retain(
        self,
        input_tokens: Tokens,
        reuse_scope: Given[ReuseScope | None] = None,
        priority: SupportsIndex = PRIORITY_MAX,
        duration_seconds: Given[float | None] = None,
    ) -> HintResult:
        """Give the cached pages of a prefix a priority, for a while or until `release`: a session that waits for a tool, say.

        No more than ``max_pinned_share`` of all slots can be retained so; what goes beyond is clipped. When nothing of a lower
        priority is left, retained pages make room all the same, the longest retained first. `ValueError` for a priority outside
        0 to 100 or a duration that is none.
        """
        seconds = to_duration(duration_seconds, "duration_seconds")
        duration = FOR_EVER if seconds is None else int(seconds * 1_000_000)
        return self._hint(RETAIN, input_tokens, reuse_scope, _to_priority(priority), duration)

    def release(self, input_tokens: Tokens, reuse_scope: Given[ReuseScope | None] = None) -> HintResult:
        """The cached pages of a prefix have the default priority again."""
        return self._hint(RELEASE, input_tokens, reuse_scope, int(PRIORITY_DEFAULT), FOR_EVER)

    def demote(self, input_tokens: Tokens, reuse_scope: Given[ReuseScope | None] = None) -> HintResult:
        """The cached pages of a prefix are not expected to be of use: the lowest priority."""
        return self._hint(DEMOTE, input_tokens, reuse_scope, int(PRIORITY_MIN), FOR_EVER)

    def prefetch(
        self, input_tokens: Tokens, reuse_scope: Given[ReuseScope | None] = None, target_level: SupportsIndex = GPU_LEVEL
    ) -> HintResult:
        """Bring the cached pages of a prefix up to a level before they are asked for. All of it or, clipped, nothing."""
        return self._hint(WARM, input_tokens, reuse_scope, self._require_level(target_level, "target_level"), FOR_EVER)

    def _hint(
        self, kind: int, input_tokens: Tokens, reuse_scope: object, value: int, duration: int
    ) -> HintResult:
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            shared = self._shared
            scope = to_scope(reuse_scope)
            packed = pack_tokens(input_tokens, shared.tree.digests, False)
            blocks = shared.tree.find_path(scope, packed)
            num_found = 0
            for block in blocks:
                num_found += len(shared.tree.key_of(block)) // TOKEN_BYTES
            guard.begin_change()
            num_accepted = self._apply_hint(kind, blocks, value, duration)
            guard.end_change()
            num_tokens = len(packed) // TOKEN_BYTES
            if shared.journal is not None:
                listed, packed_or_none = self._to_journal_tokens(input_tokens, packed)
                shared.journal.hint(
                    kind, scope.lora_id, scope.salt, listed, packed_or_none, value, duration + 1, num_accepted
                )
            return HintResult(num_accepted, num_found - num_accepted, num_tokens - num_found)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def _apply_hint(self, kind: int, blocks: list[Block], value: int, duration: int) -> int:
        """How many tokens it was done for."""
        book = self._shared.retention
        tree = self._shared.tree
        num_accepted = 0
        if kind == WARM:
            if not try_prefetch_blocks(self._shared, blocks, value):
                return 0
            for block in blocks:
                num_accepted += len(tree.key_of(block)) // TOKEN_BYTES
            return num_accepted
        for block in blocks:
            if kind == RETAIN:
                if not book.pin(block, value, duration):
                    break
            else:
                book.release(block, value)
            num_accepted += len(tree.key_of(block)) // TOKEN_BYTES
        return num_accepted

    def _to_journal_tokens(
        self, tokens: Tokens | None, packed: bytes | None
    ) -> tuple[list[int | bytes] | None, bytes | None]:
        """The tokens as the journal takes them: packed, or, where a digest may be among them, one by one."""
        if tokens is None or packed is None or not isinstance(tokens, Sequence) or not has_digest(packed):
            return None, packed
        return [token if isinstance(token, bytes) else int(token) for token in tokens], None


def _to_priority(value: SupportsIndex) -> int:
    priority = to_int(value, "priority")
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise ValueError(f"priority is {priority}; priorities are {PRIORITY_MIN} to {PRIORITY_MAX}")
    return priority
