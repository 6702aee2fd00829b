"""Which version of the library runs, and whether it runs compiled.

Compiled and interpreted code behave alike, but differ in speed by an order of magnitude; and where a ``.so`` shadows
its source, edits seem to have no effect. So every report, benchmark and test run asks here and says which build it was.
"""

from typing import Final

VERSION: Final = "0.1.0"


def is_compiled() -> bool:
    """Whether this very module is machine code. All compiled modules are one library, so it answers for all of them."""
    return not __file__.endswith((".py", ".pyc"))
