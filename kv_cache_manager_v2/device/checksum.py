"""Checksums: xxh3 with 64 bits, of the package ``xxhash``, which is imported when a durable level is opened and not before."""

import ctypes
from typing import Any, Final

_SIGN: Final = 1 << 63


def require_xxhash() -> Any:
    """The package; `ImportError` with the way out where it is missing."""
    try:
        import xxhash
    except ImportError as error:
        raise ImportError(f"a durable level needs the package xxhash for its checksums ({error}): pip install xxhash") from error
    return xxhash


def hash_bytes(data: bytes) -> int:
    """As a signed number of 64 bits, never 0."""
    return _to_signed(require_xxhash().xxh3_64_intdigest(data))


def hash_memory(address: int, num_bytes: int) -> int:
    """The hash of bytes in memory, which are not copied."""
    view: Any = (ctypes.c_char * num_bytes).from_address(address)
    return _to_signed(require_xxhash().xxh3_64_intdigest(view))


def _to_signed(digest: int) -> int:
    number = digest - 2 * _SIGN if digest >= _SIGN else digest
    return 1 if number == 0 else number
