"""The command ``compare-policies``: hit rates of eviction policies on traces and made workloads. See `cli` for exit codes."""

import argparse
import math
import sys
from collections.abc import Sequence
from typing import Final

from .. import EvictionPolicy
from ..config.learned_prior import decode_prior
from ..config.manager_config import MAX_CACHE_TIERS
from .bad_input import BadInputError
from .block_requests import BlockRequests, divide_blocks, read_blocks
from .exit_codes import EXIT_BAD_INPUT, EXIT_OK
from .generators import WORKLOAD_NAMES, make_workload
from .interleaved_sessions import interleave
from .made_hints import RECORDED, make_hints
from .option_values import require_writable, to_float_within, to_positive
from .policy_comparison import (
    Comparison,
    SourceComparison,
    compare_levels,
    compare_source,
    comparison_header,
    comparison_rows,
    source_title,
)
from .policies.own_policy import ComparedPolicy
from .policies.published import COMPARED
from .read_progress import ReadProgress
from .report_rows import aligned
from .result_file import write_result
from .trace import TraceWorkload
from .trace_option import scan_usable

COMPARE_HELP: Final = "hit rates of eviction policies, beside the optimum, on traces and made workloads"
_DEFAULT_SIZES: Final = ("1%", "2%", "5%", "10%", "20%", "50%")
_DEFAULT_NUM_REQUESTS: Final = 3_000
DEFAULT_BLOCK_TOKENS: Final = 64
_TOO_MANY: Final = 1_000_000_000
_MOST_PRIOR: Final = 1 << 16
"""Characters that are read of a prior, which has fewer."""
POLICY_NAMES: Final = tuple([policy.value for policy in COMPARED])


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="traces in the Mooncake format, or other logs that kvcm replay reads")
    parser.add_argument(
        "--workload", action="append", choices=WORKLOAD_NAMES, default=[], help="made workloads; may be given several times"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the workloads and of wrong hints (default: 0)")
    parser.add_argument(
        "--limit", type=to_positive, metavar="N",
        help=f"the first N requests (default: all of a trace, {_DEFAULT_NUM_REQUESTS} of a workload)",
    )  # fmt: skip
    parser.add_argument(
        "--sessions", type=to_positive, metavar="N",
        help="so many sessions of the traces at a time: a turn comes its delay after the answer before it (60 tokens a second), and a new "
        "session where one ends (default: by time stamps, or as the lines stand)",
    )  # fmt: skip
    parser.add_argument("--skip-bad", action="store_true", help="report bad lines of a trace and go on without them")
    parser.add_argument(
        "--blocks", type=to_sizes, metavar="N,N,...",
        help="sizes of the cache in blocks, or in percent of the working set: 5000,20000 or 1%%,10%% (default: "
        + ",".join(_DEFAULT_SIZES).replace("%", "%%") + ")",
    )  # fmt: skip
    parser.add_argument(
        "--levels", type=_level_sizes, metavar="N,N,...",
        help="slots of each level, warmest first: hits on each one, and blocks written to the next, in place of sizes of one level",
    )  # fmt: skip
    parser.add_argument(
        "--min-reuse-probability", type=_probability, default=0.0, metavar="P",
        help="with --levels: what LEARNED thinks less likely than that to be reused is not written down (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--hints", type=_hints, metavar="ACCURACY",
        help="tell LEARNED whether a later prompt goes on from each request, right with that probability, as 0.8; recorded: what the "
        "stop reasons in the traces say",
    )  # fmt: skip
    parser.add_argument("--prior", metavar="PRIOR", help="a file of kvcm learn: what LEARNED knows at first (default: nothing)")
    add_block_option(parser)
    parser.add_argument(
        "--trace-block", type=to_positive, metavar="TOKENS",
        help="tokens per hash id of the traces (default: what the log says, or its format), or tokens per block of logs without hash ids "
        f"(default: {DEFAULT_BLOCK_TOKENS})",
    )  # fmt: skip
    parser.add_argument(
        "--workload-block", type=to_positive, metavar="TOKENS",
        help=f"tokens per block of the workloads (default: {DEFAULT_BLOCK_TOKENS})",
    )  # fmt: skip
    parser.add_argument(
        "--policies", type=_policies, default=list(COMPARED), metavar="P,P,...",
        help=f"of {', '.join(POLICY_NAMES)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the figures there too; - is the output, without the tables")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run_compare_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Returns the exit code; usage errors leave through ``parser.error``."""
    if len(options.traces) == 0 and len(options.workload) == 0:
        parser.error("give at least one TRACE or --workload")
    if len(options.traces) == 0 and (options.skip_bad or options.trace_block is not None or options.sessions is not None):
        parser.error("--skip-bad, --trace-block and --sessions are about a TRACE, and none is given")
    if len(options.workload) == 0 and options.workload_block is not None:
        parser.error("--workload-block is about a --workload, and none is given")
    if options.levels is not None and options.blocks is not None:
        parser.error("--levels and --blocks both say how large the cache is; give one of them")
    if options.levels is None and options.min_reuse_probability > 0.0:
        parser.error("--min-reuse-probability is about --levels, and they are not given")
    if options.hints is not None and EvictionPolicy.LEARNED not in options.policies:
        parser.error("--hints are for learned, which is not among --policies")
    if options.prior is not None and EvictionPolicy.LEARNED not in options.policies:
        parser.error("--prior is for learned, which is not among --policies")
    if options.hints == RECORDED and len(options.workload) > 0:
        parser.error("--hints recorded is about a TRACE; a --workload has no stop reasons")
    require_writable(parser, "--json", options.json, *options.traces, options.prior)
    options.prior = None if options.prior is None else _read_prior(options.prior)
    traces = open_traces(options, parser)
    if traces is None:
        return EXIT_BAD_INPUT
    num_sources = len(traces) + len(options.workload)
    num_sizes = len(options.blocks or _DEFAULT_SIZES)
    num_runs = num_sizes * (len(options.policies) + 1) if options.levels is None else len(options.policies)
    progress = ReadProgress(sys.stderr, options.quiet, num_sources * num_runs)
    results: list[SourceComparison] = []
    try:
        for source in traces:
            read = read_trace(source, options, parser)
            if options.hints == RECORDED and read.recorded_hints.count(None) == len(read.recorded_hints):
                parser.error(f"--hints recorded: no request of {source.path} has a stop reason that says whether its session goes on")
            results.append(_compare(read, options, progress))
        for name in options.workload:
            workload = make_workload(name, options.seed, options.limit or _DEFAULT_NUM_REQUESTS)
            blocks = read_blocks(workload, options.workload_block or DEFAULT_BLOCK_TOKENS)
            results.append(_compare(blocks, options, progress))
    finally:
        progress.stop()
    comparison = Comparison(tuple(results))
    if options.json == "-":
        sys.stdout.write(comparison.to_json())
        return EXIT_OK
    for position, result in enumerate(results):
        if position > 0:
            sys.stdout.write("\n")
        _show(result)
    if options.json is not None:
        write_result(options.json, comparison.to_json())
    return EXIT_OK


def open_traces(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[TraceWorkload] | None:
    """Those of ``options.traces``, their lines checked; None where one is of no use, which was said."""
    traces: list[TraceWorkload] = []
    for path in options.traces:
        trace = TraceWorkload(path, options.limit, options.trace_block)
        scan = scan_usable(trace, options.skip_bad)
        if scan is None:
            return None
        if options.sessions is not None and not scan.has_sessions:
            parser.error(f"--sessions {options.sessions}: no request of {path} is a later turn of a session")
        if options.sessions is None and scan.has_sessions and not scan.has_times and not options.quiet:
            sys.stderr.write(f"{path}: no time stamps, so sessions come as the lines stand; --sessions N takes N at a time\n")
        traces.append(trace)
    return traces


def read_trace(trace: TraceWorkload, options: argparse.Namespace, parser: argparse.ArgumentParser) -> BlockRequests:
    in_order = None if options.sessions is None else interleave(trace.requests(), options.sessions)
    blocks = read_blocks(trace, options.trace_block or DEFAULT_BLOCK_TOKENS, in_order)
    wanted = options.tokens_per_block
    if wanted is not None and (blocks.block_tokens < wanted or blocks.block_tokens % wanted > 0):
        parser.error(f"--tokens-per-block {wanted}: {trace.path} has blocks of {blocks.block_tokens} tokens, which is no multiple")
    return blocks if wanted is None else divide_blocks(blocks, wanted)


def add_block_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens-per-block", type=to_positive, metavar="TOKENS",
        help="as the manager has them: blocks of the traces are divided into such ones (default: as they are)",
    )  # fmt: skip


def _compare(blocks: BlockRequests, options: argparse.Namespace, progress: ReadProgress) -> SourceComparison:
    hints = make_hints(blocks, options.hints, options.seed)
    name = ""
    if options.hints is not None:
        name = "the recorded stop reasons" if options.hints == RECORDED else f"what comes next, {options.hints:.0%} right"
    if options.levels is not None:
        return compare_levels(blocks, options.levels, options.policies, options.min_reuse_probability, hints, name, options.prior, progress)
    sizes = sizes_for(blocks, options.blocks or _DEFAULT_SIZES)
    return compare_source(blocks, sizes, options.policies, hints, name, options.prior, progress)


def _show(result: SourceComparison) -> None:
    sys.stdout.write(source_title(result) + "\n")
    rows = [list(comparison_header(result))]
    rows.extend([list(row) for row in comparison_rows(result)])
    sys.stdout.write("\n".join(aligned(rows)) + "\n")


def sizes_for(blocks: BlockRequests, texts: Sequence[str]) -> list[int]:
    """Ascending, each once; a share of the working set is at least one block."""
    sizes: set[int] = set()
    for text in texts:
        if text.endswith("%"):
            sizes.add(max(int(blocks.num_blocks * float(text[:-1]) / 100.0), 1))
        else:
            sizes.add(int(text))
    return sorted(sizes)


def to_sizes(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        unit = "%" if part.endswith("%") else ""
        try:
            value = float(part[:-1]) if unit == "%" else float(int(part))
        except ValueError:
            value = 0.0
        except OverflowError:
            value = math.inf
        if not value > 0.0:
            raise argparse.ArgumentTypeError(f"{part!r} is no number of blocks; say 5000, or 10% of the working set")
        most = "100%, where all blocks have room" if unit == "%" else f"{_TOO_MANY - 1}"
        if value > (100.0 if unit == "%" else _TOO_MANY - 1):
            raise argparse.ArgumentTypeError(f"{part[:40]!r} is too much; at most {most}")
    return parts


def _level_sizes(text: str) -> list[int]:
    sizes: list[int] = []
    for part in text.split(","):
        try:
            size = int(part)
        except ValueError:
            size = 0
        if not 0 < size < _TOO_MANY:
            raise argparse.ArgumentTypeError(f"{part.strip()[:40]!r} is no number of slots from 1 to {_TOO_MANY - 1}; say 1000,4000")
        sizes.append(size)
    if len(sizes) > MAX_CACHE_TIERS:
        raise argparse.ArgumentTypeError(f"{len(sizes)} levels; there can be {MAX_CACHE_TIERS}")
    return sizes


def _probability(text: str) -> float:
    return to_float_within(text, 0.0, 1.0, f"{text[:40]!r} is no probability from 0 to 1")


def _read_prior(path: str) -> list[float]:
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_MOST_PRIOR)
    try:
        return decode_prior(text, path)
    except ValueError as wrong:
        raise BadInputError(str(wrong)) from None


def _hints(text: str) -> float | str:
    if text == RECORDED:
        return text
    return to_float_within(text, 0.0, 1.0, f"{text[:40]!r} is no accuracy from 0 to 1; say 0.8, or {RECORDED}")


def _policies(text: str) -> list[ComparedPolicy]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in POLICY_NAMES:
            raise argparse.ArgumentTypeError(f"no policy {name!r}; there are {', '.join(POLICY_NAMES)}")
    return [COMPARED[POLICY_NAMES.index(name)] for name in names]
