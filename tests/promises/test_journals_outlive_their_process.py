"""A process that is killed, or whose disk is full, leaves a journal that runs again up to its last whole record."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import config_of

from kv_cache_manager_v2 import HostDevice, KVCacheManager
from kv_cache_manager_v2.journal.journal_format import DIGEST_EVERY
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.rerun import RerunResult, rerun

NUM_PROMPTS = 40
PROMPT_TOKENS = 2000
"""4 bytes each: 320 KB in all, several times what is buffered, so that a part is in the file long before the end."""
CHILD = """
import resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_journals_outlive_their_process import serve
serve(Path(sys.argv[1]), int(sys.argv[2]))
"""


def serve(path: Path, max_bytes: int) -> None:
    """In a process of its own: no file may be longer than that, or any if 0; ends with the digest of all decisions."""
    with KVCacheManager(config_of([None, 8], num_slots=1200), device=HostDevice(), journal=path) as manager:
        if max_bytes > 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
        for number in range(NUM_PROMPTS):
            prompt = [number * 7 + token for token in range(PROMPT_TOKENS)]
            with manager.create_kv_cache(input_tokens=prompt) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(PROMPT_TOKENS)
                kv_cache.commit(prompt[kv_cache.num_committed_tokens :])
                for length in range(PROMPT_TOKENS, PROMPT_TOKENS + 30):
                    assert kv_cache.resize(length + 1)
                    kv_cache.commit([length])
        manager.check_invariants()
        print(manager.state_digest().hex())


def start(path: Path, max_bytes: int) -> subprocess.Popen[str]:
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    command = [sys.executable, "-P", "-c", CHILD, str(path), str(max_bytes), *folders]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_wherever_a_journal_ends_its_whole_records_run_again(tmp_path: Path) -> None:
    """Cut behind every byte. Where records end is known from the length of the file after each call."""
    path = tmp_path / "calls.journal"
    ends: list[int] = []
    with KVCacheManager(config_of([None, 8], num_slots=60), device=HostDevice(), journal=path) as manager:
        manager.flush_journal()
        begin = path.stat().st_size

        kv_cache = manager.create_kv_cache(None, [1, 2, 3, 4, 5])
        for call in (
            lambda: None,
            lambda: kv_cache.resume(),
            lambda: kv_cache.resize(9),
            lambda: kv_cache.resize(10, 5),
            lambda: kv_cache.commit([1, 2, 3, 4, 5, 6]),
            lambda: kv_cache.commit([b"digest", 300]),
            lambda: kv_cache.commit([7]),
            lambda: kv_cache.suspend(),
            lambda: manager.probe_reuse(None, [1, 2]),
            lambda: kv_cache.close(),
        ):
            call()
            manager.flush_journal()
            ends.append(path.stat().st_size)
    data = path.read_bytes()
    assert len(data) == ends[-1] + 9, "the digest at the end"
    cut_file = tmp_path / "cut"
    for length in range(begin, len(data)):
        cut_file.write_bytes(data[:length])
        whole = [end for end in ends if end <= length]
        result = rerun(cut_file, HostDevice())
        assert (result.num_calls, result.num_torn_bytes) == (len(whole), length - max(whole, default=begin))
    assert rerun(path, HostDevice()).num_torn_bytes == 0


def require_runs_again(path: Path, capsys: pytest.CaptureFixture[str]) -> RerunResult:
    """Decisions are compared up to the last whole record, and the command says what it left out."""
    result = rerun(path, HostDevice())
    assert result.num_calls > 0 and result.num_digests >= (result.num_calls - 1) // DIGEST_EVERY
    assert main(["rerun", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"{result.num_calls} calls" in said
    assert ("ends inside a record" in said) == (result.num_torn_bytes > 0)
    return result


@pytest.mark.parametrize("num_bytes", [1, 100_000, 150_001])
def test_killed_process(tmp_path: Path, capsys: pytest.CaptureFixture[str], num_bytes: int) -> None:
    """As soon as the file has so many bytes, whatever is being done then."""
    path = tmp_path / "calls.journal"
    with start(path, 0) as process:
        while not path.exists() or path.stat().st_size < num_bytes:
            assert process.poll() is None, process.communicate()
            os.sched_yield()
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    require_runs_again(path, capsys)


@pytest.mark.parametrize("max_bytes", [70_003, 123_457])
def test_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], max_bytes: int) -> None:
    """The service goes on, with the same decisions; the file ends where there was no room any more."""
    path = tmp_path / "calls.journal"
    with start(path, 0) as process:
        wanted, _said = process.communicate()
    assert process.returncode == 0
    with start(path, max_bytes) as process:
        found, said = process.communicate()
    assert process.returncode == 0 and found == wanted
    assert said.count("the manager goes on") == 1
    assert path.stat().st_size == max_bytes
    assert require_runs_again(path, capsys).num_calls < 64 * NUM_PROMPTS
