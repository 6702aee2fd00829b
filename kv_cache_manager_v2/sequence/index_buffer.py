"""A caller's int32 buffer for page indices, checked once."""

from typing import Any, Final

_INT32_FORMATS: Final = ("i", "l", "=i", "<i", "@i")


def to_index_buffer(buffer: object, num_blocks: int) -> memoryview:
    """A writable view of the caller's int32 buffer; it must have room for the present blocks.

    ``TypeError`` if it is no buffer of int32, ``ValueError`` if it is read-only, not contiguous or too small.
    """
    anything: Any = buffer
    try:
        view = memoryview(anything)
    except TypeError:
        raise TypeError(
            f"buf must support the buffer protocol, {type(buffer).__name__} does not"
        ) from None
    if view.format not in _INT32_FORMATS or view.itemsize != 4:
        raise TypeError(f"buf must be int32, not {type(buffer).__name__} with items of format {view.format!r}")
    if view.readonly:
        raise ValueError("buf must be writable")
    if view.ndim != 1 or not view.c_contiguous:
        raise ValueError(f"buf must be one contiguous dimension, not {view.ndim} dimensions")
    if len(view) < num_blocks:
        raise ValueError(f"buf has the shape ({len(view)},), the sequence has {num_blocks} blocks")
    return view.cast("B").cast("i")
