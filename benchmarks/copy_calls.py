"""What the host pays to give a GPU's driver a batch of copies: our own part, as the driver is a fake one whose batch call does nothing.

    python -P benchmarks/copy_calls.py [--copies 1000] [--piece-mib 16] [--rounds 200] [--core 1]

Pages between GPU and pinned host memory, scattered on both sides over pieces of memory that were made apart, so that no two copies become
one. Prints the CPU time of a copy, the best of the rounds: adding it to the batch, and enqueueing the batch. Which build is
measured is decided by PYTHONPATH alone.
"""

import argparse
import ctypes
import importlib
import importlib.util
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

from measure import Stopwatch, pin_to_core  # noqa: E402

from kv_cache_manager_v2 import CacheTier, CopyBatch, is_compiled  # noqa: E402
from kv_cache_manager_v2.device.cuda_device import CudaDevice  # noqa: E402
from kv_cache_manager_v2.device.memory_range import MemoryRange  # noqa: E402

MIB = 1 << 20
PAGE_BYTES = 64 << 10
GPU, HOST = CacheTier.GPU_MEM, CacheTier.HOST_MEM
FAKES = Path(__file__).resolve().parents[1] / "tests" / "unit" / "device"
SUCCESS = 0
NUM_ARGUMENTS = 8


def make_driver() -> Any:
    """The fake driver of the device's tests, with a batch call that returns at once."""
    spec = importlib.util.spec_from_file_location("device_tests", FAKES / "__init__.py", submodule_search_locations=[str(FAKES)])
    assert spec is not None
    sys.modules["device_tests"] = importlib.util.module_from_spec(spec)
    fake = importlib.import_module("device_tests.fake_cuda_driver").FakeCudaDriver()
    do_nothing = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * NUM_ARGUMENTS)(lambda *arguments: SUCCESS)
    fake.copy_function = do_nothing  # what C calls must live as long
    address = ctypes.cast(do_nothing, ctypes.c_void_p).value
    fake.cuGetProcAddress = lambda symbol, version, flags: (SUCCESS, address, 0)
    return fake


def scattered_pages(memory: MemoryRange, count: int, generator: random.Random) -> list[int]:
    """Addresses of pages, no two of which are neighbours in order."""
    pages = generator.sample(range(0, memory.mapped_bytes // PAGE_BYTES, 2), count)
    return [memory.address + page * PAGE_BYTES for page in pages]


def measure(num_copies: int, piece_bytes: int, rounds: int) -> tuple[float, float]:
    """ns a copy: adding it, enqueueing it."""
    device = CudaDevice(driver=make_driver(), max_registration_bytes=piece_bytes)
    ranges = [MemoryRange(device, tier, -(-4 * num_copies * PAGE_BYTES // piece_bytes) * piece_bytes) for tier in (GPU, HOST)]
    for memory in ranges:
        memory.resize(memory.max_bytes)
    stream = device.create_stream()
    generator = random.Random(1)
    adding = enqueueing = float("inf")
    for _ in range(rounds):
        dsts, srcs = (scattered_pages(memory, num_copies, generator) for memory in ranges)
        batch = CopyBatch(GPU, HOST, PAGE_BYTES)
        watch = Stopwatch()
        with watch:
            for dst, src in zip(dsts, srcs, strict=True):
                batch.add(dst, src)
        adding = min(adding, watch.ns)
        watch = Stopwatch()
        with watch:
            device.copy_batch(stream, batch)
        enqueueing = min(enqueueing, watch.ns)
    for memory in ranges:
        memory.close()
    device.close()
    return adding / num_copies, enqueueing / num_copies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=1000)
    parser.add_argument("--piece-mib", type=int, default=16, help="host memory that is pinned at once (default 16)")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--core", type=int, help="default: the last one")
    options = parser.parse_args()
    pin_to_core(options.core)
    Stopwatch.calibrate()
    adding, enqueueing = measure(options.copies, options.piece_mib * MIB, options.rounds)
    build = "compiled" if is_compiled() else "interpreted"
    print(f"{build}, batches of {options.copies}: {adding:.0f} ns to add a copy, {enqueueing:.0f} ns to enqueue it")


if __name__ == "__main__":
    main()
