"""The exit codes of ``kvcm``. What 1 means depends on the command: `_WRONG`."""

from typing import Final

EXIT_OK: Final = 0
EXIT_WRONG: Final = 1
"""The command has done its work, and the result is bad."""
EXIT_USAGE: Final = 2
EXIT_BAD_INPUT: Final = 3
"""A file has bad lines, is not what it should be, or cannot be read or written."""
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""The reader of the standard output has closed it, as `head` does: what a shell says of a program that SIGPIPE (13) has ended."""

_WRONG: Final = {
    "replay": "a wrong byte, a broken invariant, no request served, or a --kill-at that costs too many hits",
    "rerun": "a call that went another way, or a broken invariant",
    "plan": "the batch does not fit",
    "cache": "a damaged page (verify alone)",
    "selftest": "a wrong byte, or a broken invariant",
}
"""What 1 means; commands without an entry never end with it."""


def describe_exit_codes(command: str) -> str:
    """All of one command's, as a sentence for its help."""
    wrong = f"1 {_WRONG[command]}; " if command in _WRONG else ""
    return (
        f"exit codes: 0 all is well; {wrong}2 wrong usage; 3 a file that is not what it should be, or cannot be read or written; 130 ended "
        "by Ctrl-C; 141 the output was closed, as by head"
    )
