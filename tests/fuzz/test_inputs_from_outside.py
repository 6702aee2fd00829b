"""Whatever comes from outside is served or refused by a named error: never a crash, never an assertion, nothing half done."""

import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_calls import drive
from small_models import config_of, manager_of, run_prompt

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    KVCacheManagerError,
    LayerId,
)
from kv_cache_manager_v2.config.config_codec import decode_config, encode_config
from kv_cache_manager_v2.testing.journal_reader import JournalError
from kv_cache_manager_v2.replay.rerun import RerunMismatch, rerun

NAMED = (ValueError, TypeError, KVCacheManagerError, RerunMismatch)
ODD_OBJECTS: list[Callable[[], Any]] = [
    lambda: np.zeros(3, np.float32),
    lambda: np.zeros((2, 2), np.int32),
    lambda: np.array([1, 2], np.uint64),
    lambda: np.array([], np.int64),
    lambda: np.array([2**63], np.uint64),
    lambda: np.array(5, np.int32),
    lambda: array.array("h", [1, 2]),
    lambda: memoryview(b"abcd"),
    lambda: memoryview(b"abcdefgh").cast("i"),
    lambda: range(3),
    lambda: {1, 2},
    lambda: {1: 2},
    object,
    lambda: iter([1, 2]),
]
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.one_of(st.integers(), st.binary(max_size=3), st.none(), st.floats()), max_size=5),
    # By index: hypothesis hashes what it samples from, and some of these cannot be hashed.
    st.integers(0, 13).map(lambda index: ODD_OBJECTS[index]()),
)


@settings(max_examples=300, deadline=None)
@given(ANYTHING)
def test_tokens(tokens: Any) -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        assert kv_cache.resize(8)
        before = manager.describe()
        try:
            kv_cache.commit(tokens)
        except NAMED:
            assert manager.describe() == before
        try:
            manager.probe_reuse(None, tokens)
        except NAMED:
            pass
        manager.check_invariants()


@settings(max_examples=200, deadline=None)
@given(ANYTHING, ANYTHING, ANYTHING)
def test_arguments(first: Any, second: Any, third: Any) -> None:
    with manager_of([None, 8]) as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        for call in (
            lambda: kv_cache.resize(first, second),
            lambda: kv_cache.set_base_page_index_buf(first, second, third),
            lambda: kv_cache.get_base_page_indices(first, second),
            lambda: manager.get_page_stride(first, second),
            lambda: manager.get_storage_statistics(first),
            lambda: manager.create_kv_cache(first, second, third),
            lambda: manager.resize_batch(first, second, third),
            lambda: manager.commit_batch(first, second),
            lambda: manager.commit_batch([kv_cache], [first]),
            lambda: setattr(kv_cache, "cuda_stream", object() if isinstance(first, int) else first),
        ):
            try:
                made = call()
                if type(made).__name__ == "KVCache":
                    made.close()
            except NAMED:
                pass
            manager.check_invariants()
        kv_cache.set_base_page_index_buf(0, 0, None)
        kv_cache.set_base_page_index_buf(0, 1, None)


@settings(max_examples=200, deadline=None)
@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_configurations(blocks: Any, quota: Any, size: Any, window: Any) -> None:
    try:
        config = KVCacheManagerConfig(
            blocks, [GpuCacheTierConfig(quota)], [AttentionLayerConfig(LayerId(0), [BufferConfig("k", size)], window)]
        )
    except NAMED:
        return
    assert decode_config(encode_config(config)) == config


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path: Path = tmp_path_factory.mktemp("journal") / "calls.journal"
    with KVCacheManager(config_of([None, 8], num_slots=40), device=HostDevice(), journal=path) as manager:
        drive(manager, 3, 300)
    return path.read_bytes()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4), st.floats(0, 1))
@example([], 1.0)
def test_journals(journal: bytes, tmp_path: Path, damages: list[tuple[float, int]], cut: float) -> None:
    """The configuration is left as it is (a quota of terabytes would be reserved); everything behind it may be damaged."""
    start = journal.index(b"}", journal.rindex(b'"enable_stats"')) + 1
    data = bytearray(journal)
    for place, byte in damages:
        data[start + int(place * (len(data) - start - 1))] = byte
    path = tmp_path / "damaged.journal"
    path.write_bytes(bytes(data[: start + int(cut * (len(data) - start))]))
    try:
        rerun(path, HostDevice())
    except (*NAMED, JournalError):
        pass
