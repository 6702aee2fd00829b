"""The command ``rerun``: do the calls of a journal again and compare every decision."""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from .. import CorruptedError, HostDevice
from ..testing.journal_reader import JournalError
from .exit_codes import EXIT_BAD_INPUT, EXIT_OK, EXIT_WRONG
from .read_progress import ReadProgress
from .rerun import RerunMismatch, rerun

RERUN_HELP: Final = "do the calls of a journal again and compare every decision"


def add_rerun_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="a file that KVCacheManager(..., journal=FILE) wrote")
    parser.add_argument("--check-invariants", action="store_true", help="after every call (slow)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="the result as JSON instead of a sentence")


def run_rerun_command(options: argparse.Namespace) -> int:
    device = HostDevice()
    progress = ReadProgress(sys.stderr, options.quiet)
    try:
        result = rerun(
            Path(options.journal), device, options.check_invariants, lambda done, total: progress.update("doing again", done, total)
        )
    except JournalError as error:
        sys.stderr.write(f"kvcm: {options.journal}: {error}\n")
        return EXIT_BAD_INPUT
    except (RerunMismatch, CorruptedError) as finding:  # another name: mypyc gives one name one type
        sys.stderr.write(f"kvcm: {options.journal}: {finding}\n")
        return EXIT_WRONG
    finally:
        progress.stop()
    if options.json:
        figures = {
            "calls": result.num_calls, "digest": result.digest.hex(), "digests_compared": result.num_digests,
            "torn_bytes": result.num_torn_bytes
        }  # fmt: skip
        sys.stdout.write(json.dumps(figures) + "\n")
        return EXIT_OK
    verdict = f"equal at all {result.num_digests} points of comparison"
    if result.num_digests == 0:
        verdict = "their results are equal; the journal ends before its first digest, so nothing else was compared"
    elif result.num_digests == 1:
        verdict = "equal at the one point of comparison"
    sys.stdout.write(f"{result.num_calls} calls, digest {result.digest.hex()}: {verdict}\n")
    if result.num_torn_bytes > 0:
        sys.stdout.write(
            f"the journal ends inside a record: its process was killed, or its disk was full; the last {result.num_torn_bytes} bytes are"
            " left out\n"
        )
    return EXIT_OK
