"""What a destructor may do: tell of a leak. Nobody can catch what it raises, and compiled destructors must raise nothing.

Each `__del__` of the package calls `rawref.invalidate` first, also where nobody refers to the object: that takes away an exception
which another object's destructor has left behind. What it does then stands in a ``try`` whose handler calls `report_failure`.
"""

import warnings

import rawref


def warn_of_leak(text: str) -> None:
    """A `ResourceWarning`; where a filter makes an exception of it, that goes to `sys.unraisablehook`."""
    try:
        warnings.warn(text, ResourceWarning, stacklevel=3)
    except BaseException as error:
        report_failure(error, "a destructor of kv_cache_manager_v2")


def report_failure(error: BaseException, place: object) -> None:
    """To `sys.unraisablehook`. ``place`` is not the dying object, which a hook could keep."""
    rawref.write_unraisable(error, place)
