"""What a configuration may ask for and this version does not serve yet: refused at once rather than passed over."""

from ..config.layer_config import SsmLayerConfig
from ..config.manager_config import KVCacheManagerConfig


def validate_supported(config: KVCacheManagerConfig) -> None:
    if len(config.cache_tiers) > 1:
        raise ValueError(f"{len(config.cache_tiers)} cache tiers are configured; this version serves the GPU tier only")
    for layer in config.layers:
        if isinstance(layer, SsmLayerConfig):
            raise ValueError(f"layer {layer.layer_id} has recurrent state, which this version does not serve yet")
