"""Limits of an engine's step, and its options of suspending and resuming."""

from typing import Final, final


from ..base.value import Value


@final
class ServingLimits(Value):
    """Limits of a step, and options of suspending and resuming."""

    __slots__ = ("max_running", "token_budget", "chunk_tokens", "preempt_share", "waits", "prefetches")

    def __init__(
        self, max_running: int = 64, token_budget: int = 8192, chunk_tokens: int = 2048, preempt_share: float = 0.0,
        waits: bool = True, prefetches: bool = False,
    ) -> None:  # fmt: skip
        if max_running < 1 or chunk_tokens < 1:
            raise ValueError(f"max_running is {max_running}, chunk_tokens is {chunk_tokens}; both are at least 1")
        if token_budget < max_running:
            raise ValueError(f"token_budget is {token_budget}, under max_running {max_running}: each running request needs one token")
        if not 0.0 <= preempt_share <= 1.0:
            raise ValueError(f"preempt_share is {preempt_share}; it is between 0 (never) and 1 (all, after every step)")
        self.max_running: Final = max_running
        self.token_budget: Final = token_budget
        """Input tokens of a step, over all requests."""
        self.chunk_tokens: Final = chunk_tokens
        """Prompt tokens of a step, of one request."""
        self.preempt_share: Final = preempt_share
        """The share of running requests that are suspended after each step for a few steps, whether slots are short or not."""
        self.waits: Final = waits
        """If false, a resumed request gets no inputs before its pages have arrived: then the order of service depends on copies."""
        self.prefetches: Final = prefetches
        """The pages of suspended requests are prefetched a step ahead."""
