"""Cheap call stacks: a few (code, instruction) pairs, turned into file and line only for a report.

One is captured per enqueued operation, so it must cost a microsecond or two. It holds code objects, never frames, and
therefore keeps no local variable alive. Compiled functions have no Python frame and are simply missing from the
stack.
"""

import sys
from types import CodeType
from typing import Final, final


MAX_FRAMES: Final = 12


@final
class CallStack:
    """A captured stack, innermost frame first."""

    __slots__ = ("_codes", "_instructions")

    def __init__(self, codes: list[CodeType], instructions: list[int]) -> None:
        self._codes: Final = codes
        self._instructions: Final = instructions

    def lines(self) -> list[str]:
        """``file:line function`` of each frame that does not belong to the simulated device itself."""
        result: list[str] = []
        for position in range(len(self._codes)):
            code = self._codes[position]
            if not _is_own(code.co_filename):
                result.append(f"{code.co_filename}:{_line_of(code, self._instructions[position])} {code.co_qualname}")
        return result


def capture_stack() -> CallStack:
    """The caller's stack, up to `MAX_FRAMES` frames."""
    codes: list[CodeType] = []
    instructions: list[int] = []
    try:
        frame = sys._getframe()
    except ValueError:
        # Compiled, and called by a destructor at interpreter exit: there is no frame at all.
        return CallStack(codes, instructions)
    count = 0
    while count < MAX_FRAMES:
        codes.append(frame.f_code)
        instructions.append(frame.f_lasti)
        outer = frame.f_back
        if outer is None:
            count = MAX_FRAMES
        else:
            frame = outer
            count += 1
    return CallStack(codes, instructions)


_OWN_FILES: Final = (
    "testing/call_stack.py",
    "testing/race_detector.py",
    "testing/simulated_device.py",
    "testing/simulated_memory.py",
    "testing/stream_scheduler.py",
    "testing/shadow_memory.py",
)


def _is_own(file_name: str) -> bool:
    return file_name.replace("\\", "/").endswith(_OWN_FILES)


def _line_of(code: CodeType, instruction: int) -> int:
    line_number = code.co_firstlineno
    for beg, end, line in code.co_lines():
        if line is not None and beg <= instruction < end:
            line_number = line
    return line_number
