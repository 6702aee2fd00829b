"""A wrong call raises the named error, and `describe()` is the same before and after.

What is of a wrong type: `test_wrong_arguments_are_named`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from public_calls import World, find_served, make_uses
from small_models import manager_of, new_manager, run_prompt

from kv_cache_manager_v2 import (
    BatchPageTable,
    DecodeBatch,
    BufferId,
    HostDevice,
    KVCache,
    KVCacheManager,
    LayerId,
    LogicError,
    OutOfMemoryError,
    OutOfPagesError,
    PageIndexMode,
)

Call = Callable[[KVCacheManager, KVCache], Any]

# What a caller without a type checker may pass.
FIVE: Any = 5
NOTHING: Any = None
NAMES: Any = ["key"]

ON_ACTIVE: list[tuple[str, type[Exception], Call]] = [
    ("resume twice", LogicError, lambda m, s: s.resume()),
    ("history shrinks", ValueError, lambda m, s: s.resize(None, 3)),
    ("capacity under history", ValueError, lambda m, s: s.resize(4)),
    ("negative capacity", ValueError, lambda m, s: s.resize(-1)),
    ("huge capacity", ValueError, lambda m, s: s.resize(2**62)),
    ("commit beyond capacity", ValueError, lambda m, s: s.commit([1, 2, 3])),
    ("negative token", ValueError, lambda m, s: s.commit([-1])),
    ("token of 2**31", ValueError, lambda m, s: s.commit([2**31])),
    ("token of a wrong type", TypeError, lambda m, s: s.commit(["x"])),  # type: ignore[list-item]
    ("tokens as bytes", TypeError, lambda m, s: s.commit(b"ab")),
    ("negative token in an array", ValueError, lambda m, s: s.commit(np.array([3, -7], np.int32))),
    ("days as tokens", TypeError, lambda m, s: s.commit(np.array(["2026-01-01"], "datetime64[D]"))),
    ("float tokens", TypeError, lambda m, s: s.commit(np.array([1.0]))),
    ("two-dimensional tokens", ValueError, lambda m, s: s.commit(np.zeros((1, 1), np.int32))),
    ("layer group out of range", ValueError, lambda m, s: s.get_base_page_indices(1)),
    ("beam out of range", ValueError, lambda m, s: s.get_base_page_indices(0, 1)),
    ("index buffer too small", ValueError, lambda m, s: s.set_base_page_index_buf(0, 0, np.zeros(1, np.int32))),
    ("index buffer of int64", TypeError, lambda m, s: s.set_base_page_index_buf(0, 0, np.zeros(9, np.int64))),
    ("read-only index buffer", ValueError, lambda m, s: s.set_base_page_index_buf(0, 0, memoryview(bytes(36)).cast("i"))),
    ("no index buffer at all", TypeError, lambda m, s: s.set_base_page_index_buf(0, 0, [0] * 9)),
    ("shutdown while open", LogicError, lambda m, s: m.shutdown()),
    ("bad token in a match", ValueError, lambda m, s: m.create_kv_cache(None, [1, -5])),
    ("bad token in a probe", ValueError, lambda m, s: m.probe_reuse(None, [2**40])),
    ("unknown layer", ValueError, lambda m, s: m.get_layer_group_id(99)),
    ("unknown buffer", ValueError, lambda m, s: m.get_page_stride(0, "nothing")),
    ("unknown level", ValueError, lambda m, s: m.get_storage_statistics(3)),
    ("unknown level of pools", ValueError, lambda m, s: m.get_pool_group_descs(3)),
    ("batch of unequal lengths", ValueError, lambda m, s: m.resize_batch([s], [8, 9])),
    ("batch with a sequence twice", ValueError, lambda m, s: m.resize_batch([s, s], [8, 9])),
    ("batch with one bad entry", ValueError, lambda m, s: m.resize_batch([s], [1])),
    ("batch of capacities beyond 64 bits", ValueError, lambda m, s: m.resize_batch([s], [2**70])),
    ("more tokens than sequences", ValueError, lambda m, s: m.commit_batch([s], [8, 9])),
    ("tokens for a sequence twice", ValueError, lambda m, s: m.commit_batch([s, s], [8, 9])),
    ("a digest in a batch", TypeError, lambda m, s: m.commit_batch([s], [b"digest"])),
    ("a buffer whose role is none", TypeError, lambda m, s: m.get_aggregated_pages([BufferId(LayerId(0), [])])),  # type: ignore[arg-type]
    ("tokens that are no list", TypeError, lambda m, s: s.commit(7)),  # type: ignore[arg-type]
    ("no tokens at all", TypeError, lambda m, s: s.commit(None)),  # type: ignore[arg-type]
    ("as many snapshots as tokens", ValueError, lambda m, s: m.create_kv_cache(snapshot_positions=range(2**17))),
]


PYTHONS_OWN_WORDS = ("is not iterable", "unhashable", "has no len()", "has no attribute", "not supported between", "is ambiguous")


@pytest.mark.parametrize(("error", "call"), [row[1:] for row in ON_ACTIVE], ids=[row[0] for row in ON_ACTIVE])
def test_on_an_active_sequence(error: type[Exception], call: Call) -> None:
    with manager_of() as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
            assert kv_cache.resize(8)
            before = manager.describe()
            with pytest.raises(error) as caught:
                call(manager, kv_cache)
            for words in PYTHONS_OWN_WORDS:
                assert words not in str(caught.value)
            assert manager.describe() == before
            manager.check_invariants()


ON_SUSPENDED: list[tuple[str, Call]] = [
    ("suspend", lambda m, s: s.suspend()),
    ("resize", lambda m, s: s.resize(8)),
    ("commit", lambda m, s: s.commit([7])),
    ("batch", lambda m, s: m.resize_batch([s], [8])),
    ("batch of tokens", lambda m, s: m.commit_batch([s], [8])),
    ("input", lambda m, s: s.commit_input()),
]


@pytest.mark.parametrize("call", [row[1] for row in ON_SUSPENDED], ids=[row[0] for row in ON_SUSPENDED])
def test_on_a_suspended_sequence(call: Call) -> None:
    with manager_of() as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
            kv_cache.suspend()
            before = manager.describe()
            with pytest.raises(LogicError):
                call(manager, kv_cache)
            assert manager.describe() == before


ON_CLOSED: list[tuple[str, Call]] = [
    ("resume", lambda m, s: s.resume()),
    ("suspend", lambda m, s: s.suspend()),
    ("resize", lambda m, s: s.resize(8)),
    ("commit", lambda m, s: s.commit([7])),
    ("stop_committing", lambda m, s: s.stop_committing()),
    ("committed_tokens", lambda m, s: s.committed_tokens),
    ("indices", lambda m, s: s.get_base_page_indices(0)),
    ("fork", lambda m, s: s.fork()),
    ("stream", lambda m, s: setattr(s, "cuda_stream", 0)),
    ("room", lambda m, s: setattr(s, "capacity", 8)),
    ("batch", lambda m, s: m.resize_batch([s], [8])),
    ("batch of tokens", lambda m, s: m.commit_batch([s], [8])),
    ("input", lambda m, s: s.commit_input()),
    ("joining", lambda m, s: DecodeBatch(m, 2, 8).join(s)),
]


@pytest.mark.parametrize("call", [row[1] for row in ON_CLOSED], ids=[row[0] for row in ON_CLOSED])
def test_on_a_closed_sequence(call: Call) -> None:
    with manager_of() as manager:
        kv_cache = run_prompt(manager, [1, 2, 3, 4, 5, 6])
        kv_cache.close()
        kv_cache.close()
        before = manager.describe()
        with pytest.raises(LogicError) as caught:
            call(manager, kv_cache)
        # A new one helps, and nothing else does: `resume` least of all.
        assert "after close()" in str(caught.value) and "create_kv_cache" in str(caught.value)
        assert manager.describe() == before


def test_commit_after_stop_committing() -> None:
    with manager_of() as manager:
        with run_prompt(manager, [1, 2, 3]) as kv_cache:
            assert kv_cache.resize(4)
            kv_cache.stop_committing()
            kv_cache.stop_committing()
            with pytest.raises(LogicError):
                kv_cache.commit([4])


def test_buffer_that_becomes_too_small() -> None:
    with manager_of() as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
            kv_cache.set_base_page_index_buf(0, 0, np.zeros(2, np.int32))
            before = manager.describe()
            with pytest.raises(ValueError, match="2 entries"):
                kv_cache.resize(9)
            assert manager.describe() == before


def test_sequence_of_another_manager_in_a_batch() -> None:
    with manager_of() as manager, manager_of() as other:
        with run_prompt(other, [1]) as foreign:
            with pytest.raises(ValueError):
                manager.resize_batch([foreign], [8])


def test_priority_out_of_range_and_callback_that_calls_back() -> None:
    with manager_of() as manager:
        bad = manager.create_kv_cache(custom_priority_callback=lambda ordinal, life_cycle: 101)
        assert bad.resume()
        before = manager.describe()
        with pytest.raises(ValueError):
            bad.resize(4)
        assert manager.describe() == before
        bad.close()

        def call_back(ordinal: int, life_cycle: object) -> int:
            return manager.probe_reuse(None, [1])

        nested = manager.create_kv_cache(custom_priority_callback=call_back)
        assert nested.resume()
        before = manager.describe()
        with pytest.raises(LogicError):
            nested.resize(4)
        assert manager.describe() == before


def test_every_call_after_shutdown() -> None:
    manager = new_manager()
    table = BatchPageTable(manager, 4, 8)
    manager.shutdown()
    manager.shutdown()
    for call in (
        lambda: manager.create_kv_cache(),
        lambda: manager.probe_reuse(None, [1]),
        lambda: manager.clear_reusable_blocks(),
        lambda: manager.describe(),
        lambda: manager.get_mem_pool_base_address(0, "key", PageIndexMode.SHARED),
        lambda: BatchPageTable(manager, 4, 8),
        lambda: DecodeBatch(manager, 4, 8),
        lambda: table.update(),
        lambda: manager.can_finish([], []),
        lambda: manager.retain([1]),
        lambda: manager.get_statistics(),
        lambda: manager.advance_clock(1),
    ):
        with pytest.raises(LogicError, match="the manager is shut down; make another one"):
            call()


def test_a_plan_of_a_manager_that_is_shut_down_drops_nothing() -> None:
    manager = new_manager()
    with manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(4)
        kv_cache.commit([1, 2, 3, 4])
        kv_cache.stop_committing()
        dropped, cancelled = kv_cache.plan_committed_block_drop(), kv_cache.plan_committed_block_drop()
    assert dropped is not None and cancelled is not None
    manager.shutdown()
    cancelled.cancel()
    assert dropped.drop() == 0 and dropped.is_done and cancelled.is_done
    with pytest.raises(LogicError, match="dropped or cancelled before"):
        dropped.drop()


def test_handle_that_is_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    """The host device knows its streams; a sequence that is given another handle stays as it was, and no log speaks of a device."""
    with manager_of() as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
            before = manager.describe()
            with pytest.raises(LogicError):
                kv_cache.cuda_stream = 4711
            assert manager.describe() == before
            kv_cache.suspend()
            before = manager.describe()
            with pytest.raises(LogicError):
                kv_cache.resume(4711)
            with pytest.raises(TypeError):
                kv_cache.resume(1.0)
            with pytest.raises(ValueError, match="cuda_stream is 118"):
                kv_cache.resume(2**70)
            with pytest.raises(LogicError):
                kv_cache.cuda_stream = 4711
            assert manager.describe() == before
            assert kv_cache.resume()
            lease = kv_cache.reserve_transfer()
            with pytest.raises(LogicError):
                lease.settle(4711)
            assert lease.is_open
            lease.settle()
            manager.check_invariants()
    assert caplog.records == []


class Stream:
    def __init__(self, described: Any) -> None:
        self._described = described

    def __cuda_stream__(self) -> Any:
        return self._described


NO_STREAMS: list[tuple[Any, type[Exception]]] = [
    (np.zeros(1), TypeError),
    (-1, ValueError),
    (2**63, ValueError),
    (np.int64(-1), ValueError),
    (Stream(None), TypeError),
    (Stream((1, 0)), TypeError),
    (Stream((0, "0")), TypeError),
    (Stream((0, -1)), ValueError),
]


@pytest.mark.parametrize(("stream", "error"), NO_STREAMS, ids=range(len(NO_STREAMS)))
def test_what_is_no_stream(stream: Any, error: type[Exception]) -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        kv_cache.suspend()
        with pytest.raises(error, match="cuda_stream"):
            kv_cache.resume(stream)
        assert kv_cache.resume(Stream((0, 0)))


HEADS: list[tuple[Any, type[Exception]]] = [("x", TypeError), (1.0, TypeError), (True, TypeError), (0, ValueError), (-1, ValueError)]


@pytest.mark.parametrize(("heads", "error"), HEADS, ids=range(len(HEADS)))
@pytest.mark.parametrize("tokens", [[7], [7, 8], np.array([7])], ids=range(3))
def test_heads_are_a_number_also_where_nothing_is_moved(tokens: Any, heads: Any, error: type[Exception]) -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        assert kv_cache.resize(8)
        before = manager.describe()
        with pytest.raises(error, match="num_heads"):
            kv_cache.commit(tokens, None, heads)
        assert manager.describe() == before
        kv_cache.commit(tokens, None, 2)


def test_batch_is_validated_whole_before_it_begins() -> None:
    with manager_of() as manager:
        first, second = manager.create_kv_cache(), manager.create_kv_cache()
        assert first.resume() and second.resume()
        second.set_base_page_index_buf(0, 0, np.zeros(1, np.int32))
        before = manager.describe()
        with pytest.raises(ValueError):
            manager.resize_batch([first, second], [8, 8])
        assert manager.describe() == before


def test_users_own_assertion_breaks_nothing() -> None:
    def callback(ordinal: int, life_cycle: object) -> int:
        raise AssertionError("mine")

    with manager_of() as manager:
        with manager.create_kv_cache(custom_priority_callback=callback) as kv_cache:
            assert kv_cache.resume()
            with pytest.raises(AssertionError, match="mine"):
                kv_cache.resize(4)
            manager.probe_reuse(None, [1])


def test_callback_that_changes_its_own_sequence() -> None:
    box: list[KVCache] = []

    def callback(ordinal: int, life_cycle: object) -> int:
        box[0].set_base_page_index_buf(0, 0, np.zeros(1, np.int32))
        return 35

    with manager_of() as manager:
        with manager.create_kv_cache(custom_priority_callback=callback) as kv_cache:
            box.append(kv_cache)
            assert kv_cache.resume()
            with pytest.raises(LogicError):
                kv_cache.resize(16)
            manager.check_invariants()
            box.clear()


ANSWERED_IN_A_CALLBACK = set(
    (
        "KVCacheManager.get_layer_group_id KVCacheManager.state_layer_group_id KVCacheManager.life_cycle_of_group KVCacheManager.get_quota "
        "KVCacheManager.get_page_stride KVCacheManager.get_page_index_scale KVCacheManager.get_page_index_upper_bound "
        "KVCacheManager.get_page_index_converter KVCacheManager.supports_index_mode KVCacheManager.get_mem_pool_base_address "
        "KVCacheManager.get_aggregated_pages KVCacheManager.clamp_max_seq_len_for_mem KVCacheManager.get_statistics "
        "KVCacheManager.get_storage_statistics KVCacheManager.get_pool_group_descs "
        "KVCache.get_base_page_indices KVCache.get_aggregated_page_indices KVCache.get_scratch_desc KVCache.supports_index_mode "
        "TransferLease.get_page_indices CommittedBlockDrop.drop_when_forgotten PoolView.release "
        "BatchPageTable BatchPageTable.row_of DecodeBatch KVCacheEventManager.get_latest_events "
        "PrometheusExporter.show_curves PrometheusExporter.collect PrometheusExporter.close"
    ).split()
)
"""Looks, what any thread may ask, and what works on no manager."""


def test_a_list_that_is_none_is_named_itself() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        for wrong in ("8", b"8", bytearray(b"8"), memoryview(b"8"), 8):
            given: Any = wrong
            with pytest.raises(TypeError, match="^capacities must be a sequence"):
                manager.resize_batch([kv_cache], given)
            with pytest.raises(TypeError, match="^remaining_tokens must be a sequence"):
                manager.can_finish([kv_cache], given)


def test_true_is_token_1_for_every_call() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        batch = DecodeBatch(manager, 2, 8)
        batch.join(kv_cache)
        assert batch.step([-1]) == [] and batch.step([TRUTH]) == []
        kv_cache.commit([TRUTH])
        assert kv_cache.committed_tokens == [1, 2, 3, 1, 1]
        batch.leave(kv_cache)


def test_disk_range_without_a_folder() -> None:
    device = HostDevice()
    with pytest.raises(ValueError, match="path is empty"):
        device.reserve_disk_range("", 1 << 21)
    device.close()


def test_callback_that_uses_anything() -> None:
    """All public calls of all handles of the manager, in the middle of a `resize`: each is refused, or only looks."""
    world = World()
    uses = make_uses(world)
    del uses["KVCache.get_ssm_block_base_index"]  # looks too, but not at a sequence without a state
    wrong: list[str] = []

    def use_all(ordinal: int, life_cycle: object) -> int:
        wrong.extend(find_served(uses, "callback", ANSWERED_IN_A_CALLBACK))
        return 35

    before = world.fingerprint()
    with world.manager.create_kv_cache(custom_priority_callback=use_all) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(4)
        world.manager.check_invariants()
    assert not wrong, "\n".join(wrong)
    assert world.fingerprint()[1] == before[1]
    world.close()


def test_closed_sequence_leaves_no_slot_in_the_callers_buffer() -> None:
    with manager_of() as manager:
        buffer = np.zeros(4, np.int32)
        with run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
            kv_cache.set_base_page_index_buf(0, 0, buffer)
            assert (buffer[:2] >= 0).all()
        assert (buffer == -1).all()


TRUTH: Any = True


def test_handlers_for_the_wider_class_catch_the_narrower_one() -> None:
    """No room for pages is no memory, a call out of order a RuntimeError, and a buffer that no layer has both a bad value and a
    missing key."""
    with manager_of(num_slots=2) as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        with pytest.raises(OutOfMemoryError, match="slots asked for") as no_room:
            kv_cache.capacity = 100
        assert isinstance(no_room.value, OutOfPagesError) and isinstance(no_room.value, MemoryError)
        with pytest.raises(RuntimeError, match="needs a sequence that is SUSPENDED"):
            kv_cache.resume()
        messages = []
        for kind in (ValueError, KeyError):
            with pytest.raises(kind) as unknown:
                manager.get_mem_pool_base_address(LayerId(0), "scale")
            messages.append(str(unknown.value))
        assert messages[0] == messages[1] == "layer_id is 0 and data_role 'scale': there is no such buffer; the layer has ['key', 'value']"


@pytest.mark.parametrize("windows", [(9,), (9, 40), (None, 9)])
def test_a_slip_in_the_capacity_costs_nothing(windows: tuple[int | None, ...]) -> None:
    """Where all layers have windows any history fits into few pages, and each block behind them still takes memory of the host."""
    with manager_of(windows, num_slots=40) as manager:
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(8, 8)
        before = manager.describe()
        for exponent in (27, 33, 40):
            calls: list[Callable[[int], object]] = [
                lambda n: kv_cache.resize(n, n),
                lambda n: kv_cache.find_refusal(n, n),
                lambda n: manager.resize_batch([kv_cache], [n], [n]),
                lambda n: manager.can_finish([kv_cache], [n]),
            ]
            if None in windows:
                assert not calls[0](2**exponent) and calls[1](2**exponent) is not None and calls[2](2**exponent) == 0
                assert not calls[3](2**exponent - 8)
                continue
            for call in calls:
                with pytest.raises(ValueError, match=r"67108864"):
                    call(2**exponent)
        if None not in windows:
            assert manager.describe() == before
        assert kv_cache.resize(2**12, 2**12) or None in windows
