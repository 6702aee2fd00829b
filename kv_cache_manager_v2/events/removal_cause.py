"""Why a published page left the cache."""

from typing import Final

CAPACITY: Final = 0
"""Its slot was needed."""
SUPERSEDED: Final = 1
"""A fuller block has its text and its pages."""
CLEARED: Final = 2
"""`clear_reusable_blocks` or `shutdown` dropped everything."""
SCOPE_INVALIDATED: Final = 3
"""Its reuse scope was declared void (an adapter was reloaded, say)."""
FAILURE: Final = 4
"""Its bytes were lost: a transfer failed."""
UNREACHABLE: Final = 5
"""A page that it is useless without was evicted."""
SHRUNK: Final = 6
"""Its tier was made smaller."""
REQUESTED: Final = 7
"""The user asked for it to go."""

# In the words of an event: with more memory the page would be there, whichever of the three decisions it was.
CAUSE_NAMES: Final[tuple[str, ...]] = (
    "capacity", "superseded", "cleared", "scope_invalidated", "failure", "capacity", "capacity", "requested"
)  # fmt: skip
