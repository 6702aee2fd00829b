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
            f"a page index buffer must support the buffer protocol, {type(buffer).__name__} does not"
        ) from None
    if view.format not in _INT32_FORMATS or view.itemsize != 4:
        raise TypeError(f"a page index buffer must be int32, not items of format {view.format!r}")
    if view.readonly:
        raise ValueError("a page index buffer must be writable")
    if view.ndim != 1 or not view.c_contiguous:
        raise ValueError(f"a page index buffer must be one contiguous dimension, not {view.ndim} dimensions")
    if len(view) < num_blocks:
        raise ValueError(f"the page index buffer has {len(view)} entries, the sequence has {num_blocks} blocks")
    return view.cast("B").cast("i")
