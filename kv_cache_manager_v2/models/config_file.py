"""A configuration of the manager as a file that people write: JSON, or YAML where msgspec and pyyaml are installed.

`docs/models.md` has its schema. Layers of one shape are one entry with `layer_ids`; sizes may be "64MiB"; what equals its default may be
left
out, and is left out when it is written. Reading goes through the constructors, hence their checks. An unknown key is an error that names
it and
the nearest known one.
"""

import difflib
import json
import os
import re
from dataclasses import MISSING, fields
from typing import Any, Final

from ..base.given import Given
from ..base.missing_package import missing_package
from ..config.batch_desc import BatchDesc, KVCacheDesc
from ..config.cache_tier_config import CacheTierConfig, DiskCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig
from ..config.eviction_policy import EvictionPolicy
from ..config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from ..config.manager_config import KVCacheManagerConfig
from ..config.rebalance_config import RebalanceConfig
from ..config.scratch_reuse_config import SwaScratchReuseConfig
from ..config.snapshot_policy import SnapshotPolicy
from .model_fields import ModelConfigError, shown
from .not_json import describe_no_json

FORMAT_KEY: Final = "kv_cache_manager_v2"
"""The key by which such a file is recognised; its value is the version of the format."""
FORMAT_VERSION: Final = 1
YAML_ENDINGS: Final = (".yaml", ".yml")
_MAX_BYTES: Final = 1 << 26
_MAX_LAYERS: Final = 10_000
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_TIERS: Final[dict[str, Any]] = {"gpu": GpuCacheTierConfig, "host": HostCacheTierConfig, "disk": DiskCacheTierConfig}
_LAYERS: Final[dict[str, Any]] = {"attention": AttentionLayerConfig, "state": SsmLayerConfig}
_INNER: Final[dict[str, Any]] = {
    "swa_scratch_reuse": SwaScratchReuseConfig, "snapshot_policy": SnapshotPolicy, "rebalance": RebalanceConfig,
}  # fmt: skip
_SIZES: Final = frozenset(["quota", "size"])


def is_config_content(values: object) -> bool:
    """Whether that is the content of such a file."""
    return isinstance(values, dict) and FORMAT_KEY in values


def load_config(path: Given[str | os.PathLike[str]]) -> KVCacheManagerConfig:
    """Read a configuration file: JSON, or YAML by its ending. A `ValueError` names file, place and key."""
    name = _to_path(path)
    try:
        return config_from_content(read_content(name))
    except (ValueError, TypeError) as error:
        text = str(error)
        raise ModelConfigError(text if text.startswith((name, f"path {name}: ")) else f"path {name}: {text}") from None


def config_text(config: KVCacheManagerConfig, is_yaml: bool) -> str:
    """The content of a file."""
    content = config_content(config)
    if not is_yaml:
        return json.dumps(content, indent=1) + "\n"
    try:
        from msgspec import yaml

        encoded: bytes = yaml.encode(content)
    except ImportError as error:
        raise missing_package("a YAML configuration", "msgspec pyyaml", error) from None
    return encoded.decode()


def read_content(name: str) -> Any:
    """The plain values of a JSON or YAML file."""
    try:
        with open(name, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise ModelConfigError(f"path {name}: {reason}; a configuration file was expected") from None
    if len(data) > _MAX_BYTES:
        raise ModelConfigError(f"path {name}: over {_MAX_BYTES} bytes; a configuration file was expected")
    if name.endswith(YAML_ENDINGS):
        try:
            from msgspec import DecodeError, yaml
        except ImportError as error:
            raise missing_package("a YAML configuration", "msgspec pyyaml", error) from None
        try:
            return yaml.decode(data)
        except DecodeError as refusal:
            raise ModelConfigError(f"path {name}: not YAML ({' '.join(str(refusal).split())})") from None
        except ImportError as absent:
            raise missing_package("a YAML configuration", "msgspec pyyaml", absent) from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as invalid:
        raise ModelConfigError(f"path {name}: {describe_no_json(data, invalid)}; a configuration file was expected") from None


def config_content(config: KVCacheManagerConfig) -> dict[str, Any]:
    """The plain values of a configuration; what equals its default is left out."""
    content: dict[str, Any] = {FORMAT_KEY: FORMAT_VERSION, "tokens_per_block": config.tokens_per_block}
    content["cache_tiers"] = [{"tier": _name_of(_TIERS, tier), **_to_plain(tier)} for tier in config.cache_tiers]
    layers: list[dict[str, Any]] = []
    entries: dict[str, dict[str, Any]] = {}
    for layer in config.layers:
        entry = {"kind": _name_of(_LAYERS, layer), **_to_plain(layer)}
        layer_id = entry.pop("layer_id")
        key = json.dumps(entry)
        if key not in entries:
            entries[key] = {"layer_ids": [], **entry}
            layers.append(entries[key])
        entries[key]["layer_ids"].append(layer_id)
    content["layers"] = layers
    if tuple(_to_layers(layers)) != tuple(config.layers):
        # Not in the order of their ids: each has its own entry, and entries of one layer are read in their order.
        content["layers"] = [{"kind": _name_of(_LAYERS, layer), **_with_list(_to_plain(layer))} for layer in config.layers]
    for name, value in _to_plain(config).items():
        if name not in content:
            content[name] = value
    return content


def config_from_content(content: object) -> KVCacheManagerConfig:
    """The configuration of such plain values."""
    if not is_config_content(content) or not isinstance(content, dict):
        raise ModelConfigError(f"no key {FORMAT_KEY!r}, so it is no configuration of this library: {shown(content)}; see docs/models.md")
    if content[FORMAT_KEY] != FORMAT_VERSION:
        raise ModelConfigError(f"{FORMAT_KEY} is {shown(content[FORMAT_KEY])}; this version reads {FORMAT_VERSION}")
    values = {key: value for key, value in content.items() if key != FORMAT_KEY}
    _require_known("the configuration", values, KVCacheManagerConfig, ())
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key == "cache_tiers":
            arguments[key] = [_to_tier(item, f"cache_tiers[{index}]") for index, item in enumerate(_to_list(value, key))]
        elif key == "layers":
            arguments[key] = _to_layers(_to_list(value, key))
        elif key in _INNER and value is not None:
            arguments[key] = _build(_INNER[key], value, key)
        elif key == "typical_step" and value is not None:
            arguments[key] = _to_batch(value, key)
        elif key == "constraints":
            arguments[key] = [_to_batch(item, f"constraints[{index}]") for index, item in enumerate(_to_list(value, key))]
        else:
            arguments[key] = value
    for name in ("tokens_per_block", "cache_tiers", "layers"):
        if name not in arguments:
            raise ModelConfigError(f"there is no key {name}")
    return KVCacheManagerConfig(**arguments)


def _to_tier(value: object, place: str) -> CacheTierConfig:
    plain = _to_object(value, place)
    kind = plain.pop("tier", None)
    if kind not in _TIERS:
        raise ModelConfigError(f"{place}: tier is {shown(kind)}; it is {', '.join(_TIERS)}")
    if "eviction_policy" in plain:
        names = [policy.value for policy in EvictionPolicy]
        if plain["eviction_policy"] not in names:
            raise ModelConfigError(f"{place}: eviction_policy is {shown(plain['eviction_policy'])}; it is {', '.join(names)}")
        plain["eviction_policy"] = EvictionPolicy(plain["eviction_policy"])
    tier: CacheTierConfig = _build(_TIERS[kind], plain, place)
    return tier


def _to_layers(entries: list[Any]) -> list[LayerConfig]:
    found: list[LayerConfig] = []
    for index, entry in enumerate(entries):
        place = f"layers[{index}]"
        plain = _to_object(entry, place)
        kind = plain.pop("kind", "attention")
        if kind not in _LAYERS:
            raise ModelConfigError(f"{place}: kind is {shown(kind)}; it is {', '.join(_LAYERS)}")
        layer_ids = _to_list(plain.pop("layer_ids", None), f"{place}.layer_ids")
        buffers = _to_list(plain.pop("buffers", None), f"{place}.buffers")
        made: list[BufferConfig] = []
        for number, buffer in enumerate(buffers):
            made.append(_build(BufferConfig, buffer, f"{place}.buffers[{number}]"))
        for layer_id in layer_ids:
            found.append(_build(_LAYERS[kind], {"layer_id": layer_id, "buffers": made, **plain}, place))
        if len(found) > _MAX_LAYERS:
            raise ModelConfigError(f"{place}: over {_MAX_LAYERS} layers")
    return found if len(found) == len(entries) else sorted(found, key=_layer_id)


def _layer_id(layer: LayerConfig) -> int:
    return layer.layer_id


def _to_batch(value: object, place: str) -> BatchDesc:
    plain = _to_object(value, place)
    sequences = _to_list(plain.pop("kv_caches", None), f"{place}.kv_caches")
    made = [_build(KVCacheDesc, item, f"{place}.kv_caches[{index}]") for index, item in enumerate(sequences)]
    batch: BatchDesc = _build(BatchDesc, {"kv_caches": made, **plain}, place)
    return batch


def _build(kind: Any, value: object, place: str) -> Any:
    """An object of that class of the configuration; its own errors say the place, too."""
    plain = _to_object(value, place)
    _require_known(place, plain, kind, [field.name for field in fields(kind) if field.default is MISSING])
    for name in plain:
        if name in _SIZES and isinstance(plain[name], str):
            plain[name] = _to_bytes(plain[name], f"{place}.{name}")
    try:
        return kind(**plain)
    except (ValueError, TypeError) as error:
        raise ModelConfigError(f"{place}: {error}") from None


def _require_known(place: str, plain: dict[str, Any], kind: Any, required: Any) -> None:
    known = [field.name for field in fields(kind)]
    for key in plain:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, 1, 0.5)
            meant = f"; did you mean {close[0]}?" if len(close) > 0 else f"; known are {', '.join(known)}"
            raise ModelConfigError(f"{place}: unknown key {shown(key)}{meant}")
    for name in required:
        if name not in plain:
            raise ModelConfigError(f"{place}: there is no key {name}")


def _to_plain(value: Any) -> Any:
    """A configuration value as plain values, without what equals its default."""
    if isinstance(value, EvictionPolicy):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    plain: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if field.default is MISSING or item != field.default:
            plain[field.name] = _to_plain(item)
    return plain


def _with_list(layer: dict[str, Any]) -> dict[str, Any]:
    return {"layer_ids": [layer.pop("layer_id")], **layer}


def _name_of(kinds: dict[str, Any], value: object) -> str:
    return next(name for name, kind in kinds.items() if isinstance(value, kind))


def _to_object(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ModelConfigError(f"{place} is {shown(value)}, not an object")
    return dict(value)


def _to_list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ModelConfigError(f"{place} is {shown(value)}, not a list")
    return value


def _to_bytes(text: str, place: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([kmgt]?)(?:i?b)?", text.lower())
    if match is None:
        raise ModelConfigError(f"{place} is {shown(text)}, no size; say 67108864, 64MiB or 40GiB")
    return int(float(match.group(1)) * (1 << _UNITS[match.group(2)]))


def _to_path(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a path, not {type(path).__name__}")
    any_path: Any = path
    return str(os.fspath(any_path))
