"""Counters of a replay while it serves."""

from collections.abc import Sequence
from typing import Final, final

from mypy_extensions import mypyc_attr


@final
@mypyc_attr(native_class=True)
class Tally:
    """Counters of one replay; tokens of a prompt count when its request is first admitted."""

    __slots__ = (
        "num_requests_done", "num_requests_refused", "num_requests_running", "num_steps", "num_prompt_tokens",
        "num_hit_tokens", "num_reusable_tokens", "num_generated_tokens", "num_computed_tokens", "num_preemptions",
        "num_forced_preemptions", "num_restarts", "num_refused_calls", "hit_tokens", "missed_tokens",
    )  # fmt: skip

    num_requests_done: int
    num_requests_refused: int
    """Could not fit even alone."""
    num_requests_running: int
    num_steps: int
    num_prompt_tokens: int
    num_hit_tokens: int
    num_reusable_tokens: int
    """Tokens that an unlimited cache would have hit."""
    num_generated_tokens: int
    num_computed_tokens: int
    """Inputs of all steps, recomputed ones too."""
    num_preemptions: int
    """Sequences suspended for lack of slots."""
    num_forced_preemptions: int
    """Sequences suspended because the plan says so (`ForcedPauses`)."""
    num_restarts: int
    """Sequences closed for lack of slots, whose requests started again."""
    num_refused_calls: int
    """Refusals of `resume`, `resize` or `resize_batch` for lack of slots."""
    hit_tokens: Final[list[int]]
    """By cache level; with `missed_tokens` they add up to `num_prompt_tokens`."""
    missed_tokens: Final[dict[str, int]]
    """By the words of `prompt_misses`."""

    def __init__(self, num_levels: int = 1) -> None:
        self.hit_tokens = [0] * num_levels
        self.missed_tokens = {}
        self.num_requests_done = 0
        self.num_requests_refused = 0
        self.num_requests_running = 0
        self.num_steps = 0
        self.num_prompt_tokens = 0
        self.num_hit_tokens = 0
        self.num_reusable_tokens = 0
        self.num_generated_tokens = 0
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.num_forced_preemptions = 0
        self.num_restarts = 0
        self.num_refused_calls = 0

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
