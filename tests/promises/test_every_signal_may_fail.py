"""On a GPU, streams and threads tell each other how far they are: whichever of these signals the driver refuses, at whichever place, no
wrong byte is served and no call waits for ever."""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest
from small_models import BYTES_PER_TOKEN
from tiered_models import TOKENS_PER_BLOCK, tiered_config
from unit.device.async_cuda_driver import AsyncCudaDriver
from unit.device.fake_cuda_types import CUresult, CUstreamCaptureMode
from unit.device.fake_files import FakeFiles

from kv_cache_manager_v2 import CorruptedError, DataRole, KVCache, KVCacheManager, KVCacheManagerError, LayerGroupId, LayerId
from kv_cache_manager_v2.device.cuda_device import CudaDevice

SLOT_BYTES = 2 * BYTES_PER_TOKEN * TOKENS_PER_BLOCK
GPU_SLOTS = 8

SIGNALS = (
    "cuStreamWriteValue32",
    "cuStreamWaitValue32",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuEventQuery",
    "cuStreamQuery",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
)


class RefusingDriver:
    """As the driver, but calls of one name are refused from the n-th on, so many of them. Workers may not call it at all."""

    def __init__(self, driver: AsyncCudaDriver) -> None:
        self.driver = driver
        self.name = ""
        self.nth = 0
        self.how_many = 0
        self.num_refused = 0
        self.calls_of_workers: list[str] = []
        self._thread = threading.get_ident()

    def refuse(self, name: str, nth: int, how_many: int) -> None:
        self.name, self.nth, self.how_many = name, nth, how_many

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.driver, name)
        if not name.startswith("cu"):
            return found

        def call(*arguments: Any) -> Any:
            if threading.get_ident() != self._thread:
                self.calls_of_workers.append(name)  # raised here, it would be the worker's failure and end there
            if name == self.name:
                self.nth -= 1
                if -self.how_many < self.nth <= 0:
                    self.num_refused += 1
                    return (CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, None)
            return found(*arguments)

        return call


class Engine:
    """Two prompts of 4 blocks each and two that need all 8 slots; every block of them holds a byte of its own."""

    def __init__(self, seed: int, levels: list[tuple[str, int]], *, can_order: bool = True) -> None:
        self.files = FakeFiles()
        fake = AsyncCudaDriver(seed)
        fake.can_wait_for_values = can_order
        fake.can_write_values = can_order
        self.driver = RefusingDriver(fake)
        self.device = CudaDevice(driver=self.driver, files=self.files, granularity_bytes=4096, staging_bytes=1 << 20)
        self.manager = KVCacheManager(tiered_config(GPU_SLOTS, levels), device=self.device)
        self.base = self.manager.get_mem_pool_base_address(LayerId(0), DataRole("key"))
        self.stream = self.device.create_stream()

    def slots(self, kv_cache: KVCache) -> list[int]:
        return [int(index) for index in kv_cache.get_base_page_indices(LayerGroupId(0))]

    def address(self, slot: int) -> int:
        return self.base + slot * SLOT_BYTES

    def write(self, start: int, num_blocks: int) -> None:
        """A prompt of so many blocks, its bytes as the GPU computes them, in stream order."""
        tokens = list(range(start, start + num_blocks * TOKENS_PER_BLOCK))
        kv_cache = self.manager.create_kv_cache(input_tokens=tokens)
        try:
            if not kv_cache.resume(self.stream) or not kv_cache.resize(len(tokens)):
                return
            first = kv_cache.num_committed_tokens // TOKENS_PER_BLOCK
            for block, slot in enumerate(self.slots(kv_cache)):
                if block >= first:
                    self.device.fill(self.stream, self.address(slot), SLOT_BYTES, value_of(start, block))
            self.check(kv_cache, start, first)
            kv_cache.commit(tokens[first * TOKENS_PER_BLOCK :])
        finally:
            kv_cache.close()

    def read(self, start: int, num_blocks: int) -> int:
        """Blocks of the prompt that were served; each is checked."""
        tokens = list(range(start, start + num_blocks * TOKENS_PER_BLOCK))
        kv_cache = self.manager.create_kv_cache(input_tokens=tokens)
        try:
            if not kv_cache.resume(self.stream):
                return 0
            num_served = kv_cache.num_committed_tokens // TOKENS_PER_BLOCK
            self.check(kv_cache, start, num_served)
            return num_served
        finally:
            kv_cache.close()

    def check(self, kv_cache: KVCache, start: int, num_blocks: int) -> None:
        """What a kernel would read that is enqueued now."""
        slots = self.slots(kv_cache)
        self.device.synchronize_stream(self.stream)
        for block in range(num_blocks):
            found = set(ctypes.string_at(self.address(slots[block]), SLOT_BYTES))
            assert found == {value_of(start, block)}, f"block {block} of prompt {start}: {found}"


def value_of(start: int, block: int) -> int:
    return 1 + (start // 100 * 16 + block) % 250


def attempt(call: Callable[..., object], *arguments: int) -> bool:
    """Whether it passed; refused calls may be made again."""
    try:
        call(*arguments)
    except KVCacheManagerError as error:
        assert not isinstance(error, CorruptedError) or "broken" in str(error)
        return False
    return True


def serve(engine: Engine) -> None:
    """Prompts 0 and 100 go to the disk and come back, twice; 200 and 400 take their slots meanwhile."""
    for _round in range(2):
        for start, num_blocks in ((0, 4), (100, 4), (200, 8), (400, 8)):
            for _attempt in range(2):
                if attempt(engine.write, start, num_blocks):
                    break
        for start in (0, 100):
            for _attempt in range(2):
                if attempt(engine.read, start, 4):
                    break


def finish(engine: Engine) -> None:
    engine.files.let_go()
    for _attempt in range(20):
        if attempt(engine.manager.shutdown):
            break
    for _attempt in range(20):
        if attempt(engine.device.close):
            break
    assert engine.driver.driver.live() == {}
    assert engine.driver.calls_of_workers == []


@pytest.mark.parametrize("levels", [[("disk", 40)], [("host", 8), ("disk", 40)]], ids=["disk", "host and disk"])
@pytest.mark.parametrize("how_many", [1, 2])
@pytest.mark.parametrize("name", SIGNALS)
def test_whichever_is_refused(name: str, how_many: int, levels: list[tuple[str, int]]) -> None:
    num_runs = 0
    for nth in range(1, 200, 1 if name.startswith("cuStreamW") and name.endswith("32") else 3):
        engine = Engine(nth, levels)
        engine.driver.refuse(name, nth, how_many)
        serve(engine)
        engine.driver.refuse("", 0, 0)
        if attempt(engine.manager.check_invariants):
            # The manager goes on, and serves what it promises to.
            assert attempt(engine.write, 300, 4)
            assert engine.read(300, 4) == 4
        num_refused = engine.driver.num_refused
        finish(engine)
        if num_refused == 0:
            break
        num_runs += 1
    assert num_runs > 0 or name in ("cuStreamQuery", "cuCtxSynchronize", "cuEventSynchronize"), "never called"


@pytest.mark.parametrize("seed", range(4))
def test_a_context_that_breaks_while_pages_are_on_their_way(seed: int) -> None:
    """An illegal address: no flag is raised any more, and every call of the driver fails. No call waits for such a flag."""
    engine = Engine(seed, [("disk", 40)])
    engine.write(0, 4)
    engine.write(100, 4)
    engine.device.synchronize_stream(engine.stream)
    kv_cache = engine.manager.create_kv_cache(input_tokens=[7])
    assert kv_cache.resume(engine.stream)
    # From here on the GPU runs only where it must, which it never does: the fault comes first.
    engine.driver.driver.eager = False
    assert kv_cache.resize(GPU_SLOTS * TOKENS_PER_BLOCK)
    engine.driver.driver.break_context()
    attempt(kv_cache.close)
    try:
        engine.device.synchronize_stream(engine.stream)
    except KVCacheManagerError as error:
        assert "the CUDA context is broken" in str(error) and "restart the process" in str(error)
    else:
        raise AssertionError("a broken context went unnoticed")
    for call in (lambda: engine.read(0, 4), engine.manager.shutdown, engine.device.close):
        attempt(call)
    assert engine.driver.calls_of_workers == []
    # The process would end here; this one has to get rid of what no call could release.
    engine.driver.driver.heal()
    attempt(engine.manager.shutdown)
    attempt(engine.device.close)


@pytest.mark.parametrize("levels", [[("disk", 40)], [("host", 8), ("disk", 40)]], ids=["disk", "host and disk"])
def test_where_streams_can_do_neither(levels: list[tuple[str, int]]) -> None:
    engine = Engine(1, levels, can_order=False)
    serve(engine)
    assert engine.read(0, 4) == 4
    finish(engine)


def test_a_graph_capture_and_the_disk_do_not_disturb_each_other() -> None:
    """Another stream is captured in the strictest mode while pages go to the disk and come back, on the same thread."""
    engine = Engine(2, [("disk", 40)])
    driver = engine.driver.driver
    captured = engine.device.create_stream()
    mode = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert driver.cuStreamBeginCapture(captured, mode)[0] == CUresult.CUDA_SUCCESS
    serve(engine)
    assert engine.read(0, 4) == 4
    assert driver.cuStreamEndCapture(captured)[0] == CUresult.CUDA_SUCCESS
    assert driver.cuThreadExchangeStreamCaptureMode(mode)[1] is mode, "the thread's mode is what it was"
    engine.device.destroy_stream(captured)
    finish(engine)
