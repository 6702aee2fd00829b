"""A wrong argument is an error that names it, before anything was asked or reserved."""

import math
from typing import Any

import pytest
from shared_models import MODEL, Rank

from kv_cache_manager_v2.shared import MemoryStore, ObjectStore, RemoteReport, SharedLevel, ValkeyStore


@pytest.mark.parametrize(
    ("arguments", "settings", "name"),
    [
        ((None,), {}, "addresses"),
        ((5,), {}, "addresses"),
        (([6379],), {}, "address"),
        ((["a"],), {"database": "0"}, "database"),
        ((["a"],), {"database": -1}, "database"),
        ((["a"],), {"password": 5}, "password"),
        ((["a"],), {"username": b"u", "password": "p"}, "username"),
        ((["a"],), {"tls": True}, "tls"),
    ],
)
def test_servers(arguments: tuple[Any, ...], settings: dict[str, Any], name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        ValkeyStore(*arguments, **settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("load_bytes", "1"),
        ("load_bytes", 65536.5),
        ("store_bytes", None),
        ("num_load_threads", "2"),
        ("num_load_threads", 0),
        ("claim_seconds", None),
        ("claim_seconds", "60"),
        ("claim_seconds", True),
        ("claim_seconds", -1),
        ("claim_seconds", math.nan),
        ("write_policy", None),
        ("write_policy", "evict"),
        ("asks", 1),
    ],
)
def test_levels(name: str, value: Any) -> None:
    with Rank(MemoryStore()) as rank:
        with pytest.raises((TypeError, ValueError), match=name):
            SharedLevel(rank.manager, MemoryStore(), MODEL, **{"load_bytes": 1 << 16, "store_bytes": 1 << 16, name: value})


def test_calls() -> None:
    wrong: Any
    for wrong in (None, 5, [1], "reports"):
        with pytest.raises(TypeError, match="reports"):
            RemoteReport.reduce(wrong)
    for wrong in ("x", -1, None):
        with pytest.raises((TypeError, ValueError), match="max_bytes"):
            MemoryStore(wrong)
    with Rank(MemoryStore()) as rank:
        for wrong in (None, 5):
            with pytest.raises(TypeError, match="kv_cache"):
                rank.level.look_up(wrong)


def test_object_stores_have_a_name() -> None:
    obstore = pytest.importorskip("obstore", reason="ObjectStore needs obstore")
    wrong: Any
    for wrong in (None, 5, b"objects"):
        with pytest.raises(TypeError, match="name"):
            ObjectStore(obstore.store.MemoryStore(), wrong)
    for wrong in (None, 5, "/mnt", object()):
        with pytest.raises(TypeError, match="store"):
            ObjectStore(wrong)
