"""What a newcomer gets wrong first is an error that names the argument and what helps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import config_of, manager_of

from kv_cache_manager_v2 import (
    BatchPageTable,
    DecodeBatch,
    DiskCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    ModelId,
    PrometheusExporter,
    StatisticsLog,
    SwaScratchReuseConfig,
    default_device,
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
    assert all([part in str(raised.value) for part in parts]), raised.value


ROWS = 2
ON_BATCHES: list[tuple[str, Callable[[Any, Any, list[Any]], Any], type[Exception], str]] = [
    ("table, closed", lambda t, b, s: (s[0].close(), t.update()), LogicError, "sequence 0 in row 0 is closed; remove() it from the table"),
    (
        "table, suspended", lambda t, b, s: (s[1].suspend(), t.update()), LogicError,
        "sequence 1 in row 1 is suspended; resume() it, or remove() it from the table",
    ),
    (
        "batch, closed", lambda t, b, s: (s[1].close(), b.step()), LogicError,
        "sequence 1 in row 1 is closed; take it out of the batch with leave()",
    ),
    (
        "batch, closed, a token", lambda t, b, s: (s[1].close(), b.step([-1, 5])), LogicError,
        "sequence 1 in row 1 is closed; take it out of the batch with leave()",
    ),
    ("table, twice", lambda t, b, s: t.add(s[1]), ValueError, "sequence 1, beam 0, is in the table already"),
    ("batch, twice", lambda t, b, s: b.join(s[1]), ValueError, "sequence 1, beam 0, is in the table already"),
    ("table, full", lambda t, b, s: t.add(s[2]), ValueError, "remove a sequence, or make the table with a larger max_num_sequences"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "part"), [case[1:] for case in ON_BATCHES], ids=[case[0] for case in ON_BATCHES])
def test_of_full_batches(call: Callable[[Any, Any, list[Any]], Any], kind: type[Exception], part: str) -> None:
    """Both are full, and what the message says helps."""
    with manager_of(num_slots=8) as manager:
        sequences = [manager.create_kv_cache() for _row in range(ROWS + 1)]
        table, batch = BatchPageTable(manager, ROWS, 4), DecodeBatch(manager, ROWS, 4)
        for kv_cache in sequences:
            assert kv_cache.resume() and kv_cache.resize(1)
        for kv_cache in sequences[:ROWS]:
            table.add(kv_cache)
            batch.join(kv_cache)
        with pytest.raises(kind) as raised:
            call(table, batch, sequences)
        assert part in str(raised.value)
        for kv_cache in sequences:
            if not kv_cache.is_active and kv_cache in sequences[:ROWS]:
                table.remove(kv_cache)
                batch.leave(kv_cache)
        table.update()
        batch.step()


def test_of_sizes_of_tables() -> None:
    with manager_of() as manager:
        for num_rows, num_blocks, part in (
            (10**9, 10**9, f"max_num_sequences is {10**9}; it must be from 1 to {2**20}"),
            (0, 1, f"max_num_sequences is 0; it must be from 1 to {2**20}"),
            (1, 10**9, f"max_num_blocks is {10**9}; it must be from 1 to {(2**31 - 1) // 4}"),
            (1, 0, f"max_num_blocks is 0; it must be from 1 to {(2**31 - 1) // 4}"),
        ):
            with pytest.raises(ValueError, match=part):
                BatchPageTable(manager, num_rows, num_blocks)


def test_of_empty_paths() -> None:
    with pytest.raises(ValueError, match="journal is empty; give the path of a file$"):
        KVCacheManager(config_of(), device=HostDevice(), journal="")
    with pytest.raises(ValueError, match="gpu_folder is empty; give the path of a folder$"):
        default_device(gpu_folder="")


def test_of_scratch_steps() -> None:
    """The bounds in the message are those that hold: nothing is before token 0, or before the history."""
    with manager_of((8,), swa_scratch_reuse=SwaScratchReuseConfig(max_rewind_len=2)) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            with pytest.raises(ValueError, match="history_length 1 is not from 0 to 0"):
                kv_cache.resize(8, 1)
            assert kv_cache.resize(8, 0) and kv_cache.resize(8, 7)
            with pytest.raises(ValueError, match="history_length 9 is not from 7 to 8"):
                kv_cache.resize(12, 9)
            assert kv_cache.resize(12, 7)


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
