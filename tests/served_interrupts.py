"""A KeyboardInterrupt at a chosen place where Python serves signals: behind calls, at the beginning of functions, at jumps backwards."""

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Place = tuple[CodeType, int]


def is_served_behind(name: str) -> bool:
    return name.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))


class Tracer:
    """Lists each place of the modules, on this thread, where signals are served; raises at the given one."""

    def __init__(self, modules: tuple[str, ...], stop: Place | None = None) -> None:
        self.modules = modules
        self.places: dict[Place, None] = {}
        self.stop = stop
        self.has_raised = False
        self._operations: dict[CodeType, dict[int, str]] = {}
        self._latest: dict[FrameType, str] = {}

    def follows(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.rsplit("/", 1)[-1].removesuffix(".py") in self.modules

    def begin(self, frame: FrameType, event: str, argument: object) -> Any:
        if not self.follows(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.step

    def step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            if code not in self._operations:
                self._operations[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
            latest = self._latest.get(frame, "RESUME")  # the beginning has no event of its own
            self._latest[frame] = self._operations[code].get(at, "")
            if is_served_behind(latest):
                self.places[(code, at)] = None
                if (code, at) == self.stop and not self.has_raised:
                    self.has_raised = True
                    raise KeyboardInterrupt
        return self.step

    @contextmanager
    def at_work(self) -> Iterator[None]:
        sys.settrace(self.begin)
        try:
            yield
        finally:
            sys.settrace(None)
