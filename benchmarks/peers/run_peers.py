"""`make bench-peers`: the cache managers of vLLM and SGLang beside this one, on the same work; writes docs/comparison.md.

    python -P benchmarks/peers/run_peers.py --compiled build/compiled [--rounds 5] [--only vllm]

Each peer is installed from the package index into an environment of its own under build/peers, with the torch that it pins and the
packages that importing its cache manager takes; that is some 10 GB and ten minutes the first time. Then each has a process on the same
core, and in every round all do a piece of work in turn. A peer that cannot be installed or imported is left out, and the page says so.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parent))

from peer_workloads import BETWEEN, WORK  # noqa: E402

FOLDER: Final = Path(__file__).resolve().parent
ROOT: Final = FOLDER.parents[1]
ENVIRONMENTS: Final = ROOT / "build" / "peers"

PACKAGES: Final = {"vllm": "vllm", "sglang": "sglang"}
NEEDED: Final = {
    "vllm": "aiohttp apache-tvm-ffi cachetools cbor2 certifi cloudpickle fastapi filelock huggingface-hub llguidance msgspec multidict"
    " numpy openai openai-harmony opentelemetry-api partial-json-parser pillow prometheus-client psutil py-cpuinfo pybase64 pydantic"
    " pyyaml pyzmq regex requests safetensors setuptools starlette tokenizers torch tqdm transformers typing-extensions uvloop xgrammar",
    "sglang": "aiohttp apache-tvm-ffi compressed-tensors dill fastapi gguf ipython msgspec numpy openai orjson packaging"
    " partial-json-parser pillow psutil pybase64 pydantic pyzmq regex requests sentencepiece torch tqdm transformers",
}
"""Of the many requirements of each package those that importing its cache manager takes; their versions are within the package's own
upper bounds."""

PIN: Final = """
import importlib.metadata, re, sys
from pip._vendor.packaging.requirements import Requirement
wanted = set(sys.argv[2:])
found = set()
for text in importlib.metadata.requires(sys.argv[1]) or []:
    one = Requirement(text)
    name = re.sub(r"[-_.]+", "-", one.name).lower()
    if name in wanted and (one.marker is None or one.marker.evaluate({"extra": ""})):
        found.add(name)
        # The newest is new enough; an index may lag behind a lower bound that nothing here needs.
        print(one.name + ",".join(str(bound) for bound in one.specifier if not bound.operator.startswith(">")))
print(*sorted(wanted - found))  # which it gets through others of its requirements
"""

ROWS: Final = [
    ("cold", "ns", "a new prompt of 8k tokens: match, allocate, publish, free", "ns a block"),
    ("warm", "ns", "a cached prompt of 32k tokens, the same calls", "ns a block"),
    ("look_up", "ns", "how much of a prompt of 32k is cached", "ns a block"),
    ("full_pool", "ns", "a new prompt of 8k in a full pool: each block evicts one", "ns a block"),
    ("decode", "ns", "a decode step of 64 sequences", "ns a token"),
    ("trace", "ms", "60 chats of 4 turns, 12 at a time, in half the memory they would use", "ms in all"),
    ("cold_windows", "ns", "a new prompt, full attention and a window of 1024", "ns a block"),
    ("decode_windows", "ns", "a decode step, full attention and a window of 1024", "ns a token"),
]


BETWEEN_STEPS: Final = [work + BETWEEN for work, *_ in ROWS if work + BETWEEN in WORK]


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command[:6]))} ...:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def install(name: str, requirement: str, torch: str) -> Path:
    """The Python of the peer's environment, which is made if it is not there. ``torch``: what to install in place of the pinned one."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    mark = folder / "ready"
    asked = f"{requirement} {torch}"
    if mark.exists() and mark.read_text(encoding="utf-8") == asked:
        return python
    print(f"installing {asked} into {folder.relative_to(ROOT)}: minutes", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    pip = (python, "-m", "pip", "install", "--quiet")
    run(*pip, "--no-deps", requirement)
    pinned = run(python, "-P", "-c", PIN, PACKAGES[name], *NEEDED[name].split()).split()
    run(*pip, *[one for one in pinned if not (torch and one.startswith("torch="))], *torch.split())
    mark.write_text(asked, encoding="utf-8")
    return python


class Worker:
    """One peer in its process, on the given core; `describe` is what it says of itself."""

    def __init__(self, name: str, python: Path, path: str, core: int) -> None:
        variables = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "KV_CACHE_MANAGER_V2_DEVICE": "host"}
        self.name = name
        self.log = (ENVIRONMENTS / f"{name}.log").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [python, "-P", FOLDER / "peer_process.py", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=variables,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        self.describe = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            raise RuntimeError(f"{self.name} has ended:\n{self.log.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, work: str) -> dict[str, float]:
        assert self.process.stdin is not None
        print(work, file=self.process.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


Results = dict[str, dict[str, list[dict[str, float]]]]
"""By worker and work, the figures of each round."""


def measure(workers: list[Worker], num_rounds: int) -> Results:
    results: Results = {worker.name: {} for worker in workers}
    works = ["memory", *[row[0] for row in ROWS], *BETWEEN_STEPS]
    for number in range(num_rounds):
        for work in works:
            for worker in workers if number % 2 == 0 else reversed(workers):
                if (work == "memory" and number > 0) or ("_windows" in work and not worker.describe["windowed"]):
                    continue
                results[worker.name].setdefault(work, []).append(worker.ask(work))
        print(f"round {number + 1} of {num_rounds}", flush=True)
    return results


def processor() -> str:
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def figures(results: Results, name: str, work: str, key: str) -> list[float]:
    return [one[key] for one in results[name].get(work, [])]


def shown(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def spread(values: list[float]) -> str:
    return f"{shown(statistics.median(values))} ({shown(max(values))})" if values else "-"


def ratio(mine: list[float], others: list[float]) -> str:
    """The median of the ratios of the rounds, in which both ran one after the other."""
    if not others:
        return "-"
    found = statistics.median(other / own for own, other in zip(mine, others, strict=True))
    return f"{found:.1f}" if found >= 1 else f"{found:.2f}"


def table(header: list[str], rows: list[list[str]], first_columns: int) -> str:
    lines = [header, ["---" if index < first_columns else "---:" for index in range(len(header))], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_page(workers: list[Worker], results: Results, missing: dict[str, str], num_rounds: int) -> str:
    names = [worker.name for worker in workers]
    titles = [worker.describe["name"] for worker in workers]
    peers = [name for name in names if name not in ("ours", "tuned")]
    versions = "\n".join(f"- {worker.describe['name']}: {worker.describe['version']}" for worker in workers)

    def times(suffix: str) -> list[list[str]]:
        return [
            [text, unit, *[spread(figures(results, name, work + suffix, key)) for name in names]]
            + [ratio(figures(results, "ours", work + suffix, key), figures(results, name, work + suffix, key)) for name in peers]
            for work, key, text, unit in ROWS
            if work + suffix in WORK
        ]

    longest = [
        [text, *[spread(figures(results, name, work, "longest_us")) for name in names]]
        for work, _, text, _ in ROWS
        if any(figures(results, name, work, "longest_us") for name in names)
    ]
    rest = [
        ["host memory of a cached block, bytes", *[spread(figures(results, name, "memory", "bytes")[:1]) for name in names]],
        ["prompt tokens reused in the chats, %", *[spread(figures(results, name, "trace", "hit_percent")[:1]) for name in names]],
    ]
    beside = [f"{worker.describe['name']} / ours" for worker in workers if worker.name in peers]
    return (FOLDER / "page.md").read_text(encoding="utf-8").format(
        date=time.strftime("%Y-%m-%d"),
        machine=f"{processor()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        load=f"{os.getloadavg()[0]:.1f}",
        rounds=num_rounds,
        versions=versions + "".join(f"\n- {name}: left out, {reason}" for name, reason in missing.items()),
        times=table(["work", "unit", *titles, *beside], times(""), 2),
        between=table(["work", "unit", *titles, *beside], times(BETWEEN), 2),
        longest=table(["longest call of", *titles], longest, 1),
        rest=table(["", *titles], rest, 1),
        features=(FOLDER / "features.md").read_text(encoding="utf-8"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", required=True, help="the folder of the compiled build of this library")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=sorted(PACKAGES), default=sorted(PACKAGES), help="these peers")
    parser.add_argument("--vllm", default="vllm", help="what to install, such as vllm==0.33.0")
    parser.add_argument("--sglang", default="sglang")
    parser.add_argument("--torch", default="", help="instead of the torch that each pins, such as 'torch==2.13.0+cpu triton'")
    parser.add_argument("--core", type=int, default=(os.cpu_count() or 1) - 1)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "comparison.md")
    options = parser.parse_args()
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    workers = [Worker(name, Path(sys.executable), options.compiled, options.core) for name in ("ours", "tuned")]
    missing: dict[str, str] = {}
    for name in options.only:
        try:
            workers.append(Worker(name, install(name, getattr(options, name), options.torch), "", options.core))
        except RuntimeError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            missing[name] = "it could not be installed or imported here"
    results = measure(workers, options.rounds)
    page = write_page(workers, results, missing, options.rounds)
    for worker in workers:
        worker.close()
    (ROOT / "build" / "peers.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    options.output.write_text(page, encoding="utf-8")
    print(f"wrote {options.output} and build/peers.json")


if __name__ == "__main__":
    main()
