"""`await manager.ready(sequence)`: an asyncio engine goes on when the pages are there. Nothing polls, a cancelled wait leaves nothing."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from forwarding_device import ForwardingDevice
from simulation.cuda_over_fake import make_cuda_device
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config
from unit.device.fake_files import FakeFiles

from kv_cache_manager_v2 import HostDevice, KVCache, LogicError, StorageIOError
from kv_cache_manager_v2.testing import SimulatedDevice


def make_slow(bench: Bench) -> KVCache:
    """A sequence of 4 pages on the disk, behind one of 8 that fills the GPU."""
    slow = bench.suspended(0, 4 * TOKENS_PER_BLOCK)
    other = bench.suspended(1, 8 * TOKENS_PER_BLOCK)
    assert other.resume()
    other.close()
    return slow


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class CountedLoop(asyncio.SelectorEventLoop):
    """Counts how often it looked at its descriptors."""

    num_turns = 0

    def _run_once(self) -> None:
        self.num_turns += 1
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, None]) -> CountedLoop:
    loop = CountedLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(main, 60))
    finally:
        loop.close()
    return loop


def test_the_loop_goes_on_when_the_disk_is_through() -> None:
    files = FakeFiles()
    with Bench(tiered_config(8, [("disk", 12)]), HostDevice(files=files)) as bench:
        slow = make_slow(bench)
        files.hold()
        assert slow.resume(wait=False)
        order: list[str] = []

        async def serve() -> None:
            waiting = asyncio.ensure_future(bench.manager.ready(slow))
            for _ in range(3):
                await asyncio.sleep(0)
            order.append("others are served")
            assert not waiting.done()
            # From another thread, while the loop sleeps.
            asyncio.get_running_loop().run_in_executor(None, files.let_go)
            await waiting
            order.append("ready")
            await bench.manager.ready(slow)

        # Each of 4 pages is a job at most, which wakes the loop once; the rest are the turns above.
        assert run(serve()).num_turns < 20
        assert order == ["others are served", "ready"]
        assert slow.ready
        bench.check(slow)


def test_many_sequences_and_two_loops(tmp_path: Path) -> None:
    with Bench(tiered_config(8, [("host", 4), ("disk", 40)], str(tmp_path)), HostDevice()) as bench:
        sequences = [bench.suspended(number, 2 * TOKENS_PER_BLOCK) for number in range(12)]

        async def serve() -> None:
            for first in range(0, 12, 3):
                batch = sequences[first : first + 3]
                for kv_cache in batch:
                    assert kv_cache.resume(wait=False)
                await asyncio.gather(*[bench.manager.ready(kv_cache) for kv_cache in batch])
                for kv_cache in batch:
                    assert kv_cache.ready
                    bench.check(kv_cache)
                    kv_cache.suspend()

        run(serve())
        run(serve())


def test_a_cancelled_wait_leaves_nothing() -> None:
    before = num_open_files()
    files = FakeFiles()
    with Bench(tiered_config(8, [("disk", 12)]), HostDevice(files=files)) as bench:
        slow = make_slow(bench)
        files.hold()
        assert slow.resume(wait=False)

        async def serve() -> None:
            waiting = [asyncio.ensure_future(bench.manager.ready(slow)) for _ in range(2)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await asyncio.sleep(0)
            assert waiting[0].cancelled() and not waiting[1].done()
            waiting[1].cancel()
            await asyncio.sleep(0)
            loop: Any = asyncio.get_running_loop()
            # But for the loop's own descriptor.
            assert len(loop._selector.get_map()) == 1

        run(serve())
        files.let_go()
        run(bench.manager.ready(slow))
        bench.check(slow)
    assert num_open_files() == before


def test_a_page_that_cannot_be_read_is_an_error_of_the_wait() -> None:
    files = FakeFiles()
    with Bench(tiered_config(8, [("disk", 12)]), HostDevice(files=files)) as bench:
        slow = make_slow(bench)
        files.hold()
        files.fail(5, reads=True)
        assert slow.resume(wait=False)

        async def serve() -> None:
            asyncio.get_running_loop().run_in_executor(None, files.let_go)
            with pytest.raises(StorageIOError):
                await bench.manager.ready(slow)

        run(serve())


@pytest.mark.parametrize("ends", ["close", "suspend"])
def test_a_sequence_that_ends_meanwhile(ends: str) -> None:
    files = FakeFiles()
    with Bench(tiered_config(8, [("disk", 12)]), HostDevice(files=files)) as bench:
        slow = make_slow(bench)
        files.hold()
        assert slow.resume(wait=False)

        async def serve() -> None:
            waiting = asyncio.ensure_future(bench.manager.ready(slow))
            await asyncio.sleep(0)
            getattr(slow, ends)()
            asyncio.get_running_loop().run_in_executor(None, files.let_go)
            with pytest.raises(LogicError, match=r"ready\(\)|ready"):
                await waiting

        run(serve())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lower", [[("host", 12)], [("disk", 12)], [("host", 4), ("disk", 12)]], ids=["host", "disk", "both"])
def test_a_host_function_wakes_it_on_cuda(seed: int, lower: list[tuple[str, int]]) -> None:
    device, driver = make_cuda_device(seed)
    driver.eager = False
    with Bench(tiered_config(8, lower), device) as bench:
        slow = make_slow(bench)
        for _ in range(2):
            assert slow.resume(wait=False)

            async def serve() -> None:
                waiting = asyncio.ensure_future(bench.manager.ready(slow))
                await asyncio.sleep(0)
                # The GPU, which needs no thread of ours.
                gpu = asyncio.get_running_loop().run_in_executor(None, driver.run_to_end)
                await waiting
                await gpu

            run(serve())
            bench.check(slow)
            slow.suspend()
        assert driver.calls.count("cuLaunchHostFunc") >= 1


@pytest.mark.parametrize("make_device", [lambda: SimulatedDevice(3, eager=False), ForwardingDevice], ids=["simulated", "of the user"])
def test_a_device_that_cannot_wake_a_loop_is_waited_for(make_device: Callable[[], Any]) -> None:
    with Bench(tiered_config(8, [("host", 12)]), make_device()) as bench:
        slow = make_slow(bench)
        assert slow.resume(wait=False)
        run(bench.manager.ready(slow))
        assert slow.ready
        bench.check(slow)


def test_other_peoples_sequences_and_loops() -> None:
    files = FakeFiles()
    with Bench(tiered_config(8, [("disk", 12)]), HostDevice(files=files)) as bench, Bench(tiered_config(8, []), HostDevice()) as other:
        slow = make_slow(bench)
        stranger = other.manager.create_kv_cache()
        with pytest.raises(ValueError, match="another manager"):
            run(bench.manager.ready(stranger))
        untyped: Any = 5
        with pytest.raises(TypeError, match="kv_cache"):
            run(bench.manager.ready(untyped))
        with pytest.raises(LogicError):
            run(bench.manager.ready(slow))
        stranger.close()
        files.hold()
        assert slow.resume(wait=False)

        async def serve() -> None:
            waiting = asyncio.ensure_future(bench.manager.ready(slow))
            await asyncio.sleep(0)
            found: list[BaseException] = []

            def in_another_loop() -> None:
                try:
                    asyncio.run(bench.manager.ready(slow))
                except LogicError as error:
                    found.append(error)

            thread = threading.Thread(target=in_another_loop)
            thread.start()
            thread.join()
            assert "another event loop" in str(found[0])
            files.let_go()
            await waiting

        run(serve())
        slow.close()
