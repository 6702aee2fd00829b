"""A configuration as JSON and back, for journals and bug reports. Reading goes through the constructors, hence their checks."""

import json
from dataclasses import fields, is_dataclass
from typing import Any, Final

from ..base.ids import CacheTier
from .batch_desc import BatchDesc, KVCacheDesc
from .cache_tier_config import DiskCacheTierConfig, ExternalCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig
from .config_value import ConfigValue
from .eviction_policy import EvictionPolicy
from .layer_config import AttentionLayerConfig, BufferConfig, SsmLayerConfig
from .manager_config import KVCacheManagerConfig
from .model_id import ModelId
from .rebalance_config import RebalanceConfig
from .retention import RetentionConfig, TokenRangeRetention
from .scratch_reuse_config import SwaScratchReuseConfig
from .snapshot_policy import SnapshotPolicy

_TYPE: Final = "type"
_CLASSES: Final[dict[str, Any]] = {
    cls.__name__: cls
    for cls in (
        AttentionLayerConfig,
        BatchDesc,
        BufferConfig,
        DiskCacheTierConfig,
        ExternalCacheTierConfig,
        GpuCacheTierConfig,
        HostCacheTierConfig,
        KVCacheDesc,
        KVCacheManagerConfig,
        ModelId,
        RebalanceConfig,
        RetentionConfig,
        SnapshotPolicy,
        SsmLayerConfig,
        SwaScratchReuseConfig,
        TokenRangeRetention,
    )
}


def encode_config(config: KVCacheManagerConfig) -> bytes:
    return json.dumps(_to_plain(config), separators=(",", ":")).encode()


def decode_config(encoded: bytes) -> KVCacheManagerConfig:
    """`ValueError` if it is no configuration; its classes' own errors if it is a wrong one."""
    config = _from_plain(json.loads(encoded))
    if not isinstance(config, KVCacheManagerConfig):
        raise ValueError("this is not an encoded KVCacheManagerConfig")
    return config


def encode_value(value: ConfigValue) -> str:
    """Any one configuration value."""
    return json.dumps(_to_plain(value), separators=(",", ":"))


def decode_retention(encoded: str) -> RetentionConfig:
    """`ValueError` if it is none; its classes' own errors if it is a wrong one."""
    retention = _from_plain(json.loads(encoded))
    if not isinstance(retention, RetentionConfig):
        raise ValueError("this is not an encoded RetentionConfig")
    return retention


def _to_plain(value: Any) -> Any:
    if is_dataclass(value):
        plain = {_TYPE: type(value).__name__}
        for field in fields(value):
            plain[field.name] = _to_plain(getattr(value, field.name))
        return plain
    if isinstance(value, (EvictionPolicy, CacheTier)):
        return {_TYPE: type(value).__name__, "value": value.value}
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return value


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_from_plain(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    name = plain.get(_TYPE)
    if name == EvictionPolicy.__name__:
        return EvictionPolicy(plain.get("value"))
    if name == CacheTier.__name__:
        return CacheTier(plain.get("value", -1))
    cls = _CLASSES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"{name!r} is no configuration class of this version")
    return cls(**{key: _from_plain(item) for key, item in plain.items() if key != _TYPE})
