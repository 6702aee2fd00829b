"""What reads a log of one format: each record becomes requests. A reader is for one pass over the log.

`SessionTable` has the turns of conversations whose records hold only what is new: the next prompt is the one before, its answer and more.
"""

from abc import ABCMeta, abstractmethod
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..tokens import answer_segment
from ..workload import Request
from .log_error import require_length
from .token_runs import BYTES_PER_TOKEN, CodeTable, Segments, TextCoder

DEFAULT_OUTPUT_TOKENS: Final = 256
DEFAULT_SHARED_PREFIX: Final = 0.5


@final
class LogOptions:
    """What the formats leave open."""

    __slots__ = ("tokenizer", "bytes_per_token", "output_tokens", "shared_prefix", "block_tokens")

    def __init__(
        self, tokenizer: Any = None, bytes_per_token: int = BYTES_PER_TOKEN, output_tokens: int = DEFAULT_OUTPUT_TOKENS,
        shared_prefix: float = DEFAULT_SHARED_PREFIX, block_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.tokenizer: Final = tokenizer
        self.bytes_per_token: Final = bytes_per_token
        self.output_tokens: Final = output_tokens
        """Of an answer whose length the log does not have."""
        self.shared_prefix: Final = shared_prefix
        """The share of a prompt of which only the length is known that is made a common prefix."""
        self.block_tokens: Final = block_tokens
        """Tokens per hash id; None: as the format has it."""

    def make_coder(self) -> TextCoder:
        return TextCoder(self.tokenizer, self.bytes_per_token)

    def describe_tokens(self) -> str:
        if self.tokenizer is not None:
            return "texts are tokens of the given tokenizer, without a chat template"
        return f"each {self.bytes_per_token} bytes of text count as a token, without a chat template (--tokenizer, --bytes-per-token)"


@mypyc_attr(allow_interpreted_subclasses=True)
class LogReader(metaclass=ABCMeta):
    """Makes requests of records."""

    __slots__ = ()

    @abstractmethod
    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        """The record's requests, whose ids are ``first_id`` and those after it. `LineError` if it is none."""
        raise NotImplementedError("LogReader.requests_of is for subclasses to define")

    def notes(self) -> list[str]:
        """What a report of the requests must say: what was made up, assumed, left out."""
        return []


@final
class _Turn:
    """The last turn of a session."""

    __slots__ = ("request_id", "arrival_ms", "context")

    def __init__(self, request_id: int, arrival_ms: float, context: Segments) -> None:
        self.request_id: Final = request_id
        self.arrival_ms: Final = arrival_ms
        self.context: Final = context
        """Its prompt and its answer."""


@final
class SessionTable:
    """The last turn of each session."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: Final[dict[object, _Turn]] = {}

    def context(self, session: object) -> Segments | None:
        """Prompt and answer of the last turn; None before the first one."""
        turn = self._turns.get(session)
        return None if turn is None else turn.context

    def arrival_ms(self, session: object) -> float:
        turn = self._turns.get(session)
        return 0.0 if turn is None else turn.arrival_ms

    def make_request(
        self, session: object | None, request_id: int, arrival_ms: float, prompt: Segments, num_output_tokens: int, delay_ms: float = 0.0
    ) -> Request:  # fmt: skip
        """The session's next turn, with its whole prompt. None: of no session."""
        require_length(prompt.num_tokens, num_output_tokens)
        codes, lengths = prompt.arrays()
        after: int | None = None
        if session is not None:
            last = self._turns.get(session)
            if last is not None and last.arrival_ms <= arrival_ms:
                after = last.request_id
            context = Segments(prompt.codes, prompt.lengths)
            context.add(answer_segment(request_id), num_output_tokens)
            self._turns[session] = _Turn(request_id, arrival_ms, context)
        return Request(request_id, arrival_ms, codes, lengths, num_output_tokens, after, 0, delay_ms)


@final
class MadePrefixes:
    """Prompts of which only the length is known: each begins with one of a few common prefixes. Half of them have the first, a quarter
    the second, and so on; which one follows from the request's number."""

    __slots__ = ("_share", "_table", "_codes")

    def __init__(self, share: float, table: CodeTable) -> None:
        self._share: Final = share
        self._table: Final = table
        self._codes: Final[dict[int, int]] = {}

    def make_prompt(self, number: int, num_tokens: int) -> Segments:
        mixed = ((number + 1) * 0x9E3779B1) & 0xFFFFFFFF
        mixed ^= mixed >> 15
        kind = 0
        while kind < 15 and (mixed >> kind) & 1 == 1:
            kind += 1
        num_shared = min(int(num_tokens * self._share), num_tokens - 1)
        prompt = Segments()
        if num_shared > 0:
            code = self._codes.get(kind)
            if code is None:
                code = self._table.fresh()
                self._codes[kind] = code
            prompt.add(code, num_shared)
        prompt.add(self._table.fresh(), num_tokens - num_shared)
        return prompt

    def describe(self) -> str:
        if self._share == 0.0:
            return "prompts have lengths only: that none of them shares anything is made up (--shared-prefix)"
        return (
            f"prompts have lengths only: which tokens they share is MADE UP. {self._share:.0%} of each is one of 16 common prefixes "
            f"(--shared-prefix), so hit rates say nothing of the real requests"
        )
