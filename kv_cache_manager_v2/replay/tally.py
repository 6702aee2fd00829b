"""Counters of a replay while it serves."""

from collections.abc import Sequence
from typing import Final, final



@final
class Tally:
    """Counters of one replay; tokens of a prompt count when its request is first admitted."""

    __slots__ = (
        "num_requests_done", "num_requests_refused", "num_requests_running", "num_steps", "num_prompt_tokens",
        "num_hit_tokens", "num_reusable_tokens", "num_generated_tokens", "num_computed_tokens", "num_preemptions",
        "num_forced_preemptions", "num_restarts", "num_refused_calls", "hit_tokens", "missed_tokens",
    )  # fmt: skip

    def __init__(self, num_levels: int = 1) -> None:
        self.hit_tokens: Final[list[int]] = [0] * num_levels
        """By cache level; with `missed_tokens` they add up to `num_prompt_tokens`."""
        self.missed_tokens: Final[dict[str, int]] = {}
        """By the words of `prompt_misses`."""
        self.num_requests_done = 0
        self.num_requests_refused = 0
        """Could not fit even alone."""
        self.num_requests_running = 0
        self.num_steps = 0
        self.num_prompt_tokens = 0
        self.num_hit_tokens = 0
        self.num_reusable_tokens = 0
        """Tokens that an unlimited cache would have hit."""
        self.num_generated_tokens = 0
        self.num_computed_tokens = 0
        """Inputs of all steps, recomputed ones too."""
        self.num_preemptions = 0
        """Sequences suspended for lack of slots."""
        self.num_forced_preemptions = 0
        """Sequences suspended because the plan says so (`ForcedPauses`)."""
        self.num_restarts = 0
        """Sequences closed for lack of slots, whose requests started again."""
        self.num_refused_calls = 0
        """Refusals of `resume`, `resize` or `resize_batch` for lack of slots."""

    def add_prompt(self, num_tokens: int, hit_tokens: Sequence[int], missed_tokens: dict[str, int], num_reusable: int) -> None:
        """A request is admitted for the first time."""
        self.num_prompt_tokens += num_tokens
        self.num_reusable_tokens += num_reusable
        for level, hit in enumerate(hit_tokens):
            self.hit_tokens[level] += hit
            self.num_hit_tokens += hit
        for cause, missed in missed_tokens.items():
            self.missed_tokens[cause] = self.missed_tokens.get(cause, 0) + missed

    @property
    def hit_rate(self) -> float:
        return self.num_hit_tokens / self.num_prompt_tokens if self.num_prompt_tokens > 0 else 0.0
