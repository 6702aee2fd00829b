"""The options that say what a log's format leaves open: tokens of texts, lengths of answers, common prefixes."""

import argparse

from .logs.hash_readers import MOONCAKE_BLOCK_TOKENS
from .logs.log_reader import DEFAULT_OUTPUT_TOKENS, DEFAULT_SHARED_PREFIX, LogOptions
from .logs.token_runs import BYTES_PER_TOKEN, load_tokenizer
from .option_values import to_positive, to_share


def add_log_options(group: "argparse._ActionsContainer") -> None:
    group.add_argument(
        "--trace-block", type=to_positive, metavar="TOKENS",
        help=f"tokens per hash id (default: as the log says; Bailian 16, else {MOONCAKE_BLOCK_TOKENS})",
    )  # fmt: skip
    group.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json, or a folder that has one, for logs of texts (default: bytes)")
    group.add_argument(
        "--bytes-per-token", type=to_positive, metavar="N",
        help=f"without a tokenizer: so many bytes of text are a token (default: {BYTES_PER_TOKEN})"
    )
    group.add_argument(
        "--output-tokens", type=to_positive, metavar="N",
        help=f"of answers whose length the log does not have (default: {DEFAULT_OUTPUT_TOKENS})"
    )
    group.add_argument(
        "--shared-prefix", type=to_share, metavar="SHARE",
        help=f"of logs with lengths only: this share of each prompt is a made-up common prefix (default: {DEFAULT_SHARED_PREFIX})",
    )  # fmt: skip


def make_log_options(options: argparse.Namespace) -> LogOptions:
    """`BadInputError` for a tokenizer that cannot be loaded."""
    return LogOptions(
        None if options.tokenizer is None else load_tokenizer(options.tokenizer),
        options.bytes_per_token or BYTES_PER_TOKEN,
        options.output_tokens or DEFAULT_OUTPUT_TOKENS,
        DEFAULT_SHARED_PREFIX if options.shared_prefix is None else options.shared_prefix,
        options.trace_block,
    )


def given_log_option(options: argparse.Namespace) -> str | None:
    """One of these options that was given."""
    for name in ("trace_block", "tokenizer", "bytes_per_token", "output_tokens", "shared_prefix"):
        if getattr(options, name) is not None:
            return "--" + name.replace("_", "-")
    return None
