"""The command line: ``kvcm COMMAND ...``, or ``python -m kv_cache_manager_v2.replay COMMAND ...``, which replays by default.

Exit codes: `describe_exit_codes`. A trace that has bad lines (and no ``--skip-bad``) is not what it should be; what Ctrl-C ends has the
report so far.
"""

import argparse
import difflib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from .. import __version__
from .bad_input import BadInputError
from .cache_command import CACHE_HELP, add_cache_options, run_cache_command
from .compare_command import COMPARE_HELP, add_compare_options, run_compare_command
from .convert_command import CONVERT_HELP, add_convert_options, run_convert_command
from .exit_codes import EXIT_BAD_INPUT, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, describe_exit_codes
from .inspect_command import INSPECT_HELP, add_inspect_options, run_inspect_command
from .plan_command import PLAN_HELP, add_plan_options, run_plan_command
from .replay_command import add_replay_options, run_replay_command
from .replayer import PlanError
from .rerun_command import RERUN_HELP, add_rerun_options, run_rerun_command
from .result_file import WRITE_ERRORS

_REPLAY_HELP = "serve a trace or a made workload through the manager, and report"
COMMANDS: Final = ("replay", "convert", "rerun", "plan", "inspect", "compare-policies", "cache")


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
        # Names of files may have what its encoding does not.
        output.reconfigure(errors="backslashreplace")
    return _flush(_run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="kvcm", description="Tools around the KV-cache manager.", epilog="kvcm COMMAND --help says what its exit codes mean"
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    replay_parser = commands.add_parser(
        "replay", usage="kvcm replay [OPTION ...] [TRACE]", help=_REPLAY_HELP, description=_REPLAY_HELP,
        epilog=describe_exit_codes("replay"),
    )
    add_replay_options(replay_parser)
    rerun_parser = commands.add_parser("rerun", help=RERUN_HELP, description=RERUN_HELP, epilog=describe_exit_codes("rerun"))
    add_rerun_options(rerun_parser)
    plan_parser = commands.add_parser(
        "plan", usage="kvcm plan --gpu-memory BYTES [OPTION ...] [MODEL]", help=PLAN_HELP, description=PLAN_HELP,
        epilog=describe_exit_codes("plan"),
    )
    add_plan_options(plan_parser)
    inspect_parser = commands.add_parser(
        "inspect", usage="kvcm inspect [OPTION ...] FILE", help=INSPECT_HELP, description=INSPECT_HELP,
        epilog=describe_exit_codes("inspect"),
    )
    add_inspect_options(inspect_parser)
    compare_parser = commands.add_parser(
        "compare-policies", usage="kvcm compare-policies [OPTION ...] [TRACE ...]", help=COMPARE_HELP, description=COMPARE_HELP,
        epilog=describe_exit_codes("compare-policies"),
    )  # fmt: skip
    add_compare_options(compare_parser)
    convert_parser = commands.add_parser(
        "convert", usage="kvcm convert [OPTION ...] IN OUT", help=CONVERT_HELP, description=CONVERT_HELP,
        epilog=describe_exit_codes("convert"),
    )
    add_convert_options(convert_parser)
    cache_parser = commands.add_parser("cache", help=CACHE_HELP, description=CACHE_HELP, epilog=describe_exit_codes("cache"))
    add_cache_options(cache_parser)
    try:
        options, unknown = parser.parse_known_args(argv)
        if len(unknown) > 0:
            _refuse(commands.choices[options.command], unknown)
        if options.command == "convert":
            return run_convert_command(options, convert_parser)
        if options.command == "plan":
            return run_plan_command(options, plan_parser)
        if options.command == "inspect":
            return run_inspect_command(options, inspect_parser)
        if options.command == "compare-policies":
            return run_compare_command(options, compare_parser)
        if options.command == "cache":
            return run_cache_command(options)
        if options.command == "rerun":
            return run_rerun_command(options)
        return run_replay_command(options, replay_parser, (sys.argv[1:] if argv is None else argv)[1:])
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
        return _say(f"{failure.filename}: {failure.strerror}")
    except KeyboardInterrupt:
        sys.stderr.write("kvcm: interrupted\n")
        return EXIT_INTERRUPTED


def _refuse(parser: argparse.ArgumentParser, unknown: list[str]) -> None:
    """Leave through ``parser.error``, with the option that was perhaps meant."""
    given = unknown[0].split("=")[0]
    words = [word.strip("[]|,.") for word in parser.format_help().split()]
    near = difflib.get_close_matches(given, [word for word in words if word.startswith("--")], 1) if given.startswith("-") else []
    hint = f"did you mean {near[0]}?" if near else f"{parser.prog} --help lists what there is"
    parser.error(f"unrecognized arguments: {' '.join(unknown)}; {hint}")


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
