"""Ctrl-C at any moment, hundreds of times, with pages on their way to a disk: no call waits for ever, and the manager works on with every
byte right, or says that it is broken. A shutdown that was cut off is finished by the next one."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

PROGRAM = """
import sys
sys.path[:] = {path!r}
import ctypes, logging, os, signal, threading
from tiered_models import TOKENS_PER_BLOCK, tiered_config
from small_models import BYTES_PER_TOKEN
from unit.device.fake_files import FakeFiles
from kv_cache_manager_v2 import CorruptedError, DataRole, HostDevice, KVCacheManager, LayerGroupId, LayerId

logging.disable(logging.CRITICAL)
SLOT_BYTES = 2 * BYTES_PER_TOKEN * TOKENS_PER_BLOCK
files = FakeFiles()
armed = False
num_interrupted = 0


def interrupt(*arguments):
    # Only inside the library: what this program does itself may not be cut off.
    global armed, num_interrupted
    if armed:
        armed = False
        num_interrupted += 1
        raise KeyboardInterrupt


signal.signal(signal.SIGINT, interrupt)


class Cache:
    def __init__(self):
        self.device = HostDevice(files=files)
        self.manager = KVCacheManager(tiered_config(8, [("host", 6), ("disk", 64)]), device=self.device)
        self.base = self.manager.get_mem_pool_base_address(LayerId(0), DataRole("key"))

    def use(self, start, num_blocks):
        \"\"\"Compute what is not there, and check what is.\"\"\"
        global armed
        tokens = list(range(start * 100, start * 100 + num_blocks * TOKENS_PER_BLOCK))
        kv_cache = self.manager.create_kv_cache(input_tokens=tokens)
        try:
            armed = True
            if not kv_cache.resume() or not kv_cache.resize(len(tokens)):
                return
            armed = False
            first = kv_cache.num_committed_tokens // TOKENS_PER_BLOCK
            slots = [int(index) for index in kv_cache.get_base_page_indices(LayerGroupId(0))]
            armed = True
            self.device.synchronize_stream(self.device.default_stream())
            armed = False
            for block, slot in enumerate(slots):
                address = self.base + slot * SLOT_BYTES
                value = 1 + (start * 16 + block) % 250
                if block < first:
                    found = set(ctypes.string_at(address, SLOT_BYTES))
                    if found != {{value}}:
                        os.write(1, b"wrong bytes\\n")
                        os._exit(9)
                else:
                    ctypes.memset(address, value, SLOT_BYTES)
            armed = True
            kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
        finally:
            armed = False
            kv_cache.close()

    def end(self):
        global armed
        armed = False
        try:
            self.manager.shutdown()
        except CorruptedError:
            pass


done = threading.Event()


def storm():
    pause = threading.Event()
    sent = 0
    while num_interrupted < 300 and sent < 6000:
        os.kill(os.getpid(), signal.SIGINT)
        sent += 1
        pause.wait(0.0005 * (1 + sent % 7))
    done.set()


thread = threading.Thread(target=storm)
thread.start()
cache = Cache()
num_broken = 0
turn = 0
while not done.is_set():
    turn += 1
    try:
        cache.use(turn * 7 % 11, 4 + turn % 5)
    except KeyboardInterrupt:
        pass
    except CorruptedError as error:
        assert "broken" in str(error)
        num_broken += 1
        cache.end()
        cache = Cache()
thread.join()
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    cache.manager.check_invariants()
    cache.use(1, 8)
except CorruptedError:
    pass
cache.end()
print("interrupted", num_interrupted, "turns", turn, "broken", num_broken, "transfers", len(files.transfers))
"""


@pytest.mark.parametrize("run", range(2))
def test_a_storm_of_signals(run: int) -> None:
    program = PROGRAM.format(path=[str(TESTS), *sys.path])
    command = [sys.executable, "-P", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    words = ended.stdout.split()
    assert int(words[1]) > 20 and int(words[-1]) > 100, ended.stdout


SHUTDOWN = """
import sys
sys.path[:] = {path!r}
import os, signal, threading
from tiered_models import TOKENS_PER_BLOCK, tiered_config
from unit.device.fake_files import FakeFiles
from kv_cache_manager_v2 import HostDevice, KVCacheManager, LogicError

signal.signal(signal.SIGINT, signal.default_int_handler)
files = FakeFiles()
device = HostDevice(files=files, calls_wait_for_disk=False)
manager = KVCacheManager(tiered_config(8, [("disk", 64)]), device=device)
kv_cache = manager.create_kv_cache()
assert kv_cache.resume() and kv_cache.resize(8 * TOKENS_PER_BLOCK)
kv_cache.commit(list(range(8 * TOKENS_PER_BLOCK)))
kv_cache.close()
files.hold()
kv_cache = manager.create_kv_cache(input_tokens=[7, 8, 9])
assert kv_cache.resume() and kv_cache.resize(8 * TOKENS_PER_BLOCK)
kv_cache.close()
files.wait_until_held(1)


def press():
    os.kill(os.getpid(), signal.SIGINT)


for turn in range(3):
    threading.Timer(0.2, press).start()
    try:
        manager.shutdown()
        os._exit(7)
    except KeyboardInterrupt:
        pass
    try:
        device.close()
        os._exit(8)
    except LogicError as error:
        assert "still reserved" in str(error)
files.let_go()
manager.shutdown()
device.close()
manager.shutdown()
print("ended", files.used_bytes)
"""


def test_a_shutdown_that_was_interrupted_is_finished_by_the_next() -> None:
    command = [sys.executable, "-P", "-c", SHUTDOWN.format(path=[str(TESTS), *sys.path])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout == "ended 0\n", "the disk has its bytes back"
