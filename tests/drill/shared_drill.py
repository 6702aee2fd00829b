"""`make drill`: the shared level against servers that are killed, frozen, slow, full or lying, with figures; and four processes, killed at
random, that share one server.

    python -P tests/drill/shared_drill.py [--seconds 60] [--operations 10000] [--seed 1] [--only faults]

Exit code 1 if a byte was wrong, an answer never came, or hits did not return. Times depend on the machine, and are only shown.
"""

import argparse
import logging
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from fake_valkey_server import FakeServer
from shared_models import MODEL, Rank, Server, shared_config, wait_until

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from kv_cache_manager_v2.shared import SharedLevel, ValkeyStore

TEXTS = [[1000 * number + position for position in range(65)] for number in range(1, 9)]
MIB = 1 << 20


class LongestCall:
    """Calls, and the longest of them in milliseconds."""

    def __init__(self) -> None:
        self.milliseconds = 0.0

    def __call__(self, function: Callable[[], object]) -> None:
        begun = time.perf_counter()
        function()
        self.milliseconds = max(self.milliseconds, (time.perf_counter() - begun) * 1000)


def busy_threads(stop: threading.Event) -> list[threading.Thread]:
    """Two threads that use the interpreter all the time, as an engine's other threads do."""

    def work() -> None:
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=work, daemon=True) for _number in range(2)]
    for thread in threads:
        thread.start()
    return threads


def show_faults() -> None:
    print("\nfaults: 64-token prompts of pages of 256 bytes, beside two busy threads; longest call of the manager's thread")
    print(f"{'fault':<10} {'longest call':>14} {'slowest answer':>15} {'hits back after':>16}")
    for fault in ("none", "killed", "frozen", "slow", "full", "garbage"):
        run_fault(fault)


def run_fault(fault: str) -> None:
    real = Server() if fault in ("none", "killed", "frozen") else None
    fake = None if real is not None else FakeServer()
    address = real.address if real is not None else fake.address if fake is not None else ""
    store = ValkeyStore([address])
    with Rank(store) as writer:
        for text in TEXTS:
            writer.run(text)
            writer.drain()
    longest = LongestCall()
    slowest = 0.0
    stop = threading.Event()
    with Rank(store) as rank:
        threads = busy_threads(stop)
        inflict(fault, real, fake)
        for number in range(12):
            kv_cache = rank.manager.create_kv_cache(None, TEXTS[number % 8][:-1])
            begun = time.perf_counter()
            made = []
            longest(lambda made=made, kv_cache=kv_cache: made.append(rank.level.look_up(kv_cache)))
            request = made[0]
            while request.remote_tokens is None:
                longest(rank.settle)
                time.sleep(0.0005)
            if request.remote_tokens > 0:
                kv_cache.resume()
                longest(request.fetch)
                while request.arrived_tokens is None:
                    longest(rank.settle)
                    time.sleep(0.0005)
                longest(request.take)
            slowest = max(slowest, time.perf_counter() - begun)
            if not kv_cache.is_active:
                kv_cache.resume()
            rank.compute(request, TEXTS[number % 8])
            longest(rank.settle)
            rank.forget()
        stop.set()
        for thread in threads:
            thread.join()
        relieve(fault, real, fake)
        begun = time.perf_counter()

        def is_back() -> bool:
            rank.forget()
            if rank.run(TEXTS[7]) == 64:
                return True
            rank.drain()
            return False

        wait_until(is_back, 30.0)
        back = time.perf_counter() - begun
    print(f"{fault:<10} {longest.milliseconds:>11.1f} ms {slowest * 1000:>12.0f} ms {back * 1000:>13.0f} ms")
    for server in (real, fake):
        if server is not None:
            server.__exit__(None, None, None)


def inflict(fault: str, real: Server | None, fake: FakeServer | None) -> None:
    if real is not None and fault == "killed":
        real.kill()
    elif real is not None and fault == "frozen":
        real.signal(signal.SIGSTOP)
    elif fake is not None and fault == "slow":
        fake.delay = 1.0
    elif fake is not None and fault == "full":
        fake.reply = lambda words: b"-OOM command not allowed\r\n" if words[0] == b"SET" else None
    elif fake is not None:
        fake.reply = lambda words: random.randbytes(100) + b"\r\n"


def relieve(fault: str, real: Server | None, fake: FakeServer | None) -> None:
    if real is not None and fault == "killed":
        real.start()
    elif real is not None and fault == "frozen":
        real.signal(signal.SIGCONT)
    elif fake is not None:
        fake.reply = None
        fake.delay = 0.0


def show_speed() -> None:
    """16 pages of 1 MiB over loopback: against the same connection without a level, in turn, and what the calls cost their caller."""
    tokens = 16
    layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", MIB // 2), BufferConfig("value", MIB // 2)])
    config = KVCacheManagerConfig(tokens, [GpuCacheTierConfig(64 * MIB)], [layer], max_util_for_resume=1.0)
    text = list(range(16 * tokens))
    with Server("--maxmemory", "512mb", "--maxmemory-policy", "allkeys-lru") as server:
        device = HostDevice()
        with KVCacheManager(config, device=device) as manager:
            with SharedLevel(manager, ValkeyStore([server.address]), MODEL, write_policy="commit", load_bytes=40 * MIB) as level:
                first = [time_store(manager, level, [1000 * number + token for token in text]) for number in range(1, 25)]
                time_store(manager, level, text)
                again, loads, plain = [], [], []
                for _round in range(24):
                    manager.clear_reusable_blocks()
                    kv_cache = manager.create_kv_cache(None, text)
                    request = level.look_up(kv_cache)
                    settle_until(level, lambda request=request: request.remote_tokens is not None)
                    kv_cache.resume()
                    begun = time.perf_counter()
                    assert request.fetch()
                    settle_until(level, lambda request=request: request.arrived_tokens is not None)
                    loads.append(time.perf_counter() - begun)
                    assert request.take() and kv_cache.num_committed_tokens == len(text)
                    begun = time.perf_counter()
                    assert request.store() == 0
                    again.append(time.perf_counter() - begun)
                    kv_cache.close()
                    plain.append(time_plain(server.address))
        device.close()
    print("\nspeed: 16 pages of 1 MiB, Valkey over loopback, 24 rounds in turn: the least, and the median")
    for name, times in (("plain loads of the same connection  ", plain), ("fetch until it is whole and verified", loads)):
        print(f"  {name}   {16 * MIB / min(times) / 1e6:6.0f} {16 * MIB / statistics.median(times) / 1e6:6.0f} MB/s")
    share = statistics.median(plain) / statistics.median(loads)
    print(f"  {100 * min(plain) / min(loads):.0f} % by the least, {100 * share:.0f} % by the median")
    for name, times in (("that the store has not", first), ("that the store has    ", again)):
        print(f"  store() of 16 pages {name}: {min(times) * 1e6:4.0f} {statistics.median(times) * 1e6:4.0f} us")


def time_store(manager: KVCacheManager, level: SharedLevel, text: list[int]) -> float:
    """Commit a text that the store has not, and offer it."""
    kv_cache = manager.create_kv_cache(None, text)
    request = level.look_up(kv_cache)
    settle_until(level, lambda: request.remote_tokens is not None)
    kv_cache.resume()
    kv_cache.resize(len(text), 0)
    kv_cache.commit_input()
    time.sleep(0.01)
    begun = time.perf_counter()
    accepted = request.store()
    seconds = time.perf_counter() - begun
    assert accepted == 16
    settle_until(level, lambda: len(level._outgoing) == 0)
    request.cancel_remote()
    kv_cache.close()
    return seconds


def settle_until(level: SharedLevel, is_reached: Callable[[], bool]) -> None:
    """Report and admit every tenth of a millisecond: an engine does once a step, and what it waits for longer is its own."""
    deadline = time.monotonic() + 30.0
    while True:
        level.admit(level.remote_report())
        if is_reached():
            return
        assert time.monotonic() < deadline, "not so within 30 s"
        time.sleep(0.0001)


def time_plain(address: str) -> float:
    connection = ValkeyStore([address]).connect(address)
    keys = [b"plain/%d" % number for number in range(16)]
    memory = bytearray(16 * MIB)
    views = [memoryview(memory)[number * MIB : (number + 1) * MIB] for number in range(16)]
    connection.store(keys, [[view] for view in views])
    begun = time.perf_counter()
    connection.load(keys, views)
    seconds = time.perf_counter() - begun
    connection.close()
    return seconds


def run_random(operations: int, seed: int) -> None:
    """Two managers over a server that lies, loses, cuts off and mixes up; the engines check every byte that is read."""
    rng = random.Random(seed)
    trunks = [[1000 * number + position for position in range(60)] for number in range(5)]
    faults = [0, 0]

    def reply(words: list[bytes]) -> bytes | None:
        dice = rng.random()
        if words[0] != b"GET" or dice > 0.02 or len(fake.values) < 3:
            return b":1\r\n" if words[0] == b"EXISTS" and dice < 0.05 else None
        faults[0] += 1
        value = bytearray(fake.values.get(words[1], b""))
        if dice < 0.004 or len(value) < 10:
            return b"$-1\r\n"
        if dice < 0.01:
            value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        elif dice < 0.014:
            value = bytearray(fake.values[rng.choice(list(fake.values))])
        elif dice < 0.018:
            value[len(value) // 2 :] = bytes(len(value) - len(value) // 2)
        else:
            return rng.randbytes(30)
        return b"$%d\r\n%b\r\n" % (len(value), bytes(value))

    with FakeServer() as fake:
        config = shared_config((None, 8))
        store = ValkeyStore([fake.address])
        with Rank(store, config) as first, Rank(store, config, write_policy="eviction") as second:
            fake.reply = reply
            num_loaded = 0
            for step in range(operations):
                rank = rng.choice((first, second))
                num_loaded += rank.run([*rng.choice(trunks)[: rng.randrange(6, 60)], rng.randrange(9)])
                if rng.random() < 0.4:
                    rank.forget()
                if step % 100 == 0:
                    rank.level.check_invariants()
                    rank.manager.check_invariants()
            fake.reply = None
            corrupt = sum([rank.level.statistics.corrupt_pages for rank in (first, second)])
    print(f"\nrandom: {operations} prompts, seed {seed}: {num_loaded} tokens loaded, {faults[0]} wrong answers, {corrupt} wrong records "
          f"found, no wrong byte read")


CHILD = """
import random, sys, time
sys.path[:0] = {folders!r}
from shared_models import Rank, shared_config
from kv_cache_manager_v2.shared import StoreError, ValkeyStore
rng = random.Random({seed})
trunks = [[1000 * number + position for position in range(60)] for number in range(5)]
rank = None
while rank is None:
    try:
        rank = Rank(ValkeyStore([{address!r}]), shared_config((None, 8)), write_policy=("commit", "eviction")[{seed} % 2])
    except StoreError:  # the only server is down just now: a level refuses to begin
        time.sleep(0.1)
loaded = 0
while True:
    loaded += rank.run([*rng.choice(trunks)[: rng.randrange(6, 60)], rng.randrange(9)])
    if rng.random() < 0.4:
        rank.forget()
    print(loaded, flush=True)
"""


def run_processes(seconds: float, seed: int) -> bool:
    """Four processes share a server; one after the other is killed, at any moment, and started again. Whether none failed by itself, and
    some had something from another one."""
    rng = random.Random(seed)
    folders = [str(Path(__file__).resolve().parent.parent)]
    num_kills = 0
    num_prompts = [0]
    loaded = [0]
    serving: set[subprocess.Popen[str]] = set()
    failures: list[str] = []

    def follow(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        last = 0
        for line in process.stdout:
            if line.endswith("\n"):
                serving.add(process)
                num_prompts[0] += 1
                last = int(line)
        loaded[0] += last

    def begin(number: int) -> subprocess.Popen[str]:
        script = CHILD.format(folders=folders, seed=number, address=server.address)
        process = subprocess.Popen([sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=follow, args=(process,), daemon=True).start()
        return process

    with Server("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru") as server:
        processes = [begin(number) for number in range(4)]
        # On a busy machine a process takes longer to begin than it lives later.
        wait_until(lambda: len(serving) == 4 or any([process.poll() is not None for process in processes]), 300.0)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(0.5, 4.0))
            for process in processes:
                if process.poll() is not None:
                    assert process.stderr is not None
                    failures.append(process.stderr.read())
            if failures:
                break
            if rng.random() < 0.2:
                server.kill()
                time.sleep(rng.uniform(0.0, 1.0))
                server.start()
                continue
            victim = rng.randrange(4)
            processes[victim].kill()
            processes[victim].wait()
            num_kills += 1
            processes[victim] = begin(4 + num_kills)
        for process in processes:
            process.kill()
            process.wait()
    time.sleep(0.2)
    print(f"\nprocesses: 4 for {seconds:.0f} s, {num_kills} killed, server restarts between: {num_prompts[0]} prompts, {loaded[0]} tokens "
          f"loaded, {len(failures)} failures")
    for failure in failures:
        print(failure)
    return not failures and loaded[0] > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["speed", "faults", "random", "processes"])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # what the faults are known to log
    is_fine = True
    if arguments.only in (None, "speed"):
        show_speed()
    if arguments.only in (None, "faults"):
        show_faults()
    if arguments.only in (None, "random"):
        run_random(arguments.operations, arguments.seed)
    if arguments.only in (None, "processes"):
        is_fine = run_processes(arguments.seconds, arguments.seed)
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
