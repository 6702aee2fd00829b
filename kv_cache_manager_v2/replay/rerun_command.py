"""The command ``rerun``: do the calls of a journal again and compare every decision."""

import argparse
import sys
from pathlib import Path
from typing import Final

from .. import CorruptedError, HostDevice
from ..journal.journal_reader import JournalError
from .rerun import RerunMismatch, rerun

RERUN_HELP: Final = "do the calls of a journal again and compare every decision"


def add_rerun_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="a file that KVCacheManager(..., journal=FILE) wrote")
    parser.add_argument("--check-invariants", action="store_true", help="after every call (slow)")


def run_rerun_command(options: argparse.Namespace, exit_wrong: int, exit_bad_input: int) -> int:
    device = HostDevice()
    try:
        result = rerun(Path(options.journal), device, options.check_invariants)
    except JournalError as error:
        sys.stderr.write(f"kvcm: {options.journal}: {error}\n")
        return exit_bad_input
    except (RerunMismatch, CorruptedError) as finding:  # another name: mypyc gives one name one type
        sys.stderr.write(f"kvcm: {options.journal}: {finding}\n")
        return exit_wrong
    sys.stdout.write(
        f"{result.num_calls} calls, digest {result.digest.hex()}: equal at all {result.num_digests} points of comparison\n"
    )
    return 0
