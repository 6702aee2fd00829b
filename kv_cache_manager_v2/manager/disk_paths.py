"""The absolute paths of a disk tier: they name the same folders when the process changes its working folder later."""

import os

from ..config.cache_tier_config import DiskCacheTierConfig


def list_absolute_paths(tier: DiskCacheTierConfig) -> list[str]:
    """From the working folder of this moment; ``path`` first. ".." and links are left to the file system."""
    return [path if os.path.isabs(path) else os.path.join(os.getcwd(), path) for path in tier.paths]
