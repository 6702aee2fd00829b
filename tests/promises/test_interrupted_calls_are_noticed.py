"""Ctrl-C between any two lines of a call: the interruption is raised, and the manager serves on with every byte right, or says that it
is broken; a shutdown frees everything. Above a durable level it is counted how often it is broken. Interpreted: compiled code is
interrupted only where it waits or calls code of the user's."""

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from durable_models import durable_config
from lossy_files import LossyDisk, LossyFiles
from served_interrupts import Place, Tracer
from tiered_models import tiered_config

from kv_cache_manager_v2 import CorruptedError, HostDevice, KVCache, KVCacheManager, KVCacheManagerConfig, ReuseScope, is_compiled
from kv_cache_manager_v2.testing import FakeEngine, Step

LIBRARY = "kv_cache_manager_v2"
ENGINE = "kv_cache_manager_v2.testing"
STEM = list(range(10, 24))
"""Three blocks of 4 tokens and a half: a prompt that goes on from it has a last block that is shared in part."""
NUM_CUTS = 40
NUM_PLACES = 48
"""So many are tried of those where a call above a durable level can be interrupted. Those that break it lie side by side: of 24 twelve were
hit where it is 39 % of all."""


def in_destructor(frame: FrameType) -> bool:
    """Python raises nothing from there; `test_dying_handles_lose_nothing` interrupts those."""
    inner: FrameType | None = frame
    while inner is not None:
        if inner.f_code.co_name == "__del__":
            return True
        inner = inner.f_back
    return False


class Cut:
    """Raises at the n-th line that the library executes; counts them all where n is 0."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.num_lines = 0

    def trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(LIBRARY) or name.startswith(ENGINE) or in_destructor(frame):
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.trace


class Server:
    """A full cache of 13 blocks above a level of eight."""

    num_prompts = 5

    def __init__(self) -> None:
        self.device, config = self.setting()
        self.manager = KVCacheManager(config, device=self.device)
        self.engine = FakeEngine(config, self.device)
        for last in range(self.num_prompts):
            self.serve([*STEM, 100 + last, 200, 201, 202, 203])

    def setting(self) -> tuple[HostDevice, KVCacheManagerConfig]:
        return HostDevice(), tiered_config(26, [("host", 16)], windows=(None, 6), allow_seq_rebasing=False)

    def serve(self, prompt: list[int]) -> None:
        with self.manager.create_kv_cache(input_tokens=prompt[:-1]) as kv_cache:
            assert kv_cache.resume(), self.manager.last_refusal
            self.engine.prefill(kv_cache, prompt)

    def begin(self, *steps: str) -> KVCache:
        """A sequence that shares a part of a block, after these steps."""
        kv_cache = self.manager.create_kv_cache(input_tokens=[*STEM, 300])
        assert kv_cache.num_committed_tokens == len(STEM)
        if "resume" in steps:
            assert kv_cache.resume()
        if "resize" in steps:
            assert kv_cache.resize(26)
            self.engine.execute([Step(kv_cache, list(range(300, 312)), STEM)])
        return kv_cache

    def serve_on(self, seed: int) -> None:
        rng = random.Random(seed)
        for _request in range(8):
            self.serve([*STEM[: rng.randrange(1, 15)], *[rng.randrange(3) for _token in range(6)]])
            self.manager.check_invariants()
        self.engine.synchronize()


class DurableServer(Server):
    """The same above a durable level, which has most of what was served."""

    num_prompts = 12

    def setting(self) -> tuple[HostDevice, KVCacheManagerConfig]:
        config = durable_config("/tmp", 26, 16, 64, windows=(None, 6), allow_seq_rebasing=False)
        return HostDevice(files=LossyFiles(LossyDisk())), config


class PlaceTracer(Tracer):
    """Every place of the library where CPython serves a signal."""

    def follows(self, frame: FrameType) -> bool:
        name = str(frame.f_globals.get("__name__", ""))
        return name.startswith(LIBRARY) and not name.startswith(ENGINE) and not in_destructor(frame)


def create(server: Server) -> Callable[[], object]:
    return server.begin


def resume(server: Server) -> Callable[[], object]:
    return server.begin().resume


def resize(server: Server) -> Callable[[], object]:
    kv_cache = server.begin("resume")
    return lambda: kv_cache.resize(32)


def small_step(server: Server) -> Callable[[], object]:
    kv_cache = server.begin("resume", "resize")
    kv_cache.commit([300, 301])

    def step() -> None:
        assert kv_cache.resize(27, 16)
        kv_cache.commit([302])

    return step


def commit(server: Server) -> Callable[[], object]:
    kv_cache = server.begin("resume", "resize")
    return lambda: kv_cache.commit(list(range(300, 312)))


def commit_what_is_cached(server: Server) -> Callable[[], object]:
    kv_cache = server.manager.create_kv_cache()
    assert kv_cache.resume() and kv_cache.resize(len(STEM))
    server.engine.execute([Step(kv_cache, STEM, [])])
    return lambda: kv_cache.commit(STEM)


def suspend(server: Server) -> Callable[[], object]:
    return server.begin("resume", "resize").suspend


def close(server: Server) -> Callable[[], object]:
    kv_cache = server.begin("resume", "resize")
    kv_cache.commit([300, 301, 302])
    return kv_cache.close


def fork(server: Server) -> Callable[[], object]:
    return server.begin("resume", "resize").fork


def ready(server: Server) -> Callable[[], object]:
    """A call that only looks, and notes what has arrived."""
    kv_cache = server.begin("resume", "resize")
    kv_cache.suspend()
    for last in range(3):
        server.serve([400 + last, *range(410, 450)])
    assert kv_cache.resume(wait=False)
    server.engine.synchronize()
    return lambda: kv_cache.ready


def prefetch(server: Server) -> Callable[[], object]:
    return lambda: server.manager.prefetch([*STEM, 100, 200, 201, 202, 203])


def retain(server: Server) -> Callable[[], object]:
    return lambda: server.manager.retain([*STEM, 100], priority=80)


def shrink(server: Server) -> Callable[[], object]:
    quota = server.manager.get_quota(0)
    return lambda: server.manager.resize(0, quota // 2, best_efforts=True)


def clear(server: Server) -> Callable[[], object]:
    return server.manager.clear_reusable_blocks


def cut(call: Callable[[Server], Callable[[], object]], at: int) -> tuple[Server, int, BaseException | None]:
    """The server after the call, how many lines the call has executed, and what it raised."""
    server = Server()
    run = call(server)
    tracer = Cut(at)
    raised: BaseException | None = None
    sys.settrace(tracer.trace)
    try:
        run()
    except BaseException as error:
        raised = error.with_traceback(None)
    finally:
        sys.settrace(None)
    return server, tracer.num_lines, raised


def serves_on(server: Server, at: int) -> bool:
    """Whether it does, with every byte right; else it is broken, and says so."""
    try:
        for kv_cache in server.manager.open_kv_caches:
            kv_cache.close()
        server.manager.create_kv_cache().close()
    except CorruptedError as error:
        assert "broken" in str(error), f"cut at {at}: {error}"
        is_broken = True
    else:
        server.serve_on(at)
        is_broken = False
    server.manager.shutdown()
    return is_broken


def cut_at(call: Callable[[Server], Callable[[], object]], place: Place | None) -> tuple[DurableServer, PlaceTracer]:
    server = DurableServer()
    run = call(server)
    tracer = PlaceTracer((), place)
    try:
        with tracer.at_work():
            run()
    except KeyboardInterrupt:
        assert tracer.has_raised
    return server, tracer


only_interpreted = pytest.mark.skipif(is_compiled(), reason="compiled code has no lines between which it could be interrupted")


@only_interpreted
def test_a_call_that_only_looks_breaks_nothing_at_any_line() -> None:
    """Of another scope than the one that was looked at before."""
    server = Server()
    other = ReuseScope(salt="other")
    with server.manager.create_kv_cache(other, list(range(8))) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(8)
        kv_cache.commit(list(range(8)))
    at = 0
    raised = True
    while raised:
        assert server.manager.probe_reuse(None, STEM) == len(STEM)
        at += 1
        sys.settrace(Cut(at).trace)
        try:
            assert server.manager.probe_reuse(other, list(range(8))) == 8
            raised = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
    assert at > 20 and not serves_on(server, at)


@only_interpreted
@pytest.mark.parametrize(
    "call",
    [create, resume, resize, small_step, commit, commit_what_is_cached, suspend, close, fork, ready, prefetch, retain, shrink],
    ids=lambda call: call.__name__,
)
def test_at_every_line(call: Callable[[Server], Callable[[], object]], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(100)
    server, num_lines, raised = cut(call, 0)
    assert raised is None and num_lines > 20
    for kv_cache in server.manager.open_kv_caches:
        kv_cache.close()
    server.serve_on(0)
    server.manager.shutdown()
    step = max(num_lines // NUM_CUTS, 1)
    for at in range(1, num_lines + 1, step):
        server, _num_lines, raised = cut(call, at)
        assert isinstance(raised, KeyboardInterrupt), f"cut at line {at}: {raised!r}"
        raised = None
        serves_on(server, at)
@only_interpreted
@pytest.mark.parametrize(
    ("call", "most_percent"),
    [
        (create, 30), (resume, 36), (resize, 38), (small_step, 70), (commit, 85), (suspend, 75), (close, 46), (prefetch, 46), (clear, 90)
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_how_many_places_break_a_manager_with_a_durable_level(
    call: Callable[[Server], Callable[[], object]], most_percent: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An interruption there comes in the middle of a change. Disks are read and written before one, or after it."""
    caplog.set_level(100)
    server, tracer = cut_at(call, None)
    assert not serves_on(server, 0)
    places = list(tracer.places)
    num_broken = 0
    num_raised = 0
    for at, place in enumerate(places[:: max(len(places) // NUM_PLACES, 1)]):
        server, tracer = cut_at(call, place)
        num_raised += tracer.has_raised
        num_broken += serves_on(server, at)
    print(f"{call.__name__}: {num_broken} of {num_raised} places, of {len(places)}")
    assert num_raised >= NUM_PLACES and 100 * num_broken <= most_percent * num_raised


def test_an_interruption_that_the_caller_handles_is_none_of_the_call() -> None:
    """A mistake in a handler of Ctrl-C is a mistake: the interruption is not raised again, and nothing is broken."""
    server = Server()
    kv_cache = server.begin("resume")
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(ValueError, match="history_length"):
            kv_cache.resize(8, 9)
    kv_cache.close()
    server.serve_on(0)
    server.manager.shutdown()
