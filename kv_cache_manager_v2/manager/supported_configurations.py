"""What a configuration may ask for and this version does not serve yet: refused at once rather than passed over."""

from ..config.manager_config import KVCacheManagerConfig


def validate_supported(config: KVCacheManagerConfig) -> None:
    if len(config.cache_tiers) > 1:
        raise ValueError(f"{len(config.cache_tiers)} cache tiers are configured; this version serves the GPU tier only")
