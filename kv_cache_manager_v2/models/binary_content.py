"""The kind of a file that should have been text, by its first bytes, for messages."""

from collections.abc import Sequence
from typing import Final

_MAGIC: Final[Sequence[tuple[bytes, str]]] = (
    (b"\x1f\x8b", "a gzip file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"),
    (b"PAR1", "a parquet file"),
    (b"PK\x03\x04", "a zip file"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ", "an xz file"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"ARROW1", "an Arrow file"),
    (b"%PDF", "a PDF file"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"\x7fELF", "a program"),
    (b"SQLite f", "an SQLite database"),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x80\x04", "a pickle"),
    (b"\xff\xfe", "text as UTF-16 (iconv -f UTF-16 -t UTF-8 makes it UTF-8)"),
    (b"\xfe\xff", "text as UTF-16 (iconv -f UTF-16 -t UTF-8 makes it UTF-8)"),
)
_SHOWN: Final = 4


def describe_binary(head: bytes) -> str | None:
    """None for what may be text as UTF-8. ``head``: the first bytes, some hundreds."""
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return what
    if b"\x00" in head or _is_no_text(head):
        return f"a binary file (its first bytes are {head[:_SHOWN].hex(' ')})"
    return None


def _is_no_text(head: bytes) -> bool:
    """Whether its first line is not UTF-8, and does not begin as JSON does."""
    lines = head.lstrip().split(b"\n", 1)
    line = lines[0]
    if line[:1] in (b"{", b"["):
        return False
    try:
        # A character may be cut off at the end.
        line[: max(len(line) - 3, 0)].decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False
