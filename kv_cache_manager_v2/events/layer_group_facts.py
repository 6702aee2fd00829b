"""Facts about a layer group for consumers of events."""

from typing import Final, final


FULL_ATTENTION: Final = "full_attention"
SLIDING_WINDOW: Final = "sliding_window"
MAMBA: Final = "mamba"


@final
class LayerGroupFacts:
    """``kind``: in routers' terms. ``num_blocks_per_cache_level``: slots of its pool group on each level."""

    __slots__ = ("kind", "window_size", "num_blocks_per_cache_level")

    def __init__(self, kind: str, window_size: int | None, num_blocks_per_cache_level: tuple[int, ...]) -> None:
        self.kind: Final = kind
        self.window_size: Final = window_size
        self.num_blocks_per_cache_level: Final = num_blocks_per_cache_level
