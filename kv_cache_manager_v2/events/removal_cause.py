"""Why a published page left the cache."""

from typing import Final

CAPACITY: Final = 0
"""Evicted: its slot was needed."""
SUPERSEDED: Final = 1
"""A fuller block has its tokens and its pages."""
CLEARED: Final = 2
"""`clear_reusable_blocks` or `shutdown` dropped everything."""
SCOPE_INVALIDATED: Final = 3
"""Its reuse scope was invalidated (an adapter was reloaded, say)."""
FAILURE: Final = 4
"""Its bytes were lost: a transfer failed."""
UNREACHABLE: Final = 5
"""A page was evicted without which it cannot be matched."""
SHRUNK: Final = 6
"""Its tier was made smaller."""
REQUESTED: Final = 7
"""The user asked to drop it."""

# The words of events: the three decisions all mean that more memory would have kept the page.
CAUSE_NAMES: Final[tuple[str, ...]] = (
    "capacity", "superseded", "cleared", "scope_invalidated", "failure", "capacity", "capacity", "requested"
)  # fmt: skip
