"""However a forgotten handle dies, what it held is reclaimed by the next call that asks or acts, and the caller's own exception survives.

With warnings as errors, in a garbage cycle, while an exception is on its way, interrupted, in another thread, at the
interpreter's end. What a destructor cannot raise goes to `sys.unraisablehook`.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_models import free_slots, manager_of, new_manager, run_prompt

from kv_cache_manager_v2 import KVCache, KVCacheManager, LayerId, is_compiled

NUM_SLOTS = 64


class Unraisable:
    """What reached `sys.unraisablehook`: the types only, as a traceback would keep the dying object."""

    def __init__(self) -> None:
        self.types: list[type[BaseException]] = []

    def hook(self, unraisable: Any) -> None:
        self.types.append(unraisable.exc_type)


@pytest.fixture
def unraisable() -> Iterator[Unraisable]:
    collected = Unraisable()
    gc.collect()  # of what earlier tests have left, none dies in here
    previous = sys.unraisablehook
    sys.unraisablehook = collected.hook
    yield collected
    sys.unraisablehook = previous


@pytest.fixture(params=["ignore", "always", "error"])
def filtered(request: pytest.FixtureRequest) -> Iterator[str]:
    """The outcome of warnings."""
    with warnings.catch_warnings(record=request.param == "always"):
        warnings.simplefilter(request.param)
        yield request.param


class Member:
    """Part of a garbage cycle."""

    def __init__(self, held: object) -> None:
        self.held = held
        self.peer: object = self


def drop_in_a_cycle(handles: list[Any]) -> None:
    """The collector finds them together, and finalizes one after the other."""
    while handles:
        Member(handles.pop(0))
    gc.collect()


def check_all_is_back(manager: KVCacheManager) -> None:
    manager.probe_reuse(None, [1, 2, 3])  # any call
    assert manager.open_kv_caches == []
    assert manager.open_leases == []
    manager.check_invariants()
    manager.clear_reusable_blocks()
    assert free_slots(manager) == NUM_SLOTS
    manager.shutdown()


def expect_reports(unraisable: Unraisable, filtered: str, count: int) -> None:
    assert unraisable.types == ([ResourceWarning] * count if filtered == "error" else [])


def test_three_sequences_in_one_cycle(filtered: str, unraisable: Unraisable) -> None:
    manager = new_manager(num_slots=NUM_SLOTS)
    drop_in_a_cycle([run_prompt(manager, list(range(start, start + 9))) for start in (0, 100, 200)])
    expect_reports(unraisable, filtered, 3)
    check_all_is_back(manager)


def test_every_kind_of_handle_in_one_cycle(filtered: str, unraisable: Unraisable) -> None:
    manager = new_manager(num_slots=NUM_SLOTS)
    sequences = [run_prompt(manager, list(range(start, start + 9))) for start in (0, 100)]
    for sequence in sequences:
        sequence.stop_committing()
    plans = [sequence.plan_committed_block_drop() for sequence in sequences]
    leases = [sequence.reserve_transfer(0, 2) for sequence in sequences]
    views = [manager.pool_view(LayerId(0), "key", "uint8") for _ in range(2)]
    del sequence
    garbage = [*sequences, *plans, *leases, *views]
    for some in (sequences, plans, leases, views):
        some.clear()
    drop_in_a_cycle(garbage)
    expect_reports(unraisable, filtered, 4)  # a plan and a view may be forgotten
    for lease in manager.open_leases:
        lease.settle()
    check_all_is_back(manager)


ASKED: dict[str, Callable[[KVCacheManager, KVCache], object]] = {
    "get_storage_statistics": lambda manager, other: manager.get_storage_statistics(),
    "get_statistics": lambda manager, other: manager.get_statistics(),
    "get_iteration_statistics": lambda manager, other: manager.get_iteration_statistics(),
    "probe_reuse": lambda manager, other: manager.probe_reuse(None, [1, 2, 3, 4, 5, 6]),
    "probe_reuse_batch": lambda manager, other: manager.probe_reuse_batch([[1, 2, 3], [1, 2, 3, 4, 5, 6]]),
    "check_invariants": lambda manager, other: manager.check_invariants(),
    "describe": lambda manager, other: manager.describe(),
    "find_refusal": lambda manager, other: other.find_refusal(250),
    "find_refusal of several": lambda manager, other: manager.find_refusal([other], [250]),
    "can_finish": lambda manager, other: manager.can_finish([other], [240]),
    "a resize that is refused": lambda manager, other: other.resize(4 * NUM_SLOTS + 1),
    "a resize of several that is refused": lambda manager, other: manager.resize_batch([other], [4 * NUM_SLOTS + 1]),
    "resize": lambda manager, other: other.resize(250),
    "a small resize": lambda manager, other: other.resize(other.capacity + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_calls_that_ask_find_it_freed(name: str) -> None:
    """The same answer, and the same decisions afterwards, as if the sequence had been closed."""
    found: list[object] = []
    for is_forgotten in (False, True):
        with manager_of() as manager, manager.create_kv_cache(id=0) as other, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sequence: KVCache | None = run_prompt(manager, [1, 2, 3, 4, 5, 6])
            assert sequence is not None and sequence.resize(40)
            assert other.resume() and other.resize(6)
            if not is_forgotten:
                sequence.close()
            sequence = None
            found.append((ASKED[name](manager, other), manager.state_digest()))
    assert found[0] == found[1]


def test_beside_a_running_call_it_is_counted_apart() -> None:
    forgotten: list[KVCache] = []
    told: list[int] = []

    def callback(ordinal: int, life_cycle: object) -> int:
        forgotten.clear()
        # Asked from another thread, the call that is running answers at its end.
        thread = threading.Thread(target=lambda: told.append(manager.get_storage_statistics()[0].dropped_handles))
        threads.append(thread)
        thread.start()
        while thread.is_alive() and not manager._shared.guard._asked:
            pass
        return 35

    threads: list[threading.Thread] = []
    with manager_of() as manager, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forgotten.append(run_prompt(manager, [1, 2, 3]))
        with manager.create_kv_cache(custom_priority_callback=callback) as sequence:
            assert sequence.resume() and sequence.resize(4)
            threads[0].join()
            assert told == [1] and manager.get_storage_statistics()[0].dropped_handles == 0


def test_a_manager_and_its_sequences_in_one_cycle(filtered: str, unraisable: Unraisable) -> None:
    manager = new_manager(num_slots=NUM_SLOTS)
    handles = [run_prompt(manager, list(range(9))), manager]
    del manager
    drop_in_a_cycle(handles)
    expect_reports(unraisable, filtered, 2)


def test_an_exception_on_its_way_arrives(filtered: str, unraisable: Unraisable) -> None:
    manager = new_manager(num_slots=NUM_SLOTS)

    def fail_with_a_sequence() -> None:
        sequence = run_prompt(manager, list(range(9)))
        raise KeyError(f"the caller's own, with {sequence.id}")

    with pytest.raises(KeyError, match="the caller's own"):
        fail_with_a_sequence()
    gc.collect()
    expect_reports(unraisable, filtered, 1)
    check_all_is_back(manager)


def test_an_exception_being_handled_stays(filtered: str, unraisable: Unraisable) -> None:
    manager = new_manager(num_slots=NUM_SLOTS)
    try:
        raise KeyError("the caller's own")
    except KeyError as error:
        sequence = run_prompt(manager, list(range(9)))
        del sequence
        gc.collect()
        assert sys.exc_info()[1] is error
    expect_reports(unraisable, filtered, 1)
    check_all_is_back(manager)


def test_a_constructor_that_fails_leaves_its_own_error(unraisable: Unraisable) -> None:
    for handle_class in (KVCache, KVCacheManager):
        make: Callable[..., object] = handle_class
        with pytest.raises(TypeError):
            make()
        with pytest.raises((TypeError, AttributeError)):
            make(1, 2, 3)
    gc.collect()
    assert unraisable.types == []


def test_a_handle_that_ctrl_c_leaves_half_made_dies_in_silence(unraisable: Unraisable) -> None:
    """Before any line of its constructor; compiled constructors are not interrupted."""
    warnings.simplefilter("ignore", ResourceWarning)
    num_interrupted = left = 0

    def on_line(frame: Any, event: str, _argument: object) -> Any:
        nonlocal left
        if event == "line" and frame.f_code.co_name == "__init__" and frame.f_code.co_filename.endswith("manager/kv_cache.py"):
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return on_line

    while left >= 0:
        manager = new_manager([None])
        left = num_interrupted
        sys.settrace(on_line)
        try:
            manager.create_kv_cache(None, list(range(40))).close()
            break
        except KeyboardInterrupt:
            num_interrupted += 1
            left = 0
        finally:
            sys.settrace(None)
        gc.collect()
        assert unraisable.types == [], f"before line {num_interrupted} of the constructor"
    assert is_compiled() or num_interrupted >= 4


def test_warning_filters_may_raise_anything(unraisable: Unraisable) -> None:
    """A signal's handler runs in the middle of the warning; the user's own `showwarning` fails; it calls the manager."""
    manager = new_manager(num_slots=NUM_SLOTS)

    def interrupt(*arguments: object, **keywords: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def fail(*arguments: object, **keywords: object) -> None:
        raise ValueError("from showwarning")

    def call(*arguments: object, **keywords: object) -> None:
        manager.probe_reuse(None, [1, 2, 3])

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for show, expected in ((interrupt, [KeyboardInterrupt]), (fail, [ValueError]), (call, [])):
            warnings.showwarning = show
            sequence = run_prompt(manager, list(range(9)))
            lease = sequence.reserve_transfer(0, 2)
            del sequence
            assert unraisable.types == expected
            unraisable.types.clear()
            del lease
            assert unraisable.types == expected
            unraisable.types.clear()
            manager.open_leases[0].settle()
    check_all_is_back(manager)


@pytest.mark.skipif(is_compiled(), reason="a compiled destructor has no line before which a signal could arrive")
def test_a_destructor_that_is_stopped_before_its_first_line(unraisable: Unraisable) -> None:
    manager = new_manager(num_slots=NUM_SLOTS)
    sequence = run_prompt(manager, list(range(9)))
    other = run_prompt(manager, list(range(50, 59)))

    def interrupt(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "__del__":
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        del sequence
    finally:
        sys.setprofile(None)
    assert KeyboardInterrupt in unraisable.types
    assert manager.open_kv_caches == [other]
    other.close()
    check_all_is_back(manager)


def test_in_another_thread(filtered: str, unraisable: Unraisable) -> None:
    manager = new_manager(num_slots=NUM_SLOTS)
    handles = [run_prompt(manager, list(range(start, start + 9))) for start in (0, 100, 200)]
    thread = threading.Thread(target=drop_in_a_cycle, args=(handles,))
    thread.start()
    thread.join()
    expect_reports(unraisable, filtered, 3)
    check_all_is_back(manager)


END = """
import gc, sys, threading
from kv_cache_manager_v2 import *
config = KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 16)], [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)])])
manager = KVCacheManager(config, device=HostDevice())
sequences = [manager.create_kv_cache(None, [1, 2, 3]) for _ in range(3)]
for sequence in sequences:
    assert sequence.resume() and sequence.resize(9)
    sequence.commit(list(range(9)))
lease = sequences[0].reserve_transfer(0, 2)
sequences[0].stop_committing()
plan = sequences[0].plan_committed_block_drop()
"""

ENDINGS = [
    "",
    "sys.exit(0)",
    "class Member: pass\nmember = Member(); member.peer = member; member.held = [sequences.pop(), sequences, manager]; del manager",
    "gc.disable(); member = [sequences, manager]; member.append(member); del sequences, sequence, manager",
    "import builtins; builtins.kept = [sequences, manager, lease, plan]",
    "sys.modules['kept'] = sequences",
    "(lambda thread: (thread.start(), thread.join()))(threading.Thread(target=globals().clear))",
]


@pytest.mark.parametrize("ending", range(len(ENDINGS)))
@pytest.mark.parametrize("action", ["error", "default"])
def test_at_the_end_of_the_interpreter(ending: int, action: str) -> None:
    command = [sys.executable, "-P", "-X", "faulthandler", "-W", f"{action}::ResourceWarning", "-c", END + ENDINGS[ending]]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=120)
    assert result.returncode == 0, result.stderr
    for word in ("SystemError", "AttributeError", "AssertionError", "TypeError", "Fatal"):
        assert word not in result.stderr, result.stderr
