"""Simulated time of a replay, and how long requests wait in it: no clock is read, so the same requests take the same time everywhere.

A step lasts `StepTime`: a constant, and as much for each input. Tokens come at the end of their step. Waiting is from the arrival (of a
later turn:
from the end of the one before and its delay) to admission; the first token's time is from the same moment on.
"""

import math
import re
from typing import Any, Final, final


from ..base.value import Value
from .served_request import ServedRequest

_GROWTH: Final = math.log(1.005)
"""Times between tokens are counted in classes of half a percent."""
_MAX_MS: Final = 1e7


@final
class StepTime(Value):
    """How long a step of the engine takes. The default is about that of a 12 B model on a fast GPU."""

    __slots__ = ("step_microseconds", "input_nanoseconds")

    def __init__(self, step_microseconds: int = 20_000, input_nanoseconds: int = 50_000) -> None:
        self.step_microseconds: Final = step_microseconds
        self.input_nanoseconds: Final = input_nanoseconds

    def microseconds(self, num_inputs: int) -> int:
        return self.step_microseconds + num_inputs * self.input_nanoseconds // 1000

    def __str__(self) -> str:
        return f"{self.step_microseconds / 1000:g} ms and {self.input_nanoseconds / 1000:g} us for each input"


def parse_step_time(text: str) -> StepTime:
    """``20ms+50us``: a constant, and for each input. ``1=20,2048=122``: two measured steps, inputs = ms, from which both follow."""
    number = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
    given = re.fullmatch(rf"{number}ms\+{number}us", text)
    if given is not None:
        return _to_step_time(float(given.group(1)), float(given.group(2)) / 1000.0, text)
    measured = re.fullmatch(rf"([0-9]{{1,9}})={number},([0-9]{{1,9}})={number}", text)
    if measured is None:
        raise ValueError(f"{text!r} is no step time; say 20ms+50us, or two measured steps with their inputs and ms, as in 1=20,2048=122")
    few, few_ms, many, many_ms = int(measured.group(1)), float(measured.group(2)), int(measured.group(3)), float(measured.group(4))
    if few == many:
        raise ValueError(f"{text!r}: both steps have {few} inputs; measure two different ones")
    slope_ms = (many_ms - few_ms) / (many - few)
    return _to_step_time(few_ms - few * slope_ms, slope_ms, text)


def _to_step_time(step_ms: float, input_ms: float, text: str) -> StepTime:
    if not (0.0 <= step_ms <= _MAX_MS and 0.0 <= input_ms <= _MAX_MS and step_ms + input_ms > 0.0):
        raise ValueError(f"{text!r} means {step_ms:g} ms a step and {input_ms:g} ms for each input; neither is negative, nor both 0")
    return StepTime(round(step_ms * 1000.0), round(input_ms * 1e6))


@final
class ServiceClock:
    """The present, and what was waited so far."""

    __slots__ = ("now_ms", "step_time", "_waits", "_first_tokens", "_gaps", "_num_gaps")

    def __init__(self, step_time: StepTime) -> None:
        self.now_ms = 0.0
        self.step_time: Final = step_time
        self._waits: Final[list[float]] = []
        self._first_tokens: Final[list[float]] = []
        self._gaps: Final[dict[int, int]] = {}
        self._num_gaps = 0

    def end_step(self, num_inputs: int) -> None:
        self.now_ms += self.step_time.microseconds(num_inputs) / 1000.0

    def record_admission(self, served: ServedRequest) -> None:
        self._waits.append(self.now_ms - served.ready_ms)

    def record_tokens(self, served: ServedRequest, num_tokens: int) -> None:
        """The request has so many tokens more, at the present."""
        if served.last_token_ms < 0.0:
            self._first_tokens.append(self.now_ms - served.ready_ms)
            num_tokens -= 1
        elif num_tokens > 0:
            gap_class = _class_of((self.now_ms - served.last_token_ms) / num_tokens)
            self._gaps[gap_class] = self._gaps.get(gap_class, 0) + num_tokens
            self._num_gaps += num_tokens
        served.last_token_ms = self.now_ms

    def figures(self) -> dict[str, Any]:
        """Milliseconds, by what was waited for: mean of the requests or tokens, and quantiles."""
        return {
            "simulated_seconds": self.now_ms / 1000.0,
            "step_time": str(self.step_time),
            "waiting_ms": _quantiles(sorted(self._waits)),
            "first_token_ms": _quantiles(sorted(self._first_tokens)),
            "between_tokens_ms": self._gap_quantiles(),
        }

    def _gap_quantiles(self) -> dict[str, float]:
        if self._num_gaps == 0:
            return {}
        classes = sorted(self._gaps.items())
        found = {"mean": sum([_value_of(gap) * count for gap, count in classes]) / self._num_gaps}
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
            wanted = math.ceil(share * self._num_gaps)
            seen = 0
            for gap, count in classes:
                seen += count
                if seen >= wanted:
                    found[name] = _value_of(gap)
                    break
        return found


def _class_of(milliseconds: float) -> int:
    return round(math.log(max(milliseconds, 1e-6)) / _GROWTH)


def _value_of(gap_class: int) -> float:
    return math.exp(gap_class * _GROWTH)


def _quantiles(times: list[float]) -> dict[str, float]:
    if len(times) == 0:
        return {}
    found = {"mean": sum(times) / len(times)}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
        found[name] = times[math.ceil(share * len(times)) - 1]
    return found
