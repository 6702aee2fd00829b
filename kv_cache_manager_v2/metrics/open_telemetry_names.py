"""What each metric is called in OpenTelemetry: dots, units apart from names, no ``_total``; by the name that Prometheus has for it."""

from typing import Final

NAMES: Final[dict[str, tuple[str, str]]] = {
    "kvcm_cache_usage_ratio": ("kvcm.cache.utilization", "1"),
    "kvcm_blocks": ("kvcm.slot.count", "{slot}"),
    "kvcm_clean_copies": ("kvcm.clean_copy.count", "{slot}"),
    "kvcm_refusals": ("kvcm.refusals", "{call}"),
    "kvcm_level_closed": ("kvcm.level.closed", "1"),
    "kvcm_durable_failed": ("kvcm.durable.failed", "1"),
    "kvcm_restored_pages": ("kvcm.restored.count", "{page}"),
    "kvcm_damaged_pages": ("kvcm.pages.damaged", "{page}"),
    "kvcm_sequences": ("kvcm.sequence.count", "{sequence}"),
    "kvcm_requests": ("kvcm.requests", "{request}"),
    "kvcm_suspends": ("kvcm.suspends", "{call}"),
    "kvcm_resumes": ("kvcm.resumes", "{call}"),
    "kvcm_prefix_tokens_queried": ("kvcm.prefix.queried", "{token}"),
    "kvcm_prefix_tokens_hit": ("kvcm.prefix.hit", "{token}"),
    "kvcm_missed_tokens": ("kvcm.prefix.missed", "{token}"),
    "kvcm_allocated_blocks": ("kvcm.blocks.allocated", "{block}"),
    "kvcm_reused_blocks": ("kvcm.blocks.reused", "{block}"),
    "kvcm_missed_blocks": ("kvcm.blocks.missed", "{block}"),
    "kvcm_generated_blocks": ("kvcm.blocks.generated", "{block}"),
    "kvcm_evicted_blocks": ("kvcm.blocks.evicted", "{block}"),
    "kvcm_transfer_bytes": ("kvcm.transfer.io", "By"),
    "kvcm_transfer_blocks": ("kvcm.transfer.blocks", "{block}"),
    "kvcm_build_info": ("kvcm.build", "1"),
    "kvcm_events_published": ("kvcm.events.published", "{event}"),
    "kvcm_events_dropped": ("kvcm.events.dropped", "{event}"),
    "kvcm_shared_lookups": ("kvcm.shared.lookups", "{lookup}"),
    "kvcm_shared_pages": ("kvcm.shared.pages", "{page}"),
    "kvcm_shared_bytes": ("kvcm.shared.io", "By"),
    "kvcm_shared_failures": ("kvcm.shared.failures", "{operation}"),
    "kvcm_shared_dropped_pages": ("kvcm.shared.pages.dropped", "{page}"),
    "kvcm_shared_refusals": ("kvcm.shared.refusals", "{operation}"),
    "kvcm_shared_store_open": ("kvcm.shared.store.open", "1"),
    "kvcm_shared_slots": ("kvcm.shared.slot.count", "{slot}"),
}
"""With the unit, in UCUM."""
SUMMED: Final = frozenset({"kvcm_blocks", "kvcm_clean_copies", "kvcm_restored_pages", "kvcm_sequences", "kvcm_shared_slots"})
"""Gauges whose samples may be added up: up-down counters there."""
ATTRIBUTES: Final[dict[str, str]] = {"src": "kvcm.source_tier", "dst": "kvcm.target_tier"}
"""Of labels that are not called ``kvcm.`` and their own name."""


def name_attribute(label: str) -> str:
    return ATTRIBUTES.get(label, f"kvcm.{label}")
