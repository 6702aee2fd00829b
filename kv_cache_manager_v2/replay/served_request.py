"""One request while it is served.

    WAITING    no sequence yet, or none any more: in the waiting queue
    RUNNING    its sequence is active; every step may give it inputs
    PREEMPTED  its sequence is suspended until slots are free again

`position` is how far the keys and values are computed, `num_known` how many tokens the engine knows: the prompt, then
one more with each output. `position` restarts when the sequence had to be closed for lack of slots; what it had published is
matched again.
"""

from typing import Final, final


from .. import KVCache
from .prefix_ledger import LedgerCursor
from .tokens import Tokens, make_tokens
from .workload import Request


@final
class ServedRequest:
    """The state of one request. ``position < num_known <= position + chunk`` once it is prefilled."""

    __slots__ = (
        "request", "ticket", "num_prompt_tokens", "num_tokens", "position", "num_known", "num_inputs", "kv_cache",
        "was_admitted", "must_look", "is_arriving", "paused_until", "cursor", "num_drafts", "num_pending", "suffixes", "answer_beam",
        "has_state", "num_reusable", "ready_ms", "last_token_ms", "_tokens", "_answer",
    )  # fmt: skip

    def __init__(self, request: Request, ticket: int, num_reusable: int = 0) -> None:
        self.request: Final = request
        self.ticket: Final = ticket
        """Order of arrival: the lower, the older."""
        self.num_prompt_tokens: Final[int] = request.num_prompt_tokens
        self.num_tokens: Final[int] = request.num_computed_tokens
        """Tokens to be computed before it is done."""
        self.position = 0
        self.num_known: int = request.num_prompt_tokens
        self.num_inputs = 0
        """Of the step that is being made."""
        self.kv_cache: KVCache | None = None
        self.was_admitted = False
        self.must_look = False
        """Its slots may have changed since they were last counted (`SlotCensus`)."""
        self.is_arriving = False
        """Resumed without waiting, and some of its pages have not arrived."""
        self.paused_until = 0
        """While preempted: the first step in which it may come back."""
        self.cursor: Final = LedgerCursor(request)
        self.num_drafts = 0
        """Draft tokens behind the step's inputs."""
        self.num_pending = 0
        """Computed tokens behind `position` that are not committed yet: of several beams."""
        self.suffixes: list[list[int]] = []
        """What each beam has behind `position`; empty while there is one beam."""
        self.answer_beam = 0
        self.has_state = False
        """Whether the model has recurrent layers."""
        self.num_reusable: Final = num_reusable
        """Prompt tokens that an earlier request of the workload has, whether they are computed or not."""
        self.ready_ms = 0.0
        """In simulated time: when it arrived, or as a later turn could."""
        self.last_token_ms: float = -1.0
        """In simulated time: when it generated its last token; negative before the first."""
        self._tokens: Tokens | None = None
        self._answer: list[int] | None = None

    @property
    def is_generating(self) -> bool:
        """Whether the prompt is computed and one token more is known."""
        return self.position >= self.num_prompt_tokens and self.num_known - self.position - self.num_pending == 1

    @property
    def history(self) -> int:
        """Computed tokens."""
        return self.position + self.num_pending

    def start_over(self) -> None:
        """Reset: its sequence was closed."""
        self.position = 0
        self.num_pending = 0
        self.num_drafts = 0
        self.suffixes = []
        self.drop_tokens()

    def rewind(self, num_tokens: int) -> None:
        """Back to so many committed tokens, suspended: a disk could not read what comes after them (`LoadFailed.first_bad_token`)."""
        self.position = self.open_kv_cache().rewind(num_tokens)
        self.num_pending = 0
        self.num_drafts = 0
        self.suffixes = []
        self.is_arriving = False
        self.must_look = True

    def tokens(self) -> Tokens:
        """All that will be computed, prompt and answer; made when first asked for."""
        if self._tokens is None:
            self._tokens = make_tokens(self.request.codes_with_answer(), self.request.lengths_with_answer())
        return self._tokens

    def input_tokens(self) -> Tokens | list[int]:
        """The step's inputs. A single one is a list of one int, which costs less than a slice of an array."""
        position = self.position
        if self.num_inputs > 1 or position < self.num_prompt_tokens:
            return self.tokens()[position : position + self.num_inputs]
        answer = self._answer
        if answer is None:
            answer = self.tokens()[self.num_prompt_tokens :].tolist()
            self._answer = answer
        return [answer[position - self.num_prompt_tokens]]

    def drop_tokens(self) -> None:
        """Drop the tokens, which are not needed while it waits and can be made again."""
        self._tokens = None
        self._answer = None

    def open_kv_cache(self) -> KVCache:
        kv_cache = self.kv_cache
        assert kv_cache is not None, "a request without a sequence was treated as running"
        return kv_cache
