"""Generated workloads: what today's engines serve, made from a seed, in sizes that a laptop can replay.

| name            | a session is                                                                                 |
| --------------- | -------------------------------------------------------------------------------------------- |
| chat            | several turns; each prompt holds the turn before it, the model's answer and a new message     |
| shared-prompt   | one short question under one of a few long system prompts                                     |
| agents          | many turns with tool results in between, short and long pauses, one tool description for all  |
| retrieval       | an instruction, a few popular documents, most relevant first, then a question                 |
| mix             | all of them, interleaved; the default                                                         |

Later turns contain what the model generated, so generated tokens get reused. Sessions arrive as a Poisson process; the
same name, seed and size give the same requests on every machine.
"""

from abc import ABCMeta, abstractmethod
from random import Random
from typing import Final, final

import numpy as np

from .tokens import answer_segment
from .workload import ListedWorkload, Request, Workload

WORKLOAD_NAMES: Final = ("mix", "chat", "shared-prompt", "agents", "retrieval")
DEFAULT_NUM_REQUESTS: Final = 200

_MEAN_GAP_MS: Final = 400.0


@final
class _Segment:
    """A run of tokens that more than one prompt may contain."""

    __slots__ = ("code", "num_tokens")

    def __init__(self, code: int, num_tokens: int) -> None:
        self.code: Final = code
        self.num_tokens: Final = num_tokens


@final
class _Composer:
    """Hands out segment codes and request ids, and collects the requests."""

    __slots__ = ("random", "requests", "_num_segments")

    def __init__(self, random: Random) -> None:
        self.random: Final = random
        self.requests: Final[list[Request]] = []
        self._num_segments = 0

    def text(self, least_tokens: int, most_tokens: int) -> _Segment:
        self._num_segments += 1
        return _Segment(self._num_segments - 1, self.random.randint(least_tokens, most_tokens))

    def texts(self, count: int, least_tokens: int, most_tokens: int) -> list[_Segment]:
        return [self.text(least_tokens, most_tokens) for _ in range(count)]

    def answer(self, request: Request) -> _Segment:
        return _Segment(answer_segment(request.id), request.num_output_tokens)

    def add(
        self, arrival_ms: float, prompt: list[_Segment], num_output_tokens: int, after: Request | None = None,
        pause_steps: int = 0,
    ) -> Request:  # fmt: skip
        request = Request(
            len(self.requests),
            arrival_ms,
            np.array([segment.code for segment in prompt], dtype=np.int64),
            np.array([segment.num_tokens for segment in prompt], dtype=np.int64),
            num_output_tokens,
            None if after is None else after.id,
            pause_steps,
        )
        self.requests.append(request)
        return request


class _Sessions(metaclass=ABCMeta):
    """One kind of session; holds the segments that its sessions share."""

    __slots__ = ()

    @abstractmethod
    def add_session(self, composer: _Composer, start_ms: float) -> None: ...


@final
class _Chats(_Sessions):
    __slots__ = ("_personas",)

    def __init__(self, composer: _Composer) -> None:
        self._personas: Final = composer.texts(3, 80, 300)

    def add_session(self, composer: _Composer, start_ms: float) -> None:
        random = composer.random
        prompt = [random.choice(self._personas)]
        arrival_ms = start_ms
        previous: Request | None = None
        for _turn in range(random.randint(2, 6)):
            if previous is not None:
                prompt = [*prompt, composer.answer(previous)]
                arrival_ms += random.uniform(3_000.0, 30_000.0)
            prompt = [*prompt, composer.text(8, 150)]
            previous = composer.add(arrival_ms, prompt, random.randint(20, 160), previous, random.randint(5, 60))


@final
class _SharedPrompts(_Sessions):
    __slots__ = ("_system_prompts",)

    def __init__(self, composer: _Composer) -> None:
        self._system_prompts: Final = composer.texts(4, 700, 2000)

    def add_session(self, composer: _Composer, start_ms: float) -> None:
        random = composer.random
        prompt = [random.choice(self._system_prompts), composer.text(10, 120)]
        composer.add(start_ms, prompt, random.randint(1, 100))


@final
class _Agents(_Sessions):
    __slots__ = ("_tools",)

    def __init__(self, composer: _Composer) -> None:
        self._tools: Final = composer.text(900, 1500)

    def add_session(self, composer: _Composer, start_ms: float) -> None:
        random = composer.random
        prompt = [self._tools, composer.text(30, 200)]
        arrival_ms = start_ms
        previous: Request | None = None
        pause_steps = 0
        for _turn in range(random.randint(3, 8)):
            if previous is not None:
                # Most tools answer at once, some are a build or a search that takes its time.
                is_slow = random.random() < 0.2
                pause_steps = random.randint(100, 400) if is_slow else random.randint(1, 20)
                arrival_ms += random.uniform(20_000.0, 60_000.0) if is_slow else random.uniform(500.0, 4_000.0)
                prompt = [*prompt, composer.answer(previous), composer.text(30, 500)]
            previous = composer.add(arrival_ms, prompt, random.randint(10, 80), previous, pause_steps)


@final
class _Retrievals(_Sessions):
    __slots__ = ("_instruction", "_documents", "_weights")

    def __init__(self, composer: _Composer) -> None:
        self._instruction: Final = composer.text(100, 200)
        self._documents: Final = composer.texts(30, 200, 800)
        # Zipf: the k-th document is asked for 1/k as often as the first.
        self._weights: Final = [1.0 / rank for rank in range(1, 31)]

    def add_session(self, composer: _Composer, start_ms: float) -> None:
        random = composer.random
        picked: list[_Segment] = []
        num_documents = random.randint(2, 4)
        while len(picked) < num_documents:
            document = random.choices(self._documents, self._weights)[0]
            if document not in picked:
                picked.append(document)
        prompt = [self._instruction, *picked, composer.text(10, 50)]
        composer.add(start_ms, prompt, random.randint(20, 120))


def make_workload(name: str, seed: int = 0, num_requests: int = DEFAULT_NUM_REQUESTS) -> Workload:
    """The first ``num_requests`` requests, by arrival, of the named workload."""
    if name not in WORKLOAD_NAMES:
        raise ValueError(f"no workload {name!r}; there are {', '.join(WORKLOAD_NAMES)}")
    if num_requests <= 0:
        raise ValueError(f"num_requests is {num_requests}; give at least 1")
    random = Random(seed)
    composer = _Composer(random)
    kinds = _sessions_of(name, composer)
    start_ms = 0.0
    while len(composer.requests) < num_requests:
        start_ms += random.expovariate(1.0 / _MEAN_GAP_MS)
        random.choice(kinds).add_session(composer, start_ms)
    # Turns of one session never swap: their arrivals grow, and the sort is stable.
    ordered = sorted(composer.requests, key=_arrival)
    return ListedWorkload(f"{name}, seed {seed}", ordered[:num_requests])


def _sessions_of(name: str, composer: _Composer) -> list[_Sessions]:
    kinds: list[_Sessions] = []
    if name in ("mix", "chat"):
        kinds.append(_Chats(composer))
    if name in ("mix", "shared-prompt"):
        kinds.append(_SharedPrompts(composer))
    if name in ("mix", "agents"):
        kinds.append(_Agents(composer))
    if name in ("mix", "retrieval"):
        kinds.append(_Retrievals(composer))
    return kinds


def _arrival(request: Request) -> float:
    return request.arrival_ms
