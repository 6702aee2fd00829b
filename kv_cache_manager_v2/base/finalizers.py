"""The limits of destructors: they may report a leak. No caller can catch what they raise, and compiled destructors must not raise.

Each `__del__` of the package calls `rawref.invalidate` first, even if no rawref exists: the call clears an exception that another
object's destructor has left set. It is imported by name: looking it up in the module could lose that exception. The rest of the
`__del__` is inside a ``try`` whose handler calls `report_failure`.
"""

import warnings

from rawref import write_unraisable


def warn_of_leak(text: str) -> None:
    """Warn with `ResourceWarning`. If a filter turns the warning into an exception, report it to `sys.unraisablehook`."""
    try:
        warnings.warn(text, ResourceWarning, stacklevel=3)
    except BaseException as error:
        report_failure(error, "a destructor of kv_cache_manager_v2")


def report_failure(error: BaseException, place: object) -> None:
    """Report to `sys.unraisablehook`. ``place`` must not be the dying object: a hook could keep it alive."""
    write_unraisable(error, place)
