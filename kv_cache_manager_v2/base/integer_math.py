"""Integer arithmetic on non-negative 64-bit numbers."""

from mypy_extensions import i64


def ceil_div(value: i64, divisor: i64) -> i64:
    """The least ``n`` with ``n * divisor >= value``."""
    return (value + divisor - 1) // divisor
