"""The command ``learn``: what LEARNED learns of logs, as text for `KVCacheManagerConfig.learned_prior`. See `cli` for exit codes.

Each log is served at each size, by one cache after the other; each of them begins with what the one before it has learned.
"""

import argparse
import sys
from typing import Final

from .. import EvictionPolicy
from ..config.learned_prior import encode_prior
from .bad_input import BadInputError
from .block_cache import BlockCache
from .block_requests import BlockRequests
from .compare_command import add_block_option, open_traces, read_trace, sizes_for, to_sizes
from .exit_codes import EXIT_BAD_INPUT, EXIT_OK
from .option_values import require_writable, to_positive
from .read_progress import ReadProgress
from .result_file import write_result

LEARN_HELP: Final = "what LEARNED learns of logs, for managers to begin with"
_DEFAULT_SIZES: Final = ("2%", "40%", "5%", "20%", "10%")


def add_learn_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="traces in the Mooncake format, or other logs that kvcm replay reads")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write it; - is the output")
    parser.add_argument("--limit", type=to_positive, metavar="N", help="the first N requests of each (default: all)")
    parser.add_argument(
        "--sessions", type=to_positive, metavar="N",
        help="so many sessions of the traces at a time (default: by time stamps, or as the lines stand)",
    )  # fmt: skip
    parser.add_argument("--skip-bad", action="store_true", help="report bad lines of a trace and go on without them")
    parser.add_argument(
        "--blocks", type=to_sizes, default=list(_DEFAULT_SIZES), metavar="N,N,...",
        help="sizes of the caches in blocks, or in percent of the working set; best those of yours (default: "
        + ",".join(_DEFAULT_SIZES).replace("%", "%%") + ")",
    )  # fmt: skip
    parser.add_argument(
        "--trace-block", type=to_positive, metavar="TOKENS", help="tokens per hash id of the traces, as for compare-policies"
    )
    add_block_option(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run_learn_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Returns the exit code; usage errors leave through ``parser.error``."""
    require_writable(parser, "--output", options.output, *options.traces)
    traces = open_traces(options, parser)
    if traces is None:
        return EXIT_BAD_INPUT
    progress = ReadProgress(sys.stderr, options.quiet, len(traces) * len(options.blocks))
    weights: list[float] | None = None
    try:
        for trace in traces:
            weights = _learn(read_trace(trace, options, parser), options.blocks, weights, progress)
    finally:
        progress.stop()
    assert weights is not None, "there is no trace, or no size"
    if not any(weights):
        raise BadInputError("nothing was learned, nothing is written: no block of these requests could have come back; give longer logs")
    if options.output == "-":
        sys.stdout.write(encode_prior(weights))
    else:
        write_result(options.output, encode_prior(weights))
    return EXIT_OK


def _learn(blocks: BlockRequests, sizes: list[str], weights: list[float] | None, progress: ReadProgress) -> list[float]:
    for size in sizes:
        num_slots = sizes_for(blocks, [size])[0]
        progress.begin(f"{blocks.name}, {num_slots:,} blocks")
        cache = BlockCache(EvictionPolicy.LEARNED, num_slots, blocks, weights)
        for request, num_generated in zip(blocks.requests, blocks.num_generated, strict=True):
            cache.serve(request, num_generated)
        weights = cache.learned()
    assert weights is not None
    return weights
