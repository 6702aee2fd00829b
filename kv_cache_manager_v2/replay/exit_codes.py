"""The exit codes of ``kvcm``. `plan` has one more meaning of 1: the batch that was asked about does not fit."""

from typing import Final

EXIT_OK: Final = 0
EXIT_WRONG: Final = 1
"""A byte was wrong, a decision differed, an invariant did not hold, or not one request could be served."""
EXIT_USAGE: Final = 2
EXIT_BAD_INPUT: Final = 3
"""A file has bad lines, is not what it should be, or cannot be read or written."""
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""The reader of the standard output has closed it, as `head` does: what a shell says of a program that SIGPIPE (13) has ended."""
