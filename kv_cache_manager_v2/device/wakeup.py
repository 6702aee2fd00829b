"""`Wakeup`: how threads of a device wake a thread that waits in ``select``: a descriptor that is readable after `give`.

An eventfd where the system has one, else a pipe. Any thread may `give`, as often as it likes, also after `close`.
"""

import os
import sys
from threading import Lock
from typing import ClassVar, Final, final


from ..base.handle import Handle

_ONE: Final = (1).to_bytes(8, sys.byteorder)
_MOST_BYTES: Final = 4096


@final
class Wakeup(Handle):
    """See the module. ``file_descriptor`` is to be waited for; `OSError` if the system has none left.

    ``uses_eventfd`` False: a pipe, as where there is no eventfd.
    """

    __slots__ = ("file_descriptor", "_writing_end", "_lock", "_is_open")

    _NAMES: ClassVar[str] = "a file descriptor of this process"

    def __init__(self, uses_eventfd: bool = hasattr(os, "eventfd")) -> None:
        self._is_open = False
        self._lock: Final = Lock()
        """Guards against a thread that writes to the number of a closed descriptor, which another file may have by then."""
        if uses_eventfd:
            reading_end = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            writing_end = reading_end
        else:
            reading_end, writing_end = os.pipe()
            os.set_blocking(reading_end, False)
            os.set_blocking(writing_end, False)
        self.file_descriptor: Final[int] = reading_end
        self._writing_end: Final[int] = writing_end
        self._is_open = True

    def give(self) -> None:
        """Make the descriptor readable."""
        with self._lock:
            if self._is_open:
                try:
                    os.write(self._writing_end, _ONE)
                except BlockingIOError:
                    pass  # It is readable already.

    def take(self) -> None:
        """Make the descriptor unreadable until `give` is called again."""
        with self._lock:
            if self._is_open:
                try:
                    os.read(self.file_descriptor, _MOST_BYTES)
                except BlockingIOError:
                    pass

    def close(self) -> None:
        """Close the descriptor. Closing twice is fine."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self.file_descriptor)
                if self._writing_end != self.file_descriptor:
                    os.close(self._writing_end)
