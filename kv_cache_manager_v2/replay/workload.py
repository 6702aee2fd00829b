"""Workloads: requests to serve, and their sources.

A `Request` says what its prompt is made of (segments, see `tokens`) and how many tokens the model answers; it holds no
tokens, so a trace of a million requests stays small. A `Workload` can be summed up beforehand and read any number of
times; it yields its requests in the order of their arrival.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final, final

import numpy as np
from mypy_extensions import mypyc_attr

from ..base.handle import Handle
from ..base.value import Value
from .tokens import SegmentArray, answer_segment


@final
class Request(Value):
    """One prompt and the number of tokens that the model generates for it.

    ``after`` names the request that must have finished before this one starts (an earlier turn), and ``pause_steps``
    how many steps of the engine pass in between (a person reads, a tool runs), or how many milliseconds of recorded time.
    ``continues``: whether the reason why it stopped is a tool call (True) or the end of a turn (False); None where none was recorded.
    """

    __slots__ = (
        "id", "arrival_ms", "segment_codes", "segment_lengths", "num_prompt_tokens", "num_output_tokens", "after",
        "pause_steps", "delay_ms", "continues",
    )  # fmt: skip

    def __init__(
        self, id: int, arrival_ms: float, segment_codes: SegmentArray, segment_lengths: SegmentArray,
        num_output_tokens: int, after: int | None = None, pause_steps: int = 0, delay_ms: float = 0.0,
        continues: bool | None = None,
    ) -> None:  # fmt: skip
        self.id: Final = id
        self.arrival_ms: Final = arrival_ms
        self.segment_codes: Final = segment_codes
        self.segment_lengths: Final = segment_lengths
        self.num_prompt_tokens: Final = int(segment_lengths.sum())
        self.num_output_tokens: Final = num_output_tokens
        self.after: Final = after
        self.pause_steps: Final = pause_steps
        self.delay_ms: Final = delay_ms
        self.continues: Final = continues

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self._comparable() == other._comparable()

    def __hash__(self) -> int:
        return hash(self._comparable())

    def _comparable(self) -> tuple[object, ...]:
        """The fields, with arrays as tuples: arrays compare item by item, without a single result."""
        return tuple([tuple(item.tolist()) if isinstance(item, np.ndarray) else item for item in self._arguments()])

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose keys and values are computed: the last token generated is never an input."""
        return self.num_prompt_tokens + max(self.num_output_tokens - 1, 0)

    def codes_with_answer(self) -> SegmentArray:
        """Prompt segments, then the answer's where it has computed tokens."""
        if self.num_output_tokens < 2:
            return self.segment_codes
        return np.append(self.segment_codes, np.int64(answer_segment(self.id)))

    def lengths_with_answer(self) -> SegmentArray:
        if self.num_output_tokens < 2:
            return self.segment_lengths
        return np.append(self.segment_lengths, np.int64(self.num_output_tokens - 1))


@final
class WorkloadSummary(Value):
    """Totals of a workload, for a plan of memory and a progress bar."""

    __slots__ = ("num_requests", "num_prompt_tokens", "num_output_tokens", "longest_tokens")

    def __init__(self, num_requests: int = 0, num_prompt_tokens: int = 0, num_output_tokens: int = 0, longest_tokens: int = 0) -> None:
        self.num_requests = num_requests
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens
        self.longest_tokens = longest_tokens
        """Of the longest request, prompt and answer."""

    def add(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self.num_requests += 1
        self.num_prompt_tokens += num_prompt_tokens
        self.num_output_tokens += num_output_tokens
        self.longest_tokens = max(self.longest_tokens, num_prompt_tokens + num_output_tokens)


@mypyc_attr(allow_interpreted_subclasses=True)
class Workload(Handle, metaclass=ABCMeta):
    """A named source of requests that can be read more than once."""

    __slots__ = ()

    _NAMES: ClassVar[str] = "requests that this process reads"

    @property
    @abstractmethod
    def name(self) -> str:
        raise NotImplementedError("Workload.name is for subclasses to define")

    @abstractmethod
    def summary(self) -> WorkloadSummary:
        raise NotImplementedError("Workload.summary is for subclasses to define")

    def has_times(self) -> bool:
        """Whether the requests' times are those of a record, or of a model of arrivals."""
        return True

    @abstractmethod
    def requests(self) -> Iterator[Request]:
        """In the order of arrival, each after the one that it names in ``after``."""
        raise NotImplementedError("Workload.requests is for subclasses to define")


@final
class ListedWorkload(Workload):
    """Requests that are all in memory."""

    __slots__ = ("_name", "_requests")

    def __init__(self, name: str, requests: Iterable[Request]) -> None:
        self._name: Final = name
        self._requests: Final = tuple(requests)

    @property
    def name(self) -> str:
        return self._name

    def summary(self) -> WorkloadSummary:
        result = WorkloadSummary()
        for request in self._requests:
            result.add(request.num_prompt_tokens, request.num_output_tokens)
        return result

    def requests(self) -> Iterator[Request]:
        return iter(self._requests)
