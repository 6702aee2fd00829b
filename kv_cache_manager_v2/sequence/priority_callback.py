"""The priority callback: the caller says how long pages are kept."""

from collections.abc import Callable
from typing import TypeAlias

from ..base.given import Given
from ..base.ids import BlockOrdinal
from ..layout.life_cycle import LifeCycle

PriorityCallback: TypeAlias = Callable[[BlockOrdinal, LifeCycle], Given[int]]
"""Called when a page is made or reused, with the block's ordinal and the life cycle; returns 0 (evict first) to 100."""
