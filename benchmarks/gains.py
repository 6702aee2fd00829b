"""`make gains`: vLLM's own scheduler with its cache manager and with this library's, on the same requests; writes docs/gains.md.

    python -P benchmarks/gains.py [--loads chat] [--requests 300] [--models gemma] [--engines ours] [--add]

No model and no card: vLLM's real scheduler (`tests/integrations/vllm_scheduling.py`) gets requests at the times of a trace, and a clock
that a step-time model moves. Each run is a process. Scheduler time is measured; all else follows from what the schedulers decide.
"""

import argparse
import gc
import importlib
import itertools
import json
import math
import multiprocessing
import os
import platform
import random
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = Path(os.environ.get("KV_CACHE_MANAGER_V2_TRACES") or ROOT.parent / "shared" / "traces")
TRACE_BLOCK: Final = 512
FORK: Final = multiprocessing.get_context("fork")
ENGINES: Final = ("stock", "ours", "lru")
"""vLLM's cache manager, and this library with its default policy and with vLLM's."""
BUSY: Final = 0.6


@dataclass(frozen=True)
class Card:
    """What a step-time model asks of cards: memory, and what is reached of bandwidth and arithmetic."""

    name: str
    memory_bytes: float
    bandwidth: float
    flops: float
    step_seconds: float = 0.004
    """Launches, sampling, and all that depends on nothing."""


H100 = Card("H100 80 GB", 80e9, 3.35e12 * 0.7, 989e12 * 0.45)
H200 = Card("H200 141 GB", 141e9, 4.8e12 * 0.7, 989e12 * 0.45)


@dataclass(frozen=True)
class Model:
    """Layers, and the sizes that are published of them. ``token_bytes``: key and value of a token in a layer."""

    name: str
    layers: tuple[str, ...]
    window: int
    token_bytes: int
    queries_for_key: int
    """Heads of queries for a head of keys."""
    weight_bytes: float
    parameters: float
    active_parameters: float
    card: Card
    num_cards: int = 1
    max_length: int = 131072
    block_size: int = 16
    blocks: int = 0
    """Of vLLM's pool, where that does not follow from the card."""
    step_tokens: int = 8192
    max_running: int = 256

    def cards(self) -> str:
        return f"{self.num_cards} x {self.card.name}" if self.num_cards > 1 else self.card.name

    def num_blocks(self) -> int:
        """Of vLLM's pool: 0.9 of the memory, less weights and 4 GB a card for activations; a block serves all layers of a group."""
        if self.blocks:
            return self.blocks
        num_bytes = self.num_cards * (0.9 * self.card.memory_bytes - 4e9) - self.weight_bytes
        # As vLLM divides layers: the kind with fewer layers is one group, and the others are groups of that size.
        group = min(self.layers.count(kind) for kind in set(self.layers))
        return int(num_bytes // (group * self.block_size * self.token_bytes))

    def step_seconds(self, lengths: list[tuple[int, int]]) -> float:
        """``lengths``: computed and new tokens of each request of a step."""
        num_tokens = sum(new for _, new in lengths)
        full, window = self.layers.count("full"), self.layers.count("window")
        read = pairs = 0.0
        for computed, new in lengths:
            end = computed + new
            read += full * end + window * min(end, self.window + new)
            pairs += new * (full * (computed + new / 2) + window * min(computed + new / 2, self.window))
        # Two operations for a parameter and a token; four for each number of a query that meets a key, which is half of two bytes a number.
        operations = 2 * self.active_parameters * num_tokens + pairs * self.queries_for_key * self.token_bytes
        # Of the experts those that some token chooses are read.
        share = 1 - (1 - self.active_parameters / self.parameters) ** num_tokens
        moved = self.weight_bytes * share + read * self.token_bytes
        reached = max(moved / self.card.bandwidth, operations / self.card.flops)
        return self.card.step_seconds + reached / self.num_cards


MODELS: Final = {
    "llama": Model("Llama 3.1 70B", ("full",) * 80, 0, 4096, 8, 141e9, 70.6e9, 70.6e9, H100, 4),
    "gemma": Model("Gemma 3 27B", (("window",) * 5 + ("full",)) * 10 + ("window",) * 2, 1024, 8192, 2, 54.8e9, 27.4e9, 27.4e9, H200),
    "gpt-oss": Model("gpt-oss-120b", ("window", "full") * 18, 128, 2048, 8, 63e9, 117e9, 5.1e9, H100, 1, 65536),
    "qwen3-next": Model("Qwen3-Next-80B-A3B", ("state", "state", "state", "full") * 12, 0, 2048, 8, 160e9, 80e9, 3e9, H200, 2, 131072, 544),
}


A_STEP: Final = Card("a step a second", 0, math.inf, math.inf, 1.0)
TINY: Final = {
    f"tiny-{blocks}{suffix}": Model(
        f"{blocks} blocks{label}", ("window",) * 5 + ("full",), 64, 512, 3, 0, 1, 1, A_STEP,
        max_length=640, block_size=32, blocks=blocks, step_tokens=step_tokens, max_running=16,
    )
    for step_tokens, suffix, label in ((512, "", ""), (64, "-small-steps", ", 64 tokens a step"))
    for blocks in (400, 200, 150, 100)
}  # fmt: skip


@dataclass(frozen=True)
class Load:
    """Requests: when they come, the tokens of their prompts in parts that are equal or not, and how many tokens they get."""

    at: float
    parts: tuple[tuple[int, int], ...]
    """An id, and how many tokens: equal ids are equal tokens."""
    num_new: int
    priority: int = 0
    """Lower ones come first."""

    def length(self) -> int:
        return sum(count for _, count in self.parts)

    def tokens(self) -> list[int]:
        found: list[int] = []
        for number, count in self.parts:
            draw = random.Random(number)
            found += [draw.randrange(1 << 17) for _ in range(count)]
        return found


def read_trace(name: str) -> list[Load]:
    path = FOLDER / name
    if not path.exists():
        raise FileNotFoundError(f"there is no {name} in {FOLDER}; KV_CACHE_MANAGER_V2_TRACES names the folder with the traces")
    loads = []
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        length = one["input_length"]
        parts = []
        for index, number in enumerate(one["hash_ids"]):
            parts.append((number, min(TRACE_BLOCK, length - index * TRACE_BLOCK)))
        loads.append(Load(one["timestamp"] / 1000, tuple(part for part in parts if part[1] > 0), max(1, one["output_length"])))
    return loads


def make_shared_prompts() -> list[Load]:
    """Forty system prompts of 500 to 4,000 tokens, often and rarely used, and behind each a question of its own."""
    draw = random.Random(42)
    prompts = [(10**6 + number, draw.randrange(500, 4000)) for number in range(40)]
    at = 0.0
    loads = []
    for number in range(2000):
        at += draw.expovariate(20.0)
        prompt = prompts[min(39, int(draw.paretovariate(0.8)) - 1)]
        loads.append(Load(at, (prompt, (2 * 10**6 + number, draw.randrange(20, 400))), draw.randrange(20, 400)))
    return loads


def make_forty() -> list[Load]:
    """Forty requests, one in two steps: 200 tokens that all begin with, a document that four share, and a question."""
    draw = random.Random(7)
    loads = []
    for number in range(40):
        document = (3 * 10**6 + number // 4, 150)
        loads.append(Load(2.0 * number, ((3 * 10**6 - 1, 200), document, (4 * 10**6 + number, draw.randrange(9, 100))), 24))
    return loads


PRIORITIES: Final = "priorities"
LOADS: Final = {
    "chat": ("conversation_first_4000.jsonl", 200),
    "agents": ("agents_80_sessions.jsonl", 100),
    "shared prompts": (None, 500),
    "a crowd": (None, 800),
    PRIORITIES: (None, 800),
}
"""The trace, if it is one, and how many requests of it."""


def loads_of(name: str, model: Model, limit: int | None) -> list[Load]:
    """Requests that fit the model, slower or faster than they came: computing all prompts would take `BUSY` of the time."""
    if name == "forty":
        return make_forty()
    path, count = LOADS[name]
    loads = make_shared_prompts() if path is None else read_trace(path)
    loads = [load for load in loads if load.length() + load.num_new <= model.max_length][: limit or count]
    if name == "a crowd":
        return [replace(load, at=0.0) for load in loads]
    if name == PRIORITIES:
        # Each comes while those before it are served, and one in three before all of them.
        return [replace(load, at=number * 0.02, priority=-(number % 3)) for number, load in enumerate(loads)]
    seconds = sum(model.step_seconds([(0, load.length())]) for load in loads)
    pace = seconds / BUSY / (loads[-1].at - loads[0].at)
    return [replace(load, at=load.at * pace) for load in loads]


# -- one run -----------------------------------------------------------------------------------------------------------------------------


class Served:
    """One engine serves one load."""

    def __init__(self, engine: Any, step_seconds: Any) -> None:
        self.engine = engine
        self.scheduler = engine.scheduler
        self.step_seconds = step_seconds
        self.now = 0.0
        self.free_at = 0.0
        """When the card has executed all that was dispatched."""
        self.in_flight: deque[Any] = deque()
        self.arrived: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.cpu_ns: list[int] = []
        self.preempted = self.num_steps = self.sum_running = self.num_cached = self.num_new = 0

    def run(self, loads: list[Load]) -> dict[str, Any]:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        coming = deque(enumerate(loads))
        preempt = self.scheduler._preempt_request

        def counted(*arguments: Any, **keywords: Any) -> None:
            self.preempted += 1
            preempt(*arguments, **keywords)

        self.scheduler._preempt_request = counted
        while coming or self.scheduler.has_requests() or self.in_flight:
            if not self.scheduler.has_requests() and not self.in_flight:
                self.now = max(self.now, coming[0][1].at)
            while coming and coming[0][1].at <= self.now:
                number, load = coming.popleft()
                sampling = SamplingParams(temperature=0, max_tokens=load.num_new, ignore_eos=True, detokenize=False)
                request = Request(
                    str(number), load.tokens(), sampling, None, arrival_time=load.at, block_hasher=self.engine.block_hasher,
                    priority=load.priority,
                )  # fmt: skip
                self.arrived[request.request_id] = load.at
                self.scheduler.add_request(request)
            self._step()
        waits = sorted(self.first[name] - self.arrived[name] for name in self.first)
        return {
            "requests": len(self.first),
            "steps": self.num_steps,
            "running": round(self.sum_running / max(1, self.num_steps), 2),
            "preemptions": self.preempted,
            "cached": self.num_cached,
            "ttft_p50": waits[len(waits) // 2],
            "ttft_p99": waits[min(len(waits) - 1, int(len(waits) * 0.99))],
            "tokens_a_second": self.num_new / self.now,
            "scheduler_us": statistics.mean(self.cpu_ns) / 1000,
            "scheduler_us_p99": sorted(self.cpu_ns)[int(len(self.cpu_ns) * 0.99)] / 1000,
        }

    def _step(self) -> None:
        begin = time.thread_time_ns()
        spent = 0
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            spent = time.thread_time_ns() - begin
            if output.total_num_scheduled_tokens:
                self.num_steps += 1
                self.sum_running += len(self.scheduler.running)
                self.free_at = max(self.free_at, self.now) + self.step_seconds(list(lengths_of(output)))
            self.in_flight.append((output, self.free_at, spent, self._result(output)))
            is_full = len(self.in_flight) >= self.engine.config.max_concurrent_batches
            if not is_full and output.total_num_scheduled_tokens:
                return
        if not self.in_flight:
            return
        output, done_at, spent, result = self.in_flight.popleft()
        self.now = max(self.now, done_at)
        begin = time.thread_time_ns()
        outputs = self.scheduler.update_from_output(output, result)
        spent += time.thread_time_ns() - begin
        if output.total_num_scheduled_tokens:
            self.cpu_ns.append(spent)
        for client in outputs.values():
            for one in client.outputs:
                self.num_new += len(one.new_token_ids)
                self.first.setdefault(one.request_id, self.now)
                if one.prefill_stats is not None:
                    self.num_cached += one.prefill_stats.num_cached_tokens

    def _result(self, output: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.scheduler.requests[name]
            # What was scheduled is counted as computed by now.
            is_prompt = request.num_computed_tokens < request.num_tokens
            sampled.append([] if is_prompt else [(request.num_computed_tokens * 7919 + int(name)) % (1 << 17)])
        return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)


def lengths_of(output: Any) -> Iterator[tuple[int, int]]:
    cached = output.scheduled_cached_reqs
    new = ((one.req_id, one.num_computed_tokens) for one in output.scheduled_new_reqs)
    for name, computed in itertools.chain(new, zip(cached.req_ids, cached.num_computed_tokens, strict=True)):
        yield computed, output.num_scheduled_tokens[name]


def run_one(model_name: str, load: str, engine_name: str, is_async: bool, limit: int | None) -> dict[str, Any]:
    from integrations.vllm_scheduling import Shape, make_scheduler

    gc.collect()
    gc.freeze()
    model = (MODELS | TINY)[model_name]
    shape = Shape(
        layers=model.layers, window=max(model.window, 1), block_size=model.block_size, num_blocks=model.num_blocks(),
        max_model_len=model.max_length, max_step_tokens=model.step_tokens, max_num_seqs=model.max_running, is_async=is_async,
        element_bytes=1, policy="priority" if load == PRIORITIES else "fcfs",
        additional={"kvcm_eviction_policy": "lru"} if engine_name == "lru" else {},
    )  # fmt: skip
    begin = time.perf_counter()
    engine = make_scheduler(shape, "stock" if engine_name == "stock" else "ours")
    started = time.perf_counter() - begin
    result = Served(engine, model.step_seconds).run(loads_of(load, model, limit))
    return result | {"start_seconds": round(started, 2), "seconds": round(time.perf_counter() - begin, 1)}


# -- all of them -------------------------------------------------------------------------------------------------------------------------


def run_apart(*arguments: Any) -> dict[str, Any]:
    """A run in a forked process, which has vLLM imported; where it raises, what."""
    here, there = FORK.Pipe(duplex=False)

    def run() -> None:
        try:
            there.send(run_one(*arguments))
        except Exception as error:
            there.send({"refused": str(error)})

    process = FORK.Process(target=run)
    process.start()
    there.close()
    result: dict[str, Any] = here.recv()
    process.join()
    return result


METRICS: Final = [
    ("steps", "steps", 0, False), ("running", "running", 1, True), ("preemptions", "preemptions", 0, False),
    ("cached", "cached tokens", 0, True), ("ttft_p50", "first token, p50, s", 2, False), ("ttft_p99", "p99, s", 2, False),
    ("tokens_a_second", "tokens a second", 0, True), ("scheduler_us", "scheduler, us a step", 0, False),
]  # fmt: skip
"""Key, title, digits, and whether more is better."""
NAMES: Final = {"stock": "vLLM", "ours": "this library", "lru": "by recency"}
Runs = dict[tuple[str, str, str], dict[str, Any]]


def table(runs: Runs, names: list[tuple[str, str]], models: dict[str, Model], first: str) -> str:
    lines = [f"| {first} | |" + "".join(f" {title} |" for _, title, _, _ in METRICS), "| --- | --- |" + " ---: |" * len(METRICS)]
    for model, load in names:
        for engine in [one for one in ENGINES if (model, load, one) in runs]:
            run = runs[model, load, engine]
            label = models[model].name if engine == "stock" else ""
            if "refused" in run:
                lines.append(f"| {label} | {NAMES[engine]} | refused: {run['refused'].partition(';')[0]} |" + " |" * (len(METRICS) - 1))
            else:
                lines.append(f"| {label} | {NAMES[engine]} |" + "".join(f" {run[key]:,.{digits}f} |" for key, _, digits, _ in METRICS))
    return "\n".join(lines)


def list_losses(runs: Runs, names: list[tuple[str, str]], models: dict[str, Model], other_engine: str) -> str:
    """What is worse by more than a hundredth than with another engine; of scheduler time that is chance between our own two."""
    lines = []
    for model, load in names:
        stock, ours = runs.get((model, load, other_engine)), runs[model, load, "ours"]
        if stock is None or "refused" in ours:
            continue
        for key, title, digits, is_more_better in METRICS[: len(METRICS) - (other_engine != "stock")]:
            mine, other = (ours[key], stock[key]) if is_more_better else (stock[key], ours[key])
            if key != "running" and mine < other * 0.99:
                shown = f"{title} {ours[key]:,.{digits}f}, {NAMES[other_engine]} {stock[key]:,.{digits}f}"
                lines.append(f"- {models[model].name}, {load}: {shown}")
    return "\n".join(lines) or "None."


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def write_page(runs: Runs, is_async: bool, limit: int | None, missing: list[str]) -> str:
    from vllm import __version__

    from kv_cache_manager_v2 import is_compiled

    large = [(model, load) for model in MODELS for load in LOADS if (model, load, "ours") in runs]
    sections = []
    for load in LOADS:
        names = [name for name in large if name[1] == load]
        if names:
            sections.append(f"### {load[0].upper()}{load[1:]}\n\n{table(runs, names, MODELS, 'model')}\n")
    for reason in missing:
        sections.append(f"Left out: {reason}\n")
    settings = [
        f"| {model.name} | {model.cards()} | {model.num_blocks():,} | {model.block_size} | {model.max_length:,} | {model.window or '-'} |"
        for name, model in MODELS.items()
        if any(name == one for one, _ in large)
    ]
    tiny = [(name, "forty") for name in TINY if (name, "forty", "ours") in runs]
    return (ROOT / "benchmarks" / "gains_page.md").read_text(encoding="utf-8").format(
        date=time.strftime("%Y-%m-%d"),
        version=__version__,
        build="compiled" if is_compiled() else "interpreted",
        machine=f"{processor()}, Python {platform.python_version()}",
        mode="asynchronous, two batches in flight" if is_async else "one batch in flight, since this library refuses more",
        counts=", ".join(f"{limit or count} ({load})" for load, (_, count) in LOADS.items()),
        busy=f"{BUSY:.0%}".replace("%", " %"),
        settings="\n".join(settings),
        tables="\n".join(sections),
        tiny=table(runs, tiny, TINY, "memory"),
        losses=list_losses(runs, large + tiny, MODELS | TINY, "stock"),
        recency=list_losses(runs, large + tiny, MODELS | TINY, "lru"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "LOAD", "ENGINE"), help="one run, as JSON")
    parser.add_argument("--synchronous", action="store_true", help="one batch in flight")
    parser.add_argument("--models", nargs="*", choices=[*MODELS, *TINY], default=[*MODELS, *TINY])
    parser.add_argument("--loads", nargs="*", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--add", action="store_true", help="keep the other rows of the last run, which are in build/gains.json")
    parser.add_argument("--requests", type=int, default=None, help="fewer requests of each load")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gains.md")
    options = parser.parse_args()
    is_async = not options.synchronous
    if options.one:
        model, load, engine = options.one
        print("RESULT " + json.dumps(run_one(model, load, engine, is_async, options.requests)))
        return
    importlib.import_module("integrations.vllm_scheduling")  # once, before the runs are forked

    if is_async and "refused" in run_apart("tiny-400", "forty", "ours", True, None):
        is_async = False
    missing = []
    loads = []
    for load in options.loads:
        path = LOADS[load][0]
        if path is not None and not (FOLDER / path).exists():
            missing.append(f"{load}, there is no {path} in {FOLDER}; KV_CACHE_MANAGER_V2_TRACES names the folder with the traces.")
            print("left out: " + missing[-1], flush=True)
        else:
            loads.append(load)
    runs: Runs = {}
    kept = ROOT / "build" / "gains.json"
    if options.add:
        runs = {(model, load, engine): run for model, load, engine, run in json.loads(kept.read_text(encoding="utf-8"))}
    kept.parent.mkdir(exist_ok=True)
    for model in options.models:
        for load in ["forty"] if model in TINY else loads:
            for engine in options.engines:
                runs[model, load, engine] = run = run_apart(model, load, engine, is_async, options.requests)
                print(f"{model}, {load}, {engine}: {json.dumps(run)}", flush=True)
                kept.write_text(json.dumps([[*name, run] for name, run in runs.items()], indent=1), encoding="utf-8")
    options.output.write_text(write_page(runs, is_async, options.requests, missing), encoding="utf-8")
    print(f"wrote {options.output} and build/gains.json")


if __name__ == "__main__":
    main()
