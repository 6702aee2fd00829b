"""The package's log. Filters and handlers are the user's: one that raises costs its line, and no call.

What is logged is logged in the middle of changes, and by threads that others wait for.
"""

import logging
import sys
import traceback
from _thread import interrupt_main
from typing import Final, final


from .build_mode import is_compiled

_FRAMES_UP: Final = 1 if is_compiled() else 3
"""To the line that logs. Compiled code has no frames: there it is the caller's."""


@final
class PackageLog:
    """`logging.Logger` for the package's own modules. What a filter or handler raises goes to standard error, as what a handler cannot
    write does (`logging.raiseExceptions`). A Ctrl-C that arrives meanwhile is raised as soon as Python looks for signals again.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger: Final[logging.Logger] = logging.getLogger(name)

    def debug(self, text: str, *arguments: object, with_error: bool = False) -> None:
        self._log(logging.DEBUG, text, arguments, with_error)

    def inform(self, text: str, *arguments: object) -> None:
        self._log(logging.INFO, text, arguments, False)

    def warning(self, text: str, *arguments: object) -> None:
        self._log(logging.WARNING, text, arguments, False)

    def error(self, text: str, *arguments: object) -> None:
        self._log(logging.ERROR, text, arguments, False)

    def exception(self, text: str, *arguments: object) -> None:
        """`error`, with the exception that is being handled."""
        self._log(logging.ERROR, text, arguments, True)

    def critical(self, text: str, *arguments: object) -> None:
        self._log(logging.CRITICAL, text, arguments, False)

    def _log(self, level: int, text: str, arguments: tuple[object, ...], with_error: bool) -> None:
        try:
            self._logger.log(level, text, *arguments, exc_info=True if with_error else None, stacklevel=_FRAMES_UP)
        except KeyboardInterrupt:
            interrupt_main()
        except BaseException:
            _report(text)


def _report(text: str) -> None:
    if not logging.raiseExceptions:
        return
    try:
        sys.stderr.write(f"kv_cache_manager_v2: a filter or handler of logging failed at: {text}\n{traceback.format_exc()}")
    except BaseException:
        # Standard error is closed, or itself the user's: nothing is left to say it with.
        return
