"""What a newcomer gets wrong first is an error that names the argument and what helps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import config_of, manager_of

from kv_cache_manager_v2 import (
    DiskCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    ModelId,
    PrometheusExporter,
    StatisticsLog,
    load_config,
)

ON_MANAGER: list[tuple[Callable[[Any], Any], type[Exception], list[str]]] = [
    (lambda m: m.create_kv_cache([1, 2, 3]), TypeError, ["reuse_scope", "list", "input_tokens=..."]),
    (lambda m: m.create_kv_cache("salt"), TypeError, ["reuse_scope", "str", "ReuseScope(salt=...)"]),
    (lambda m: m.create_kv_cache(input_tokens="a prompt"), TypeError, ["tokens", "str", "tokenize it first"]),
    (lambda m: m.create_kv_cache(input_tokens=[1]).commit([1]), LogicError, ["SUSPENDED", "resume() it first"]),
    (lambda m: m.create_kv_cache(input_tokens=[1]).resize(8), LogicError, ["resume() it first"]),
    (lambda m: resume_twice(m.create_kv_cache()), LogicError, ["ACTIVE", "suspend() it first"]),
    (lambda m: m.pool_view(LayerId(0), "key", float), TypeError, ["dtype", "'bfloat16'", "type"]),
    (lambda m: m.pool_view(LayerId(0), "keys"), ValueError, ["'keys'", "['key', 'value']"]),
    (lambda m: m.create_kv_cache().resume(12345), LogicError, ["12345", "create_stream()"]),
    (lambda m: (m.shutdown(), m.create_kv_cache()), LogicError, ["shut down", "make another one"]),
]


def resume_twice(kv_cache: Any) -> None:
    kv_cache.resume()
    kv_cache.resume()


@pytest.mark.parametrize(("call", "kind", "parts"), ON_MANAGER, ids=[" ".join(parts) for _, _, parts in ON_MANAGER])
def test_of_calls(call: Callable[[Any], Any], kind: type[Exception], parts: list[str]) -> None:
    with manager_of(num_slots=4) as manager:
        with pytest.raises(kind) as raised:
            call(manager)
        for kv_cache in list(manager.open_kv_caches):
            kv_cache.close()
    assert all([part in str(raised.value) for part in parts]), raised.value


@pytest.mark.parametrize(("device", "found"), [(HostDevice, "the class HostDevice"), ("cuda:0", "str"), (0, "int")])
def test_of_devices(device: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"device must be a Device or None, not {found}; make one: HostDevice"):
        KVCacheManager(config_of(num_slots=4), device=device)


def test_of_folders(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    durable: dict[str, Any] = {"durable": True, "model_id": ModelId("small")}
    for arguments in (dict[str, Any](), durable):
        for path, way_out in ((file, "it is a file: name a folder"), (tmp_path / "none", "create it first")):
            config = config_of(num_slots=4)
            tiers = [*config.cache_tiers, DiskCacheTierConfig(1 << 20, str(path), **arguments)]
            with pytest.raises(ValueError, match=way_out) as raised:
                KVCacheManager(KVCacheManagerConfig(config.tokens_per_block, tiers, config.layers), device=HostDevice())
            assert str(path) in str(raised.value)
        with pytest.raises(ValueError, match="a path of DiskCacheTierConfig is .*null character"):
            DiskCacheTierConfig(1 << 20, "/a\0b", **arguments)


def test_of_configuration_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a configuration file was expected") as raised:
        load_config(tmp_path / "none.json")
    assert str(raised.value).count("none.json") == 1


@pytest.mark.parametrize("exporter", [PrometheusExporter, StatisticsLog])
def test_of_exporters(exporter: Any) -> None:
    with pytest.raises(TypeError, match="manager must be a KVCacheManager, not KVCacheManagerConfig"):
        exporter(config_of(num_slots=4))
