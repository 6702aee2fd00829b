"""A process may end in any way while pages are on their way to a disk, even one that answers no more: it ends, and with the status due."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

PROGRAM = """
import sys
sys.path[:] = {path!r}
import atexit
at_the_very_end = []  # called after the library's own atexit function, which is registered later
atexit.register(lambda: [call() for call in at_the_very_end])
import gc, os, signal, threading
from tiered_models import TOKENS_PER_BLOCK, tiered_config
from unit.device.fake_files import FakeFiles
from kv_cache_manager_v2 import HostDevice, KVCacheManager
from kv_cache_manager_v2.device.cuda_device import CudaDevice



class SlowFiles(FakeFiles):
    def transfer(self, *arguments):
        threading.Event().wait(0.1)
        return super().transfer(*arguments)


disk = {disk!r}
files = SlowFiles() if disk == "slow" else FakeFiles()
for_ever = []


def make_device(kind):
    if kind == "host":
        return HostDevice(files=files, calls_wait_for_disk=False)
    from unit.device.async_cuda_driver import AsyncCudaDriver
    return CudaDevice(driver=AsyncCudaDriver(1), files=files, granularity_bytes=4096, staging_bytes=1 << 20)


def serve(device):
    \"\"\"8 pages are written to the disk, whose transfers are held; 4 of them are asked for again.\"\"\"
    manager = KVCacheManager(tiered_config(8, [("disk", 64)]), device=device)
    first = manager.create_kv_cache()
    assert first.resume() and first.resize(8 * TOKENS_PER_BLOCK)
    first.commit(list(range(8 * TOKENS_PER_BLOCK)))
    first.close()
    if disk != "slow":
        files.hold()
    second = manager.create_kv_cache(input_tokens=[7, 8, 9])
    assert second.resume() and second.resize(8 * TOKENS_PER_BLOCK)
    second.close()
    third = manager.create_kv_cache(input_tokens=list(range(4 * TOKENS_PER_BLOCK)))
    assert third.num_committed_tokens == 4 * TOKENS_PER_BLOCK and third.resume(wait=False)
    return manager, third


def wait_for_signal():
    \"\"\"`signal.pause` would sleep for ever where another thread has taken the signal before it begins.\"\"\"
    while True:
        threading.Event().wait(0.05)


def end(how, device):
    kept = serve(device)
    if disk != "slow":
        files.wait_until_held(1)
        # Where the last reference goes earlier than Python ends, the manager is closed there, and waits.
        for_ever.append(kept)
    if disk == "awakes":
        atexit.register(files.let_go)
        at_the_very_end.append(lambda: print("under way:", files._num_waiting, flush=True))
    print("serving", flush=True)
    if how == "exception":
        raise KeyError("the engine's own")
    if how == "exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(4)
    if how == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for_signal()
    if how == "SIGINT":
        os.kill(os.getpid(), signal.SIGINT)
        wait_for_signal()
    if how == "global":
        globals()["kept"] = kept
    if how == "cycle":
        cycle = [kept]
        cycle.append(cycle)
    if how.startswith("waiting"):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        if how == "waiting, another thread takes it":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        kept[1].resize(5 * TOKENS_PER_BLOCK)  # what was asked for is on its way, and the host waits for it
    if how == "__del__":
        class Engine:
            def __del__(self):
                kept[1].close()
                kept[0].shutdown()
        globals()["engine"] = Engine()
    if how == "fork":
        child = os.fork()
        if child == 0:
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


device = make_device({kind!r})
if {how!r} == "thread":
    thread = threading.Thread(target=end, args=("return", device))
    thread.start()
    thread.join()
elif {how!r} == "daemon thread":
    is_there = threading.Event()
    def run():
        kept = serve(device)
        for_ever.append(kept)
        is_there.set()
        kept[1].close()
        kept[0].shutdown()
    threading.Thread(target=run, daemon=True).start()
    is_there.wait()
    print("serving", flush=True)
else:
    end({how!r}, device)
"""

WAYS = {
    "return": 0,
    "exception": 1,
    "exit": 3,
    "os._exit": 4,
    "SIGTERM": -signal.SIGTERM,
    "SIGINT": -signal.SIGINT,
    "global": 0,
    "cycle": 0,
    "thread": 0,
    "daemon thread": 0,
    "__del__": 0,
    "fork": 0,
}


def run(kind: str, how: str, disk: str) -> "subprocess.CompletedProcess[str]":
    program = PROGRAM.format(path=[str(TESTS), *sys.path], kind=kind, how=how, disk=disk)
    command = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", program]
    # No figure, but the end of the patience with a process that does not end.
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", ["host", "cuda"])
@pytest.mark.parametrize("disk", ["slow", "hung"])
def test_it_ends(kind: str, how: str, disk: str) -> None:
    ended = run(kind, how, disk)
    assert ended.stdout == "serving\n", ended.stderr
    assert ended.returncode == WAYS[how], ended.stderr
    if how == "exception":
        assert "the engine's own" in ended.stderr
    else:
        assert "Traceback" not in ended.stderr or how == "SIGINT", ended.stderr
    assert "Fatal" not in ended.stderr


@pytest.mark.parametrize("how", ["return", "exception", "exit", "SIGINT"])
def test_what_is_under_way_is_finished_first(how: str) -> None:
    """The disk answers again as Python begins to end: no transfer is cut off by it."""
    ended = run("host", how, "awakes")
    assert ended.stdout == "serving\nunder way: 0\n", ended.stderr
    assert ended.returncode == WAYS[how], ended.stderr


@pytest.mark.parametrize("how", ["waiting", "waiting, another thread takes it"])
@pytest.mark.parametrize("kind", ["host", "cuda"])
def test_ctrl_c_while_the_host_waits_for_the_disk(kind: str, how: str) -> None:
    """A lock that waits hears of no signal that another thread takes, or that comes just before it waits."""
    ended = run(kind, how, "hung")
    assert ended.stdout == "serving\n" and ended.returncode == -signal.SIGINT, ended.stderr
