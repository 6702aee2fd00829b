"""Counts the rounds of the library's loops while a call runs. Compiled code has no lines to count."""

import gc
import sys
from collections import Counter
from types import FrameType
from typing import Any


class RoundCount:
    """``with``: `num_rounds` is how often the loop that goes round most does so, in one function's run; `where` is its line.
    `num_lines`: lines that ran in all."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self.where = ""
        self.num_lines = 0
        self._tracer: Any = None

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        rounds: Counter[int] = Counter()

        def count(inside: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                self.num_lines += 1
                rounds[inside.f_lineno] += 1
                if rounds[inside.f_lineno] > self.num_rounds:
                    self.num_rounds = rounds[inside.f_lineno]
                    self.where = f"{inside.f_code.co_qualname}:{inside.f_lineno}"
            return count

        return count if "kv_cache_manager_v2" in frame.f_code.co_filename else None

    def __enter__(self) -> "RoundCount":
        gc.disable()
        self._tracer = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._tracer)
        gc.enable()
