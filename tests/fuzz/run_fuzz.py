"""Fuzz the targets with atheris, one after the other, each for so many seconds.

    python -P tests/fuzz/run_fuzz.py [--seconds 60] [--only journal] [--corpus build/fuzz]

atheris (the extra `fuzz`) sees which lines an input reaches, so run it on the interpreted build; on the compiled one it only sees
crashes of the interpreter. What was found lies in the corpus folder as `crash-...`; `--input FILE --only TARGET` runs it again.
The exit status is 1 if something was found.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def fuzz_here(name: str, seconds: int, corpus: Path) -> None:
    """Does not return."""
    import atheris

    with atheris.instrument_imports(include=["kv_cache_manager_v2"]):
        import targets
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for position, data in enumerate(targets.make_seeds(name)):
        (folder / f"seed{position}").write_bytes(data)

    def run(data: bytes) -> None:
        targets.run_target(name, data)

    arguments = [sys.argv[0], f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", "-timeout=60", "-rss_limit_mb=4096"]
    atheris.Setup([*arguments, "-max_len=4096", "-print_final_stats=1", str(folder)], run)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description="Whatever comes from outside is served or refused by a named error.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--only", help="one target")
    parser.add_argument("--corpus", default="build/fuzz", help="what is tried, and what was found (default build/fuzz)")
    parser.add_argument("--input", help="run this file through the target and let it raise what it raises")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        fuzz_here(options.only, options.seconds, Path(options.corpus))
    import targets

    if options.input is not None:
        served = targets.run_target(options.only, Path(options.input).read_bytes())
        print("served" if served else "refused by a named error")
        return 0
    failed: list[str] = []
    for name in [options.only] if options.only else targets.TARGETS:
        print(f"== {name}, {options.seconds} s", flush=True)
        command = [sys.executable, "-P", __file__, "--here", "--only", name, "--seconds", str(options.seconds)]
        if subprocess.run([*command, "--corpus", options.corpus], env=os.environ).returncode != 0:
            failed.append(name)
    print(f"found something: {', '.join(failed)}" if failed else "nothing was found")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
