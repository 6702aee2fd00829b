"""The command ``replay``: its options, and what they mean. See `cli` for exit codes."""

import argparse
import shlex
import sys
from dataclasses import replace
from typing import Final

from .. import CacheTierConfig, DiskCacheTierConfig, EvictionPolicy, KVCacheManagerConfig
from ..config.snapshot_policy import PLACEMENTS
from .console import PlainConsole
from .decoding import Decoding
from .exit_codes import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_WRONG
from .generators import DEFAULT_NUM_REQUESTS, WORKLOAD_NAMES, make_workload
from .html_report import make_html
from .kill_drill import run_kill_drill
from .log_option import add_log_options, given_log_option, make_log_options
from .model_option import DEFAULT_TOKENS_PER_BLOCK, EQUAL_SLOTS_HELP, add_model_options, config_of, find_model, tokens_per_block_of
from .option_values import (
    require_file,
    require_apart,
    require_writable,
    to_beams,
    to_drafts,
    to_positive,
    to_rate,
    to_ratio,
    to_share,
    to_size,
    to_sizes,
    to_tokens,
)
from .other_sizes import DEFAULT_SIZES, MeasuredCurve, serve_other_sizes, was_interrupted
from .plan import AS_FAST, DEVICE_NAMES, RECORDED, TRACE_MEMORY_BYTES, WORKLOAD_MEMORY_BYTES, ReplayPlan
from .read_progress import ReadProgress
from .replayer import PlanError, run_replay
from .report import ReplayReport
from .result_file import write_result
from .serving_limits import ServingLimits
from .served_model import ServedModel
from .service_clock import StepTime, parse_step_time
from .sized_codec import CODEC_NAMES
from .spaced_workload import SpacedWorkload
from .tier_option import LowerTier, TierSizes, parse_tiers
from .timeline import Timeline
from .trace import TraceWorkload
from .trace_option import scan_usable
from .workload import Workload

REPLAY_HELP: Final = "serve a log of requests, or a made workload, through the manager, and report"
REQUESTS_AFTER_KILL: Final = 500


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    _add_source_options(parser)
    _add_machine_options(parser)
    _add_serving_options(parser)
    _add_result_options(parser)


def _add_source_options(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument_group("what to serve")
    source.add_argument(
        "trace", nargs="?", metavar="TRACE", help="a log of requests: its format is recognised; - is the standard input (docs/logs.md)"
    )
    source.add_argument("--workload", choices=WORKLOAD_NAMES, help="make one instead (default: mix)")
    source.add_argument("--seed", type=int, default=0, help="of the workload (default: 0)")
    source.add_argument(
        "--limit", type=to_positive, metavar="N",
        help=f"serve the first N requests (default: all of a trace, {DEFAULT_NUM_REQUESTS} of a workload)",
    )  # fmt: skip
    source.add_argument("--skip-bad", action="store_true", help="report bad lines of a trace and serve the others")
    add_log_options(source)


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    machine = parser.add_argument_group("the model and the machine")
    add_model_options(machine)
    machine.add_argument("--tokens-per-block", type=to_positive, metavar="T", help=f"default: {DEFAULT_TOKENS_PER_BLOCK}")
    memory = machine.add_mutually_exclusive_group()
    memory.add_argument(
        "--memory", type=_memory, metavar="BYTES",
        help="of the GPU tier: 64MiB, 40g, unlimited (default: 40GiB for a trace, 8GiB for a made workload, divided as "
        "the model is by --shrink)",
    )  # fmt: skip
    memory.add_argument(
        "--tiers", type=_tiers, metavar="LIST",
        help="levels of memory instead of the GPU tier alone: gpu=64MiB,host=256MiB,disk=1GiB:/folder (a disk without a folder: a "
        "temporary one; a durable one also several, disk=1GiB:/folder:/another)",
    )  # fmt: skip
    machine.add_argument(
        "--durable", action="store_true",
        help="the disk of --tiers keeps what it has for the next run on the same folders; needs a device with memory: auto is host then",
    )  # fmt: skip
    machine.add_argument(
        "--write-policy", choices=("back", "through"),
        help="with --tiers: back, pages are written to the next level when they are evicted; through, early (default: back)",
    )  # fmt: skip
    machine.add_argument(
        "--codec", choices=CODEC_NAMES,
        help="with --tiers: the levels below the GPU hold packed keys and values, as many as this codec makes of bfloat16",
    )  # fmt: skip
    machine.add_argument(
        "--pool-ratio", type=to_ratio, metavar="LIST",
        help="how each tier's bytes are shared between the pool groups, one number each: 0.4,0.6 (default: the manager's own guess)",
    )  # fmt: skip
    machine.add_argument("--equal-slots", action="store_true", help=EQUAL_SLOTS_HELP)
    machine.add_argument(
        "--no-adjust", action="store_true",
        help="the pool groups keep their shares, also where the manager asks to share the memory anew",
    )  # fmt: skip
    machine.add_argument(
        "--snapshots", choices=PLACEMENTS,
        help="of a model with recurrent layers: where prompts leave snapshots (default: as the configuration says, or fixed)",
    )  # fmt: skip
    machine.add_argument(
        "--shrink", type=_shrink, metavar="N",
        help="divide the bytes of a token by N, or as far as it goes with max (default: 1; with --verify: max)",
    )  # fmt: skip
    machine.add_argument(
        "--device", choices=DEVICE_NAMES, default="auto",
        help="none makes the decisions without memory; auto is none, or with --verify the best there is",
    )  # fmt: skip


def _add_serving_options(parser: argparse.ArgumentParser) -> None:
    serving = parser.add_argument_group("how to serve")
    serving.add_argument(
        "--scratch", action="store_true",
        help="windowed layers keep inputs that are stale right after their step in shared scratch slots",
    )  # fmt: skip
    serving.add_argument(
        "--speculate", type=to_drafts, metavar="N",
        help="generate with N draft tokens a step, of which the wrong ones are taken back",
    )  # fmt: skip
    serving.add_argument("--beams", type=to_beams, metavar="N", help="generate with N beams, of which one has the answer")
    serving.add_argument(
        "--disaggregate", action="store_true",
        help="compute prompts on one manager and decode on a second one of the same size, pages copied between them",
    )  # fmt: skip
    serving.add_argument(
        "--arrivals", choices=(RECORDED, AS_FAST), default=AS_FAST,
        help="recorded: requests come at their time stamps, in simulated time; as-fast: as soon as there is room (default: %(default)s)",
    )  # fmt: skip
    serving.add_argument(
        "--rate", type=to_rate, metavar="N", help="with recorded arrivals: N new sessions a second instead of the log's time stamps"
    )
    serving.add_argument(
        "--step-time", type=_step_time, default=StepTime(), metavar="TIME",
        help="of a step and of each input, 20ms+50us; or two measured steps, inputs=ms: 1=20,2048=122 (default: 20ms+50us)",
    )  # fmt: skip
    serving.add_argument("--max-running", type=to_positive, default=64, metavar="N", help="default: %(default)s")
    serving.add_argument("--token-budget", type=to_tokens, default=8192, metavar="N", help="input tokens per step (default: %(default)s)")
    serving.add_argument(
        "--chunk", type=to_tokens, default=2048, metavar="N",
        help="prompt tokens per request and step (default: %(default)s)",
    )  # fmt: skip
    serving.add_argument(
        "--preempt", type=to_share, default=0.0, metavar="SHARE",
        help="suspend this share of the running requests after each step, for 1 to 8 steps (default: only for lack of slots)",
    )  # fmt: skip
    serving.add_argument(
        "--no-wait", action="store_true",
        help="resumed requests get inputs when their pages have landed; the order of service then depends on copies",
    )  # fmt: skip
    serving.add_argument("--prefetch", action="store_true", help="ask for the pages of suspended requests a step ahead")


def _add_result_options(parser: argparse.ArgumentParser) -> None:
    checks = parser.add_argument_group("checks and results")
    checks.add_argument("--verify", action="store_true", help="run the fake engine and check every byte that is read")
    checks.add_argument("--check-invariants", action="store_true", help="check all invariants after every step (slow)")
    checks.add_argument("--json", metavar="FILE", help="write the report there too; - is the output, without the table")
    checks.add_argument("--report", metavar="FILE", help="write a page with plots there (HTML, needs nothing else)")
    checks.add_argument(
        "--report-sizes", type=to_sizes, default=DEFAULT_SIZES, metavar="LIST",
        help="for the page: serve again with each tier so many times as large, or with none at other sizes (default: 0.25,0.5,2,4,8)",
    )  # fmt: skip
    checks.add_argument(
        "--kill-at", type=to_positive, metavar="N",
        help=f"with --durable: end the process by SIGKILL once N requests are done, and compare the hits of the next "
        f"{REQUESTS_AFTER_KILL} in a new one with those of a process that went on",
    )  # fmt: skip
    checks.add_argument("--quiet", action="store_true", help="no progress")


def run_replay_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Returns the exit code; usage errors leave through ``parser.error``. ``options.arguments``: as they were typed."""
    _validate_options(options, parser)
    model = find_model(options, parser, options.model)
    skipped_lines = 0
    notes: list[str] = list(model.notes)
    workload: Workload
    if options.trace is not None:
        progress = ReadProgress(sys.stderr, options.quiet)
        trace = TraceWorkload(options.trace, options.limit, options.trace_block, make_log_options(options), progress)
        scan = scan_usable(trace, options.skip_bad)
        if scan is None:
            return EXIT_BAD_INPUT
        skipped_lines = scan.num_bad_lines
        notes += trace.notes()
        workload = trace
    else:
        workload = make_workload(options.workload or WORKLOAD_NAMES[0], options.seed, options.limit or _default_num_requests(options))
    if options.rate is not None:
        if options.arrivals != RECORDED:
            parser.error("--rate is about --arrivals recorded")
        workload = SpacedWorkload(workload, options.rate)
        notes.append(f"arrivals are made up: {options.rate:g} new sessions a second (--rate)")
    elif options.arrivals == RECORDED and options.trace is not None and not workload.has_times():
        parser.error(f"--arrivals recorded: {workload.name} has no time stamps; say --rate N, or --arrivals as-fast")
    try:
        plan = _plan(options, model, workload, skipped_lines, tuple(notes))
    except ValueError as error:
        parser.error(str(error))
    if options.kill_at is not None:
        return _run_kill_drill(options, plan)
    console = PlainConsole(sys.stdout, sys.stderr, options.quiet)
    timeline: Timeline | None = None
    if options.report is not None:
        timeline = Timeline()
    report = run_replay(plan, console, timeline)
    # What can be seen comes first: a full disk costs a file, and not hours of serving.
    if options.json == "-":
        sys.stdout.write(report.to_json())
    else:
        console.show(report)
        if options.json is not None:
            write_result(options.json, report.to_json())
    curves: list[MeasuredCurve] = []
    if timeline is not None:
        if not report.interrupted and report.failure is None and report.requests > 0:
            curves = serve_other_sizes(plan, report, console, options.report_sizes)
        if was_interrupted(curves):
            sys.stderr.write("kvcm: interrupted; the page has the sizes that were served until then\n")
        command = f"kvcm replay {shlex.join(options.arguments)}".rstrip()
        write_result(options.report, make_html(report, timeline.points, timeline.tiers, curves, command))
    if serves_none(report):
        sys.stderr.write(
            f"kvcm: none of {report.requests_refused} requests was served, for none fits even alone: {report.last_refusal}. Give more "
            f"--memory or --tiers, a larger --shrink, or fewer --beams\n"
        )
    return EXIT_INTERRUPTED if was_interrupted(curves) and exit_code(report) == EXIT_OK else exit_code(report)


def _validate_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Usage errors that the options alone show."""
    if options.trace is not None and options.workload is not None:
        parser.error("give a TRACE or --workload, not both")
    if options.speculate is not None and options.beams is not None:
        parser.error("give --speculate or --beams, not both")
    if options.write_policy is not None and (options.tiers is None or len(options.tiers.lower) == 0):
        parser.error("--write-policy is about tiers below the GPU; give some, as in --tiers gpu=64MiB,host=256MiB")
    if options.codec is not None and (options.tiers is None or len(options.tiers.lower) == 0):
        parser.error("--codec is about tiers below the GPU; give some, as in --tiers gpu=64MiB,host=256MiB")
    if options.codec is not None and (options.verify or options.durable):
        parser.error("--codec counts the bytes of packed pages and packs none, so leave out --verify and --durable")
    _validate_durable(options, parser)
    if options.skip_bad and options.trace is None:
        parser.error("--skip-bad is about the lines of a TRACE, and none is given")
    if options.report is None and options.report_sizes is not DEFAULT_SIZES:
        parser.error("--report-sizes is about the page of the report; name one with --report FILE")
    require_writable(parser, "--json", options.json, options.trace)
    require_file(parser, "--report", options.report, options.trace)
    require_apart(parser, json=options.json, report=options.report)
    log_option = given_log_option(options)
    if log_option is not None and options.trace is None:
        parser.error(f"{log_option} is about a TRACE, and none is given")


def _default_num_requests(options: argparse.Namespace) -> int:
    return DEFAULT_NUM_REQUESTS if options.kill_at is None else options.kill_at + REQUESTS_AFTER_KILL


def _validate_durable(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    lower = () if options.tiers is None else options.tiers.lower
    for number, tier in enumerate(lower):
        if len(tier.more_paths) > 0 and not (options.durable and number == len(lower) - 1):
            parser.error(f"--tiers: a disk with {1 + len(tier.more_paths)} folders; only a --durable one, the last, may have several")
    if options.durable and (options.tiers is None or len(options.tiers.lower) == 0 or options.tiers.lower[-1].kind != "disk"):
        parser.error("--durable is about a disk as the last of --tiers, as in --tiers gpu=64MiB,disk=1GiB:/folder")
    if options.durable and options.disaggregate:
        parser.error("--durable: the two managers of --disaggregate cannot have one folder")
    if options.kill_at is None:
        return
    if not options.durable:
        parser.error("--kill-at is about what a --durable disk keeps")
    if options.report is not None or options.arrivals == RECORDED:
        parser.error("--kill-at has a report of its own: leave out --report and --arrivals recorded")


def _run_kill_drill(options: argparse.Namespace, plan: ReplayPlan) -> int:
    result = run_kill_drill(plan, options.kill_at)
    if options.json == "-":
        sys.stdout.write(result.to_json())
    else:
        sys.stdout.write(result.to_text())
        if options.json is not None:
            write_result(options.json, result.to_json())
    return EXIT_OK if result.has_passed else EXIT_WRONG


def serves_none(report: ReplayReport) -> bool:
    return report.requests == 0 and report.requests_refused > 0


def exit_code(report: ReplayReport) -> int:
    if serves_none(report) or report.mismatches > 0 or report.failure is not None:
        return EXIT_WRONG
    return EXIT_INTERRUPTED if report.interrupted else EXIT_OK


def _plan(options: argparse.Namespace, model: ServedModel, workload: Workload, skipped_lines: int, notes: tuple[str, ...]) -> ReplayPlan:
    shrink: int = options.shrink if options.shrink is not None else 1
    if shrink == 0 or shrink > model.max_shrink or (options.shrink is None and options.verify):
        shrink = model.max_shrink
    tiers: TierSizes | None = options.tiers
    memory_bytes: int | None = options.memory if tiers is None else tiers.gpu_bytes
    base = config_of(model)
    lower = () if tiers is None else tiers.lower
    if options.durable:
        lower = (*lower[:-1], replace(lower[-1], is_durable=True))
    if memory_bytes is None and base is not None:
        memory_bytes = _shrunk_bytes(base.cache_tiers[0].quota, model, shrink)
        lower = tuple([_to_lower_tier(tier, _shrunk_bytes(tier.quota, model, shrink)) for tier in base.cache_tiers[1:]])
    elif memory_bytes is None:
        full_bytes = WORKLOAD_MEMORY_BYTES if options.trace is None else TRACE_MEMORY_BYTES
        memory_bytes = _shrunk_bytes(full_bytes, model, shrink)
    elif memory_bytes == 0:
        memory_bytes = None
    if options.snapshots is not None and model.bytes_per_state(shrink) == 0:
        raise PlanError(f"--snapshots is about recurrent layers, and {model.title} has none")
    return ReplayPlan(
        workload=workload,
        model=model,
        tokens_per_block=tokens_per_block_of(options, model),
        base=base,
        memory_bytes=memory_bytes,
        shrink=shrink,
        verify=options.verify,
        check_invariants=options.check_invariants,
        limits=ServingLimits(
            options.max_running, options.token_budget, options.chunk, options.preempt, not options.no_wait, options.prefetch
        ),
        device="host" if options.durable and options.device == "auto" and not options.verify else options.device,
        lower_tiers=lower,
        write_policy=options.write_policy or ("back" if base is None else base.write_policy),
        decoding=Decoding(options.speculate or 0, options.beams or 1),
        disaggregate=options.disaggregate,
        scratch=options.scratch or (base is not None and base.enable_swa_scratch_reuse),
        seed=None if options.trace is not None else options.seed,
        skipped_lines=skipped_lines,
        notes=notes if options.codec is None else (*notes, f"below the GPU, keys and values are as small as {options.codec} packs them"),
        codec=options.codec,
        eviction_policy=EvictionPolicy.LEARNED if base is None else base.cache_tiers[0].eviction_policy,
        arrivals=options.arrivals,
        step_time=options.step_time,
        pool_ratio=options.pool_ratio if base is None or options.pool_ratio is not None else _ratio_of(base),
        equal_slots=options.equal_slots,
        adjusts=not options.no_adjust,
        snapshot_placement=options.snapshots,
    )


def _shrunk_bytes(num_bytes: int, model: ServedModel, shrink: int) -> int:
    """As many bytes as keep what a tier holds, of a model that is shrunk."""
    if model.bytes_per_token(1) > 0:
        return num_bytes * model.bytes_per_token(shrink) // model.bytes_per_token(1)
    return num_bytes * model.bytes_per_state(shrink) // model.bytes_per_state(1)


def _to_lower_tier(tier: CacheTierConfig, num_bytes: int) -> LowerTier:
    if isinstance(tier, DiskCacheTierConfig):
        return LowerTier("disk", num_bytes, tier.path)
    return LowerTier("host", num_bytes)


def _ratio_of(config: KVCacheManagerConfig) -> tuple[float, ...] | None:
    return None if config.initial_pool_ratio is None else tuple(config.initial_pool_ratio)


def _memory(text: str) -> int:
    """Bytes; 0 stands for unlimited."""
    if text == "unlimited":
        return 0
    return to_size(text)


def _tiers(text: str) -> TierSizes:
    try:
        return parse_tiers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _step_time(text: str) -> StepTime:
    try:
        return parse_step_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _shrink(text: str) -> int:
    """0 stands for max."""
    return 0 if text == "max" else to_positive(text)
