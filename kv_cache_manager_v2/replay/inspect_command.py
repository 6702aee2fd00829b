"""The command ``inspect``: a recorded state of a manager as text or as JSON."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from .. import CorruptedError, ExternalDevice
from ..journal.journal_format import MAGIC
from ..testing.journal_reader import JournalError
from .exit_codes import EXIT_BAD_INPUT, EXIT_OK
from .option_values import to_count
from .dump_text import MAX_TREE_LINES, describe_in_words
from .read_progress import ReadProgress
from .rerun import RerunMismatch, rerun_to

INSPECT_HELP: Final = "show a recorded state: tiers, pool groups, sequences, the tree"
_KEYS: Final = ("tokens_per_block", "life_cycles", "pool_group_of", "levels", "sequences", "tree")


def add_inspect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("state", metavar="FILE", help="a journal, or what describe() returned, as JSON")
    parser.add_argument("--call", type=to_count, metavar="N", help="of a journal: after its first N calls (default: all)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="the whole state dump as JSON instead of text")
    parser.add_argument(
        "--tree", type=to_count, default=MAX_TREE_LINES, metavar="N", help="blocks to list, 0 for all (default: %(default)s)"
    )


def run_inspect_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Returns the exit code; usage errors leave through ``parser.error``."""
    path = Path(options.state)
    progress = ReadProgress(sys.stderr, options.quiet)
    try:
        dump = _read_state_dump(path, options.call, progress)
    except (JournalError, RerunMismatch, CorruptedError, ValueError) as error:
        sys.stderr.write(f"kvcm: {path}: {error}\n")
        return EXIT_BAD_INPUT
    finally:
        progress.stop()
    if options.json:
        sys.stdout.write(json.dumps(dump, indent=1) + "\n")
    else:
        sys.stdout.write(describe_in_words(dump, options.tree))
    return EXIT_OK


def _read_state_dump(path: Path, num_calls: int | None, progress: ReadProgress) -> dict[str, Any]:
    data = path.read_bytes()
    if len(data) == 0:
        raise ValueError("it is empty; a journal is while nothing has been written out, and after its process was killed early")
    if data.startswith(MAGIC):
        if not path.is_file():
            raise ValueError("it is a pipe, and a journal is read twice; write it to a file first")
        # Only decisions matter here: no memory is needed, however large the recorded manager was.
        return rerun_to(path, ExternalDevice(), num_calls, lambda done, total: progress.update("doing again", done, total))
    if num_calls is not None:
        raise ValueError("only a journal can be looked at after some of its calls")
    try:
        dump = json.loads(data)
    except ValueError:
        dump = None
    if not isinstance(dump, dict) or any([key not in dump for key in _KEYS]):
        raise ValueError(f"neither a journal nor the JSON of describe(), which has {', '.join(_KEYS)}")
    return dump
