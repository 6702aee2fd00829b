"""The command ``plan``: what a model's cache holds in so much memory, and whether a batch fits; nothing is allocated.

Exit code 1 if a batch was asked about and does not fit; 2 also for memory under the least that the model takes.
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from typing import Any, Final

from .. import (
    BatchDesc,
    CacheTierConfig,
    CapacityPlan,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCacheDesc,
    KVCacheManagerConfig,
    SwaScratchReuseConfig,
    plan_capacity,
)
from ..config.equal_slots import SMALL_PADDING
from ..models.config_file import YAML_ENDINGS, config_text
from .bad_input import BadInputError
from .exit_codes import EXIT_OK
from .model_option import (
    DEFAULT_TOKENS_PER_BLOCK, EQUAL_SLOTS_HELP, MODEL_HELP, add_model_options, config_of, find_model, tokens_per_block_of,
)  # fmt: skip
from .option_values import require_apart, require_file, require_writable, to_count, to_positive, to_size, to_tokens
from .report_rows import format_bytes
from .result_file import write_result
from .served_model import ServedModel

PLAN_HELP: Final = "say what fits into so much memory, before anything is allocated"

_EXIT_DOES_NOT_FIT: Final = 1
_MAX_BATCH: Final = 1_000_000
"""More than run together anywhere; each one takes time."""


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_name", nargs="?", metavar="MODEL", help=MODEL_HELP)
    add_model_options(parser)
    parser.add_argument(
        "--gpu-memory", type=to_size, metavar="BYTES", help="of the GPU tier: 40g, 512MiB (default: as the MODEL's configuration says)"
    )
    parser.add_argument("--host-memory", type=to_size, metavar="BYTES", help="of a host tier (default: none)")
    parser.add_argument("--tokens-per-block", type=to_positive, metavar="T", help=f"default: {DEFAULT_TOKENS_PER_BLOCK}")
    parser.add_argument("--equal-slots", action="store_true", help=EQUAL_SLOTS_HELP)
    parser.add_argument("--scratch", action="store_true", help="windowed layers share scratch slots while they prefill")
    parser.add_argument(
        "--length", type=to_tokens, default=8192, metavar="N",
        help="tokens of each sequence of the batch asked about (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--history", type=to_count, metavar="N",
        help="of those, tokens that are there before the step (default: all but one, a decode step; 0: a prefill)",
    )  # fmt: skip
    parser.add_argument("--batch", type=to_positive, metavar="N", help="ask whether N such sequences run together")
    parser.add_argument("--system-prompt", type=to_count, default=0, metavar="N", help="tokens that all have in common (default: 0)")
    parser.add_argument(
        "--typical-length", type=to_tokens, metavar="N",
        help="divide the memory between pool groups for sequences of this length (default: --length)",
    )  # fmt: skip
    parser.add_argument(
        "--save", metavar="FILE", help="write the configuration there: JSON, or YAML if it ends in .yaml; MODEL and load_config take it"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there too; - is the output, without the table")


def run_plan_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Returns the exit code; usage errors leave through ``parser.error``."""
    length: int = options.length
    history: int = length - 1 if options.history is None else options.history
    prompt: int = options.system_prompt
    if history > length or prompt > length:
        parser.error(f"--history {history} and --system-prompt {prompt} must not exceed --length {length}")
    if options.batch is not None and options.batch > _MAX_BATCH:
        parser.error(f"--batch {options.batch}: more than {_MAX_BATCH:,} sequences are not looked at")
    if options.model is not None and options.model_name is not None:
        parser.error("give MODEL or --model, not both")
    name: str | None = options.model_name if options.model is None else options.model
    # A model may be a folder of Hugging Face's.
    inputs = () if name is None else (name, os.path.join(name, "config.json"))
    require_writable(parser, "--json", options.json, *inputs)
    model = find_model(options, parser, name)
    if options.gpu_memory is None and config_of(model) is None:
        parser.error("give --gpu-memory BYTES, as in --gpu-memory 40g")
    # A configuration may be saved over the one that it was made of; a config.json is another engine's.
    require_file(parser, "--save", options.save, *(inputs if config_of(model) is None else ()))
    require_apart(parser, json=options.json, save=options.save)
    sequence = KVCacheDesc(length, history)
    batch = None if options.batch is None else BatchDesc([sequence] * options.batch, prompt)
    try:
        config = _config(options, model)
        plan = plan_capacity(config, batch)
    except ValueError as error:
        parser.error(str(error))
    if options.save is not None:
        try:
            saved = config_text(config, options.save.endswith(YAML_ENDINGS))
        except ImportError as missing:
            raise BadInputError(f"--save {options.save}: {missing}") from None
        write_result(options.save, saved)
    most = plan.max_batch_size(length, history, prompt)
    ways = _compare_ways(plan, BatchDesc([KVCacheDesc(size, size - 1) for size in (length, *[_short(length)] * 8)]))
    figures = _to_json(options, model, plan, most, ways)
    if options.json == "-":
        sys.stdout.write(figures)
    else:
        sys.stdout.write(f"{model.title}, {config.tokens_per_block} tokens per block{', scratch slots' * options.scratch}\n")
        sys.stdout.write("".join([f"note: {note}\n" for note in model.notes]))
        sys.stdout.write(_describe_growth(model) + "\n")
        sys.stdout.write(plan.table())
        sys.stdout.write(_largest_batch(most, length, history, prompt))
        sys.stdout.write(_describe_ways(ways, length))
        if options.json is not None:
            write_result(options.json, figures)
    return _EXIT_DOES_NOT_FIT if plan.batch_fits is False else EXIT_OK


def _config(options: argparse.Namespace, model: ServedModel) -> KVCacheManagerConfig:
    given = config_of(model)
    tiers: list[CacheTierConfig] = [] if given is None else list(given.cache_tiers)
    if options.gpu_memory is not None:
        tiers[:1] = [GpuCacheTierConfig(options.gpu_memory)]
    if options.host_memory is not None:
        tiers = [*tiers[:1], HostCacheTierConfig(options.host_memory)]
    typical: int = options.typical_length or options.length
    step = BatchDesc([KVCacheDesc(typical, typical - 1)])
    tokens_per_block = tokens_per_block_of(options, model)
    layers = model.layer_configs(tokens_per_block)
    scratch = SwaScratchReuseConfig() if options.scratch else None
    if given is None:
        padding = SMALL_PADDING if options.equal_slots else None
        return KVCacheManagerConfig(tokens_per_block, tiers, layers, typical_step=step, swa_scratch_reuse=scratch, max_slot_padding=padding)
    return replace(
        given,
        cache_tiers=tiers,
        typical_step=given.typical_step if options.typical_length is None else step,
        swa_scratch_reuse=given.swa_scratch_reuse if scratch is None else scratch,
        max_slot_padding=SMALL_PADDING if options.equal_slots else given.max_slot_padding,
    )


def _compare_ways(plan: CapacityPlan, mix: BatchDesc) -> list[dict[str, Any]]:
    """The plan, and with the other setting of `max_slot_padding` where that makes other pool groups; else nothing."""
    padding = SMALL_PADDING if plan.config.max_slot_padding is None else None
    try:
        other = plan_capacity(replace(plan.config, max_slot_padding=padding, initial_pool_ratio=None))
    except ValueError:
        return []
    groups_of = [way.levels[0].pool_groups for way in (plan, other)]
    if len(groups_of[0]) == len(groups_of[1]):
        return []
    return [
        {
            "way": "own pools" if way.config.max_slot_padding is None else "equal slots", "slot_padding": way.slot_padding,
            "layer_groups": sum([len(group.layer_groups) for group in groups]), "slots": [group.num_slots for group in groups],
            "slot_bytes": [group.slot_bytes for group in groups], "longest_sequence": way.longest_sequence, "mixes": way.max_mixes(mix),
        }
        for way, groups in zip((plan, other), groups_of)
    ]  # fmt: skip


def _describe_ways(ways: list[dict[str, Any]], length: int) -> str:
    text = f"equal slots (--equal-slots) or own pools; a mix is a sequence of {length:,} tokens and eight of {_short(length):,}:\n"
    for way in ways:
        slots = " + ".join([f"{count:,} slots of {size:,} bytes" for count, size in zip(way["slots"], way["slot_bytes"])])
        longest = "any" if way["longest_sequence"] is None else f"{way['longest_sequence']:,} tokens"
        text += f"  {way['way']}: {way['layer_groups']} layer groups, {slots}, {way['slot_padding']:.1%} unused; "
        text += f"longest sequence {longest}; {way['mixes']:,} mixes\n"
    return text if len(ways) > 0 else ""


def _short(length: int) -> int:
    return max(1, length // 8)


def _describe_growth(model: ServedModel) -> str:
    """What a sequence takes, a line each."""
    lines = [f"grows by {_bytes(model.bytes_that_grow())} per token"]
    if model.bytes_in_windows() > 0:
        lines.append(f"in windows, at most {_bytes(model.bytes_in_windows())} per sequence")
    if model.bytes_per_state() > 0:
        lines.append(f"in recurrent states, {_bytes(model.bytes_per_state())} per sequence")
    return "\n".join(lines) + "\n"


def _bytes(number: int) -> str:
    return f"{number:,} bytes" + (f" ({format_bytes(number)})" if number >= 1024 else "")


def _to_json(options: argparse.Namespace, model: ServedModel, plan: CapacityPlan, most: int | None, ways: list[dict[str, Any]]) -> str:
    levels: list[dict[str, Any]] = []
    for level in plan.levels:
        groups = [
            {
                "layer_groups": list(group.layer_groups), "num_slots": group.num_slots, "slot_bytes": group.slot_bytes,
                "min_slots": group.min_slots, "batch_slots": group.batch_slots, "spare_slots": group.spare_slots,
            }
            for group in level.pool_groups
        ]  # fmt: skip
        levels.append({"tier": level.tier.name, "quota_bytes": level.quota, "pool_groups": groups})
    figures = {
        "model": model.title, "tokens_per_block": plan.config.tokens_per_block, "bytes_per_token": model.bytes_per_token(),
        "bytes_that_grow": model.bytes_that_grow(), "bytes_in_windows": model.bytes_in_windows(), "notes": list(model.notes),
        "bytes_per_state": model.bytes_per_state(), "levels": levels, "longest_sequence": plan.longest_sequence,
        "longest_prompt": plan.longest_prompt, "length": options.length, "batch": options.batch, "batch_fits": plan.batch_fits,
        "batch_quota_bytes": plan.batch_quota, "missing_slots": plan.missing_slots, "limiting_pool_group": plan.limiting_pool_group,
        "largest_batch": most,
        "ways": ways,
    }  # fmt: skip
    return json.dumps(figures, indent=1) + "\n"


def _largest_batch(most: int | None, length: int, history: int, prompt: int) -> str:
    shared = f", {prompt:,} of them a common system prompt" if prompt > 0 else ""
    count = "any number of" if most is None else f"{most:,}"
    return f"largest batch of {length:,} tokens, {history:,} of them history{shared}: {count} sequences\n"
