"""Writing what a command has found into the file that an option names."""

from pathlib import Path


def write_result(path: str, text: str) -> None:
    """An `OSError` names the file, also where the disk was full."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as failure:
        raise OSError(failure.errno, failure.strerror, path) from failure
