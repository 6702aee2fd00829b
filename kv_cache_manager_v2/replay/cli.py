"""The command line: ``kvcm COMMAND ...``, which is ``python -m kv_cache_manager_v2 COMMAND ...``.

Exit codes: `describe_exit_codes`. A trace that has bad lines (and no ``--skip-bad``) is not what it should be; what Ctrl-C ends has the
report so far.
"""

import argparse
import difflib
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from .. import __version__
from .bad_input import BadInputError
from .cache_command import CACHE_HELP, add_cache_options, run_cache_command
from .compare_command import COMPARE_HELP, add_compare_options, run_compare_command
from .convert_command import CONVERT_HELP, add_convert_options, run_convert_command
from .exit_codes import EXIT_BAD_INPUT, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, describe_exit_codes
from .inspect_command import INSPECT_HELP, add_inspect_options, run_inspect_command
from .learn_command import LEARN_HELP, add_learn_options, run_learn_command
from .plan_command import PLAN_HELP, add_plan_options, run_plan_command
from .replay_command import REPLAY_HELP, add_replay_options, run_replay_command
from .replayer import PlanError
from .rerun_command import RERUN_HELP, add_rerun_options, run_rerun_command
from .result_file import WRITE_ERRORS
from .selftest_command import SELFTEST_HELP, add_selftest_options, run_selftest_command

Add: TypeAlias = Callable[[argparse.ArgumentParser], None]
Run: TypeAlias = Callable[[argparse.Namespace, argparse.ArgumentParser], int]


def _run_rerun(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    return run_rerun_command(options)


def _run_cache(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    return run_cache_command(options)


_COMMANDS: Final[dict[str, tuple[str | None, str, Add, Run]]] = {
    "replay": ("[OPTION ...] [TRACE]", REPLAY_HELP, add_replay_options, run_replay_command),
    "plan": ("--gpu-memory BYTES [OPTION ...] [MODEL]", PLAN_HELP, add_plan_options, run_plan_command),
    "convert": ("[OPTION ...] IN OUT", CONVERT_HELP, add_convert_options, run_convert_command),
    "compare-policies": ("[OPTION ...] [TRACE ...]", COMPARE_HELP, add_compare_options, run_compare_command),
    "learn": ("[OPTION ...] -o FILE TRACE [TRACE ...]", LEARN_HELP, add_learn_options, run_learn_command),
    "rerun": (None, RERUN_HELP, add_rerun_options, _run_rerun),
    "inspect": ("[OPTION ...] FILE", INSPECT_HELP, add_inspect_options, run_inspect_command),
    "cache": (None, CACHE_HELP, add_cache_options, _run_cache),
    "selftest": (None, SELFTEST_HELP, add_selftest_options, run_selftest_command),
}
"""Usage (None: made by argparse), help, options, and what runs it."""
COMMANDS: Final = tuple(_COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of ``kvcm``; ``argv`` without the program's name. Returns the exit code."""
    errors: object = sys.stderr
    if errors is None:
        # It was closed before the program began; the exit code says what there is to say.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    output: object = sys.stdout
    if output is None:
        return _say("there is no standard output")
    if isinstance(output, io.TextIOWrapper):
        # Names of files may have what its encoding does not. What argparse writes is checked when it is flushed, by `_flush` alone.
        output.reconfigure(errors="backslashreplace", write_through=False)
    return _flush(_run(argv))


def make_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of all, and each command's own."""
    parser = argparse.ArgumentParser(
        prog="kvcm", description="Tools around the KV-cache manager.", epilog="kvcm COMMAND --help says what its exit codes mean"
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (usage, text, add, _) in _COMMANDS.items():
        command = commands.add_parser(
            name, usage=None if usage is None else f"kvcm {name} {usage}", help=text, description=text, epilog=describe_exit_codes(name)
        )
        add(command)
    return parser, commands.choices


def _run(argv: Sequence[str] | None) -> int:
    parser, commands = make_parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if len(arguments) == 0:
            parser.print_help()
            return EXIT_OK
        if not arguments[0].startswith("-") and arguments[0] not in commands:
            parser.error(f"no command {arguments[0]!r}; {_suggest(arguments[0], COMMANDS, parser.prog)}")
        options, unknown = parser.parse_known_args(arguments)
        if len(unknown) > 0 or options.command is None:
            _refuse(parser if options.command is None else commands[options.command], unknown)
        options.arguments = arguments[1:]
        return _COMMANDS[options.command][3](options, commands[options.command])
    except SystemExit as leaving:
        # argparse has said what is wrong, or what the options are.
        return leaving.code if isinstance(leaving.code, int) else EXIT_USAGE
    except PlanError as error:
        sys.stderr.write(f"kvcm: {error}\n")
        return EXIT_USAGE
    except BadInputError as bad_input:
        return _say(str(bad_input))
    except OSError as failure:  # another name: mypyc gives one name one type
        if failure.filename is None:
            if failure.errno == errno.EPIPE:
                return EXIT_BROKEN_PIPE
            # Files are named where they are written.
            return _say(f"standard output: {failure.strerror}" if failure.errno in WRITE_ERRORS else str(failure))
        return _say(f"{failure.filename or repr('')}: {failure.strerror}")
    except KeyboardInterrupt:
        sys.stderr.write("kvcm: interrupted\n")
        return EXIT_INTERRUPTED


def _refuse(parser: argparse.ArgumentParser, unknown: list[str]) -> None:
    """Leave through ``parser.error``, with the option that was perhaps meant."""
    given = unknown[0].split("=")[0] if len(unknown) > 0 else ""
    words = [word.strip("[]|,.") for word in parser.format_help().split()]
    options = [word for word in words if word.startswith("--")] if given.startswith("-") else []
    parser.error(f"unrecognized arguments: {' '.join(unknown)}; {_suggest(given, options, parser.prog)}")


def _suggest(given: str, names: Sequence[str], program: str) -> str:
    near = difflib.get_close_matches(given, names, 1)
    return f"did you mean {near[0]}?" if near else f"{program} --help lists what there is"


def _say(text: str) -> int:
    sys.stderr.write(f"kvcm: {text}\n")
    return EXIT_BAD_INPUT


def _flush(code: int) -> int:
    """The exit code, once output that may still be buffered is written: the disk may be full."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Otherwise the interpreter tries again at exit.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        if error.errno == errno.EPIPE:
            return EXIT_BROKEN_PIPE if code == EXIT_OK else code
        return code if code != EXIT_OK else _say(f"standard output: {error.strerror}")
    return code


def replay_main(argv: Sequence[str] | None = None) -> int:
    """``kvcm`` for arguments that begin with one of its commands, ``kvcm replay`` for all others."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) > 0 and arguments[0] in COMMANDS:
        return main(arguments)
    return main(["replay", *arguments])
