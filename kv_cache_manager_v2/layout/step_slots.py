"""The slots that a step needs: of one sequence by layer group, of a batch by pool group.

Counted are the pages that a sequence holds while it computes tokens ``history_length .. capacity - 1``: the blocks of each layer
group that are neither stale nor scratch, the scratch slots, and one slot for recurrent state with its checkpoints. Blocks wholly
inside a system prompt are counted once for all sequences of a batch that still need them.
"""

from ..base.integer_math import ceil_div
from ..base.ranges import HalfOpenRange, intersect
from ..config.batch_desc import BatchDesc, KVCacheDesc
from ..config.manager_config import KVCacheManagerConfig
from .life_cycle import LifeCycle
from .slot_layout import SlotLayout
from .windows import compute_scratch_range


def slots_of_sequence(
    layout: SlotLayout, config: KVCacheManagerConfig, kv_cache: KVCacheDesc, level: int = 0, num_shared_blocks: int = 0
) -> tuple[int, ...]:
    """Slots by life cycle, without those for the first ``num_shared_blocks`` blocks.

    On levels other than 0 scratch does not count: its blocks have no pages that could be offloaded.
    """
    counts: list[int] = []
    num_blocks = int(ceil_div(kv_cache.capacity, config.tokens_per_block))
    own = HalfOpenRange(min(num_shared_blocks, num_blocks), num_blocks)
    for life_cycle_id, life_cycle in enumerate(layout.life_cycles):
        if not life_cycle.has_page_per_block:
            counts.append(1 + config.state_checkpoints)
            continue
        stale = life_cycle.compute_stale_range(kv_cache.history_length, config.tokens_per_block)
        count = len(own) - len(intersect(stale, own))
        scratch = config.swa_scratch_reuse
        if scratch is not None:
            scratch_range = compute_scratch_range(
                kv_cache.history_length, kv_cache.capacity, life_cycle, config.tokens_per_block, scratch.max_rewind_len
            )
            num_scratch_blocks = len(intersect(scratch_range, own))
            count -= num_scratch_blocks
            if level == 0:
                count += layout.compute_num_scratch_slots(life_cycle_id, num_scratch_blocks)
        counts.append(count)
    return tuple(counts)


def slots_of_batch(layout: SlotLayout, config: KVCacheManagerConfig, batch: BatchDesc, level: int = 0) -> tuple[int, ...]:
    """Slots by pool group that exactly this batch needs."""
    return sum_over_life_cycles(layout, batch_slots_by_life_cycle(layout, config, batch, level))


def batch_slots_by_life_cycle(layout: SlotLayout, config: KVCacheManagerConfig, batch: BatchDesc, level: int) -> list[int]:
    num_shared_blocks = batch.system_prompt_length // config.tokens_per_block
    counts = [_count_shared_blocks(life_cycle, config.tokens_per_block, batch, num_shared_blocks) for life_cycle in layout.life_cycles]
    seen: dict[KVCacheDesc, tuple[int, ...]] = {}  # batches tend to repeat a few sequences
    for kv_cache in batch.kv_caches:
        slots = seen.get(kv_cache)
        if slots is None:
            slots = slots_of_sequence(layout, config, kv_cache, level, num_shared_blocks)
            seen[kv_cache] = slots
        for life_cycle_id, count in enumerate(slots):
            counts[life_cycle_id] += count
    return counts


def sum_over_life_cycles(layout: SlotLayout, counts: list[int]) -> tuple[int, ...]:
    """From slots by life cycle to slots by pool group."""
    sums = [0] * layout.num_pool_groups
    for life_cycle_id, count in enumerate(counts):
        sums[layout.pool_group_indices[life_cycle_id]] += count
    return tuple(sums)


def _count_shared_blocks(life_cycle: LifeCycle, tokens_per_block: int, batch: BatchDesc, num_shared_blocks: int) -> int:
    """Blocks of the system prompt that at least one sequence of the batch needs."""
    if num_shared_blocks == 0 or not life_cycle.has_page_per_block:
        return 0
    needed: list[tuple[int, int]] = []
    for kv_cache in batch.kv_caches:
        end = min(num_shared_blocks, int(ceil_div(kv_cache.capacity, tokens_per_block)))
        stale = life_cycle.compute_stale_range(kv_cache.history_length, tokens_per_block)
        needed.append((0, min(stale.beg, end)))
        needed.append((min(stale.end, end), end))
    count = 0
    counted_up_to = 0
    for beg, end in sorted(needed):
        if end > counted_up_to:
            count += end - max(beg, counted_up_to)
            counted_up_to = end
    return count
