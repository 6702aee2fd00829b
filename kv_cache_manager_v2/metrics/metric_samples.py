"""A manager's statistics as named samples, in Prometheus' conventions: base units, counters that end in ``_total``.

Raw counters rather than rates: the reader divides, over an interval of their choice.
"""

from typing import Final, final


from ..base.build_mode import VERSION, is_compiled
from ..base.errors import LogicError
from ..base.ids import CacheTier
from ..events.event_manager import KVCacheEventManager
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..stats.drop_reason import DropReason
from ..stats.manager_snapshot import ManagerSnapshot
from ..stats.miss_cause import MissCause
from ..stats.usage_statistics import UsageStatistics

PREFIX: Final = "kvcm_"
COUNTER: Final = "counter"
GAUGE: Final = "gauge"

TIER_LABELS: Final = {CacheTier.GPU_MEM: "gpu", CacheTier.HOST_MEM: "host", CacheTier.DISK: "disk"}


@final
class MetricSamples:
    """One metric: its kind, the names of its labels, and a value for each combination of labels."""

    __slots__ = ("name", "kind", "text", "label_names", "samples")

    def __init__(self, name: str, kind: str, text: str, label_names: tuple[str, ...] = ()) -> None:
        self.name: Final[str] = PREFIX + name
        """Without the ``_total`` of a counter."""
        self.kind: Final = kind
        self.text: Final = text
        self.label_names: Final = label_names
        self.samples: Final[list[tuple[tuple[str, ...], float]]] = []

    def add(self, labels: tuple[str, ...], value: float) -> None:
        self.samples.append((labels, value))


def take_samples(manager: KVCacheManager) -> list[MetricSamples]:
    """All metrics of the manager, now, or as `KVCacheManager.get_statistics` says. `LogicError` with ``enable_stats=False``."""
    snapshot = manager._snapshot()
    usage = snapshot.usage
    if usage is None:
        raise LogicError("this manager keeps no statistics; make it with enable_stats=True")
    tiers = name_tiers(manager)
    metrics = _sample_slots(snapshot, tiers)
    metrics += _sample_sequences(snapshot, usage)
    metrics += _sample_prompts(usage, tiers)
    metrics += _sample_blocks(usage)
    metrics += _sample_movements(usage, tiers)
    build = MetricSamples("build_info", GAUGE, "Always 1: which library runs on which device", ("version", "build", "device"))
    build.add((VERSION, "compiled" if is_compiled() else "interpreted", manager.device.name), 1.0)
    metrics.append(build)
    return metrics


def sample_events(event_manager: KVCacheEventManager | None) -> list[MetricSamples]:
    """Metrics of the KV events; without samples if there is no event manager."""
    published = MetricSamples("events_published", COUNTER, "KV events taken by the caller, by type", ("type",))
    dropped = MetricSamples("events_dropped", COUNTER, "KV events dropped because they were not taken in time")
    if event_manager is not None:
        for kind, number in event_manager.num_published.items():
            published.add((kind,), float(number))
        dropped.add((), float(event_manager.num_dropped))
    return [published, dropped]


def name_tiers(manager: KVCacheManager) -> list[str]:
    """The label of each level's tier; from the second of one kind on with a number."""
    names: list[str] = []
    for tier in manager.cache_tier_list:
        label = TIER_LABELS[tier]
        earlier = len([name for name in names if name.rstrip("0123456789") == label])
        names.append(label if earlier == 0 else f"{label}{earlier + 1}")
    return names


def _sample_slots(snapshot: ManagerSnapshot, tiers: list[str]) -> list[MetricSamples]:
    ratio = MetricSamples(
        "cache_usage_ratio", GAUGE, "Slots that sequences need, over all; pages kept for reuse do not count", ("tier", "pool_group")
    )
    blocks = MetricSamples("blocks", GAUGE, "Slots by state: needed by sequences, kept for reuse, free", ("tier", "pool_group", "state"))
    copies = MetricSamples("clean_copies", GAUGE, "Free slots with a clean copy of a page on a warmer level", ("tier", "pool_group"))
    refusals = MetricSamples("refusals", COUNTER, "Calls refused because slots were missing there", ("tier", "pool_group"))
    closed = MetricSamples("level_closed", GAUGE, "1 if the level takes no more pages: its disk failed to take a write", ("tier",))
    failed = MetricSamples(
        "durable_failed", GAUGE, "1 if the index of a durable level is not written any more: its disk refused it", ("tier",)
    )
    restored = MetricSamples("restored_pages", GAUGE, "Pages of a durable level that the last process has left", ("tier", "pool_group"))
    damaged = MetricSamples(
        "damaged_pages", COUNTER, "Pages of a durable level that were read and are not what was written", ("tier", "pool_group")
    )
    for level, tier in enumerate(tiers):
        groups = snapshot.levels[level]
        closed.add((tier,), float(groups[0].is_closed))
        failed.add((tier,), float(groups[0].has_durable_failure))
        for index, group in enumerate(groups):
            refusals.add((tier, str(index)), float(group.refusals))
            restored.add((tier, str(index)), float(group.restored_pages))
            damaged.add((tier, str(index)), float(group.damaged_pages))
            ratio.add((tier, str(index)), group.unavailable / group.total if group.total > 0 else 0.0)
            blocks.add((tier, str(index), "needed"), float(group.unavailable))
            blocks.add((tier, str(index), "kept"), float(group.evictable))
            blocks.add((tier, str(index), "free"), float(group.free))
            copies.add((tier, str(index)), float(group.clean_copies))
    return [ratio, blocks, copies, refusals, closed, failed, restored, damaged]


def _sample_sequences(snapshot: ManagerSnapshot, usage: UsageStatistics) -> list[MetricSamples]:
    sequences = MetricSamples("sequences", GAUGE, "Open sequences by status", ("status",))
    sequences.add((KVCache.Status.ACTIVE.value,), float(snapshot.num_active))
    sequences.add((KVCache.Status.SUSPENDED.value,), float(snapshot.num_suspended))
    dropped = MetricSamples("dropped_handles", GAUGE, "Sequences and plans that were dropped without close; the next call closes them")
    dropped.add((), float(snapshot.levels[0][0].dropped_handles))
    requests = MetricSamples("requests", COUNTER, "Sequences that were given room for tokens")
    requests.add((), float(usage.requests))
    suspends = MetricSamples("suspends", COUNTER, "Times that a sequence was suspended")
    suspends.add((), float(usage.suspends))
    resumes = MetricSamples("resumes", COUNTER, "Times that a sequence was resumed")
    resumes.add((), float(usage.resumes))
    return [sequences, dropped, requests, suspends, resumes]


def _sample_prompts(usage: UsageStatistics, tiers: list[str]) -> list[MetricSamples]:
    queried = MetricSamples("prefix_tokens_queried", COUNTER, "Prompt tokens that were looked up")
    queried.add((), float(usage.prompts.tokens))
    hits = MetricSamples("prefix_tokens_hit", COUNTER, "Prompt tokens found in the cache, by tier", ("tier",))
    for level, tier in enumerate(tiers):
        hits.add((tier,), float(usage.prompts.hit_tokens[level]))
    missed = MetricSamples("missed_tokens", COUNTER, "Prompt tokens not found in the cache, by cause", ("cause",))
    for cause in MissCause:
        missed.add((cause.name.lower(),), float(usage.prompts.missed_tokens.get(cause, 0)))
    return [queried, hits, missed]


def _sample_blocks(usage: UsageStatistics) -> list[MetricSamples]:
    allocated = MetricSamples("allocated_blocks", COUNTER, "Pages made", ("layer_group",))
    reused = MetricSamples("reused_blocks", COUNTER, "Blocks found, in full, in part or planned", ("layer_group", "coverage"))
    missed = MetricSamples("missed_blocks", COUNTER, "Pages allocated for prompt tokens", ("layer_group",))
    generated = MetricSamples("generated_blocks", COUNTER, "Pages allocated for generated tokens", ("layer_group",))
    for group in usage.layer_groups:
        label = str(group.layer_group_id)
        allocated.add((label,), float(group.allocated))
        reused.add((label, "full"), float(group.reused_full))
        reused.add((label, "partial"), float(group.reused_partial))
        reused.add((label, "planned"), float(group.reused_planned))
        missed.add((label,), float(group.missed))
        generated.add((label,), float(group.generated))
    return [allocated, reused, missed, generated]


def _sample_movements(usage: UsageStatistics, tiers: list[str]) -> list[MetricSamples]:
    num_bytes = MetricSamples("transfer_bytes", COUNTER, "Bytes of pages copied between tiers or within one", ("src", "dst"))
    blocks = MetricSamples("transfer_blocks", COUNTER, "Pages copied between tiers or within one", ("src", "dst"))
    for source, source_name in enumerate(tiers):
        for target, target_name in enumerate(tiers):
            moved = [transfer for transfer in usage.transfers if transfer.source_level == source and transfer.target_level == target]
            num_bytes.add((source_name, target_name), float(sum([transfer.bytes for transfer in moved])))
            blocks.add((source_name, target_name), float(sum([transfer.blocks for transfer in moved])))
    evicted = MetricSamples("evicted_blocks", COUNTER, "Pages dropped for good, by tier and reason", ("tier", "reason"))
    for level, tier in enumerate(tiers):
        for reason in DropReason:
            dropped = [drop.blocks for drop in usage.drops if drop.level == level and drop.reason is reason]
            evicted.add((tier, reason.name.lower()), float(sum(dropped)))
    return [num_bytes, blocks, evicted]
