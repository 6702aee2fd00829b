"""The command ``convert``: any log that ``replay`` reads, as JSON lines in Mooncake's format with block ids.

What the reader knows is kept: `ConvertedReader` makes the same requests of it. For other readers of the format each line has ids of its
prompt's blocks of ``--block`` tokens, and the first request of its session. The notes on the log are in the first line. The file appears
when all is written.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from typing import IO, Any, Final

from .exit_codes import EXIT_BAD_INPUT, EXIT_OK
from .log_option import add_log_options, make_log_options
from .option_values import require_apart, require_writable, to_positive
from .read_progress import ReadProgress
from .result_file import StreamedResult
from .tokens import make_tokens
from .trace import TraceWorkload
from .trace_option import scan_usable
from .workload import Request

CONVERT_HELP: Final = "write a log of another format as a trace with block ids"
_DEFAULT_BLOCK: Final = 16
_LINES_BETWEEN_UPDATES: Final = 256


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="a log, - for the standard input: of any format that replay takes")
    parser.add_argument("target", metavar="OUT", help="the trace to write; .gz is compressed, - is the output")
    parser.add_argument(
        "--block", type=to_positive, default=_DEFAULT_BLOCK, metavar="TOKENS",
        help="tokens of a block that has an id (default: %(default)s)"
    )
    parser.add_argument("--limit", type=to_positive, metavar="N", help="the first N requests (default: all)")
    parser.add_argument("--skip-bad", action="store_true", help="report bad lines and leave them out")
    parser.add_argument("--json", metavar="FILE", help="write what was read there, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_log_options(parser)


def run_convert_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Returns the exit code; usage errors leave through ``parser.error``."""
    require_writable(parser, "OUT", options.target, options.source)
    require_writable(parser, "--json", options.json, options.source)
    require_apart(parser, OUT=options.target, json=options.json)
    if options.json == "-" and options.target == "-":
        parser.error("OUT and --json are both the output; name a file for one of them")
    progress = ReadProgress(sys.stderr, options.quiet)
    log = TraceWorkload(options.source, options.limit, options.trace_block, make_log_options(options), progress)
    scan = scan_usable(log, options.skip_bad)
    if scan is None:
        return EXIT_BAD_INPUT
    lines = _lines(log, options.block, progress, scan.summary.num_requests)
    if options.target == "-":
        for line in lines:
            sys.stdout.write(line)
        sys.stdout.flush()
    else:
        with StreamedResult(options.target) as file:
            _write(file, options.target.endswith(".gz"), lines)
    progress.stop()
    figures = {
        "source": log.name, "format": log.format_name, "requests": scan.summary.num_requests,
        "prompt_tokens": scan.summary.num_prompt_tokens,
        "output_tokens": scan.summary.num_output_tokens, "block_tokens": options.block, "bad_lines": scan.num_bad_lines,
        "notes": log.notes(),
    }  # fmt: skip
    if options.json == "-":
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    elif options.json is not None:
        with StreamedResult(options.json) as result:
            result.write((json.dumps(figures, indent=1) + "\n").encode())
    if options.json != "-":
        totals = f"{scan.summary.num_requests:,} requests, {scan.summary.num_prompt_tokens:,} prompt tokens"
        sys.stderr.write(f"{log.name}: {log.format_name}, {totals}\n")
        for note in log.notes():
            sys.stderr.write(f"note: {note}\n")
    return EXIT_OK


def _write(file: IO[bytes], compresses: bool, lines: Iterator[str]) -> None:
    if not compresses:
        for line in lines:
            file.write(line.encode())
        return
    with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
        for line in lines:
            compressed.write(line.encode())


def _lines(log: TraceWorkload, block_tokens: int, progress: ReadProgress, num_requests: int) -> Iterator[str]:
    ids: dict[tuple[int, bytes], int] = {}
    sessions: dict[int, int] = {request.after: request.after for request in log.requests() if request.after is not None}
    num_done = 0
    for request in log.requests():
        record = _to_record(request, block_tokens, ids, sessions)
        if num_done == 0 and len(log.notes()) > 0:
            record["notes"] = log.notes()
        yield json.dumps(record, separators=(",", ":")) + "\n"
        num_done += 1
        if num_done % _LINES_BETWEEN_UPDATES == 0:
            progress.update("writing", num_done, num_requests)


def _to_record(request: Request, block_tokens: int, ids: dict[tuple[int, bytes], int], sessions: dict[int, int]) -> dict[str, Any]:
    """``sessions``: by the id of a request that another one follows, that of the session's first one."""
    tokens = make_tokens(request.segment_codes, request.segment_lengths)
    parent = -1
    hash_ids: list[int] = []
    for begin in range(0, len(tokens), block_tokens):
        parent = ids.setdefault((parent, tokens[begin : begin + block_tokens].tobytes()), len(ids))
        hash_ids.append(parent)
    record: dict[str, Any] = {
        "request_id": request.id, "timestamp": request.arrival_ms, "input_length": request.num_prompt_tokens,
        "output_length": request.num_output_tokens,
        "hash_ids": hash_ids, "block_tokens": block_tokens, "codes": request.segment_codes.tolist(),
        "lengths": request.segment_lengths.tolist(),
    }  # fmt: skip
    if request.after is not None:
        record["after"] = request.after
        sessions[request.id] = sessions[request.after]
    if request.id in sessions:
        record["session_id"] = sessions[request.id]
    if request.delay_ms > 0.0:
        record["delay"] = request.delay_ms
    if request.continues is not None:
        record["stop"] = "tool_use" if request.continues else "end_turn"
    return record
