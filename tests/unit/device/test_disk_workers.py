"""`DiskWorkers`: gates that fail, starts that are interrupted, waits that have no end."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from kv_cache_manager_v2.base.errors import LogicError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.disk_job import DiskJob
from kv_cache_manager_v2.device.disk_plan import BatchPlan
from kv_cache_manager_v2.device.disk_ranges import DiskRanges
from kv_cache_manager_v2.device.disk_workers import DiskWorkers
from kv_cache_manager_v2.device.job_gate import JobFlag
from kv_cache_manager_v2.device.port import CopyBatch

from .disk_bench import BASE, PAGE, FileBench
from .fake_files import FakeFiles

NUM_LOOKS = 100


class Gate(JobFlag):
    def __init__(self, failure: str = "") -> None:
        self.is_up = False
        self.failure = failure

    def is_raised(self) -> bool:
        if self.failure:
            raise OSError(self.failure)
        return self.is_up

    def give(self) -> None:
        self.is_up = True


class Bench(FileBench):
    """Each of the 8 pages of the memory holds its number."""

    def __init__(self, num_threads: int = 3) -> None:
        super().__init__(8)
        self.workers = DiskWorkers(num_threads)
        for page in range(8):
            ctypes.memset(self.memory + page * PAGE, page, PAGE)

    def write(self, disk_page: int, memory_page: int, gate: JobFlag | None = None) -> DiskJob:
        job = DiskJob([], [self.extent(disk_page, self.memory + memory_page * PAGE)])
        if gate is not None:
            job.gates.append(gate)
        return job

    def read(self, disk_page: int, memory_page: int) -> DiskJob:
        return DiskJob([self.extent(disk_page, self.memory + memory_page * PAGE)], [])

    def run(self, job: DiskJob) -> DiskJob:
        self.workers.start(job, [])
        self.workers.wait(job)
        return job

    def in_memory(self, page: int) -> int:
        return ctypes.string_at(self.memory + page * PAGE, 1)[0]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.files.let_go()
    bench.workers.close()


def test_a_write_whose_gate_fails_is_lost_and_said_to_be(bench: Bench) -> None:
    """It is no failed read, and what the disk had there before is not served in its stead."""
    before = bench.run(bench.write(2, 5))
    job = bench.write(2, 6, Gate("900, the stream is being captured"))
    bench.workers.start(job, [before])
    bench.workers.wait(job)
    assert job.read_error is None and bench.workers.take_failed_reads() == []
    assert [(error.is_write, error.address, error.num_bytes) for error in job.write_errors] == [(True, BASE + 2 * PAGE, PAGE)]
    job.record_failed_writes()
    assert bench.file.failure is not None and "900" in str(bench.file.failure)
    read = bench.read(2, 0)
    bench.workers.start(read, [job])
    bench.workers.wait(read)
    assert read.read_error is not None and "never written" in str(read.read_error)
    assert bench.in_memory(0) == 0, "the page that lay there is nobody's"
    assert len(bench.workers.take_failed_reads()) == 1
    bench.run(bench.write(2, 7))
    read = bench.run(bench.read(2, 1))
    assert read.read_error is None and bench.in_memory(1) == 7


class Unplannable(FakeFiles):
    """Files of which no transfer can be planned that is not aligned."""

    def become_buffered(self, file: int) -> None:
        raise MemoryError("no memory for the plan")


def test_what_cannot_be_planned_is_lost_and_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    """Workers plan what they move: the thread goes on, the caller gets the reason, and what the disk had before is not served."""
    ranges = DiskRanges(Unplannable(), PAGE)
    address = ranges.reserve("/nowhere", 8 * PAGE)
    ranges.map(address, 8 * PAGE)
    buffer = ctypes.create_string_buffer(3 * PAGE)
    memory = (ctypes.addressof(buffer) + PAGE - 1) // PAGE * PAGE
    workers = DiskWorkers(1)

    def run(dst_tier: CacheTier, src_tier: CacheTier, dst: int, src: int) -> DiskJob:
        batch = CopyBatch(dst_tier, src_tier, 512)
        batch.add(dst, src)
        job = DiskJob([], [], BatchPlan(batch, ranges))
        workers.start(job, [])
        workers.wait(job)
        job.record_failed_writes()
        return job

    read = run(CacheTier.HOST_MEM, CacheTier.DISK, memory, address + 512)
    assert read.read_error is not None and "no memory for the plan" in str(read.read_error)
    assert len(workers.take_failed_reads()) == 1 and ranges.failure_of(address) is None
    write = run(CacheTier.DISK, CacheTier.HOST_MEM, address + 512, memory)
    assert write.read_error is None and workers.take_failed_reads() == []
    assert "no memory for the plan" in str(ranges.failure_of(address)) and "these bytes are lost" in caplog.text
    assert workers.transfers.rescued.has_lost(address + 512, 512) and not workers.transfers.rescued.has_lost(address, 512)
    workers.close()
    ranges.unmap(address, 8 * PAGE)
    ranges.release(address, 8 * PAGE)


def test_a_read_whose_gate_fails_is_a_failed_read(bench: Bench) -> None:
    job = bench.read(3, 1)
    job.gates.append(Gate("no"))
    bench.run(job)
    assert job.read_error is not None and (job.read_error.address, job.read_error.num_bytes) == (BASE + 3 * PAGE, PAGE)
    assert bench.workers.take_failed_reads() == [job.read_error] and job.write_errors == []
    assert bench.file.failure is None


def test_gates_open_while_all_workers_are_busy_or_idle(bench: Bench) -> None:
    gates = [Gate() for _ in range(6)]
    jobs = [bench.write(index, index, gate) for index, gate in enumerate(gates)]
    for job in jobs:
        bench.workers.start(job, [])
    bench.run(bench.write(7, 7))
    assert [job.is_done for job in jobs] == [False] * 6
    for index in (3, 0, 5, 4, 1, 2):
        gates[index].is_up = True
        bench.workers.wait(jobs[index])
        assert bench.on_disk(index)[0] == index


SHUT_GATE = """
import sys
sys.path[:] = {path!r}
from unit.device.test_disk_workers import count_looks_at_an_empty_queue
print(count_looks_at_an_empty_queue({num_threads}))
"""


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_shut_gate_keeps_no_worker_busy(num_threads: int) -> None:
    """In a process of its own: compiled, a worker that is busy with nothing lets no other thread run, nor a test fail."""
    program = SHUT_GATE.format(path=[str(Path(__file__).parents[2]), *sys.path], num_threads=num_threads)
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout == f"{NUM_LOOKS}\n", ended.stdout + ended.stderr


def count_looks_at_an_empty_queue(num_threads: int) -> int:
    """Whoever watches a shut gate takes other jobs meanwhile, and others watch; then their queue is empty."""
    bench = Bench(num_threads)
    gate = Gate()
    shut = bench.write(0, 5, gate)
    bench.workers.start(shut, [])
    for turn in range(200):
        job = bench.write(1 + turn % 7, turn % 7)
        bench.workers.start(job, [])
        if turn % 3 == 0:
            bench.workers.wait(job)
    bench.workers.wait(job)
    pause = threading.Event()
    for _attempt in range(1000):
        if bench.workers._inbox.empty():
            break
        pause.wait(0.002)
    num_empty = 0
    for _look in range(NUM_LOOKS):
        pause.wait(0.002)
        num_empty += bench.workers._inbox.empty()
    gate.is_up = True
    bench.workers.wait(shut)
    assert bench.on_disk(0)[0] == 5
    bench.workers.close()
    return num_empty


def test_a_job_that_is_handed_over_twice_is_done_once(bench: Bench) -> None:
    """The caller was interrupted between handing it over and noting that."""
    bench.files.hold()
    job = bench.write(1, 4)
    bench.workers.start(job, [])
    job.is_started = False
    bench.workers.start(job, [])
    bench.files.let_go()
    bench.workers.wait(job)
    last = bench.write(2, 2)
    bench.workers.start(last, [job])
    bench.workers.wait(last)
    assert len(bench.files.transfers) == 2


@pytest.mark.parametrize("was_handed_over", [False, True])
def test_an_interrupted_start_is_waited_for(bench: Bench, was_handed_over: bool) -> None:
    job = bench.write(1, 4, Gate() if was_handed_over is False else None)
    if was_handed_over:
        bench.workers.start(job, [])
        bench.files.wait_for_transfers(1)
        job.is_started = False
    bench.workers.wait(job)
    assert job.is_done and bench.on_disk(1)[0] == (4 if was_handed_over else 0)
    assert job.read_error is None and job.write_errors == []


def test_followers_begin_in_whatever_order_jobs_are_seen(bench: Bench) -> None:
    bench.files.hold()
    jobs: list[DiskJob] = []
    for index in range(20):
        job = bench.write(0, index % 8)
        bench.workers.start(job, list(jobs))
        jobs.append(job)
    bench.files.let_go()
    bench.workers.wait(jobs[-1])
    assert all(job.is_done for job in jobs) and bench.on_disk(0)[0] == 19 % 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_no_call_waits_in_a_forked_process(bench: Bench) -> None:
    bench.files.hold()
    job = bench.write(0, 3)
    bench.workers.start(job, [])
    bench.files.wait_until_held(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)
            bench.workers.drain_until(1e12)
            try:
                bench.workers.wait(job)
            except LogicError:
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    bench.files.let_go()
    bench.workers.wait(job)
    assert bench.on_disk(0)[0] == 3


def test_closing_twice_and_without_threads() -> None:
    workers = DiskWorkers(2)
    workers.close()
    workers.close()
    bench = Bench()
    bench.run(bench.write(0, 1))
    bench.workers.close()
    bench.workers.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the system shows no names of threads")
def test_threads_have_names() -> None:
    bench = Bench()
    bench.run(bench.write(0, 1))
    expected = {"kvcm-disk-0", "kvcm-disk-1", "kvcm-disk-2"}
    for _ in range(10000):
        names = {Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")}
        if expected <= names:
            break
        os.sched_yield()
    assert expected <= names
    bench.workers.close()
