"""The library's version, and whether this build is compiled.

Compiled and interpreted code behave alike, but differ in speed by an order of magnitude. And a ``.so`` that shadows its source
makes edits seem to have no effect. So every report, benchmark and test run prints which build it used.
"""

from typing import Final

VERSION: Final = "0.1.0"


def is_compiled() -> bool:
    """Whether this module is machine code. All compiled modules are one library, so the answer holds for all of them."""
    return not __file__.endswith((".py", ".pyc"))
