"""Division of a level's quota: how many slots each pool group gets. Exact integer arithmetic.

1. The minimum. Each configured constraint must fit; and where there are constraints, a windowed layer group also gets
   one window at its widest, ``sinks + ceil((W - 1) / T) + 1`` blocks, or all blocks of the longest sequence if that
   is less: a sequence that fits at one length must not get stuck at the next. In any case one slot per layer group, and
   as many as one sequence has for recurrent state. A quota under the minimum is a `ValueError` with the bytes and the constraint.
2. The whole quota is divided in proportion to the slots of ``typical_step``, or to the bytes of ``initial_pool_ratio``. Recurrent
   state also gets slots for snapshots: one per sequence of a typical step. A pool group whose share is under its minimum gets exactly
   the minimum, and the others divide the rest anew, until no share is under its minimum (`_level_out`): so a constraint that is
   weaker than the typical step changes nothing.
   Without either setting, the quota is divided in the same way by the needs of a guessed sequence, those of reuse included
   (`_guessed_sequence_slots`). First, though, each pool group gets the slots of one sequence that prefills in chunks, of the
   longest length that the quota can hold, up to `LONG_SEQUENCE_TOKENS`: so even a small quota serves one sequence.
   With ``max_sequence_length`` that one sequence has this length, and the guess follows from it instead of from the quota.
3. Whole slots are given by largest remainder (ties: the lower pool group), then as long as any slot fits.

`reserve_null_slot` takes one more slot of each pool group, outside the quota and not counted here.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from ..base.integer_math import ceil_div
from ..config.batch_desc import BatchDesc
from ..config.cache_tier_config import ExternalCacheTierConfig
from ..config.manager_config import KVCacheManagerConfig
from .life_cycle import LifeCycle
from .slot_layout import SlotLayout
from .step_slots import batch_slots_by_life_cycle, slots_of_batch, sum_over_life_cycles

LONG_SEQUENCE_TOKENS: Final = 16384
WINDOWS_PER_LONG_SEQUENCE: Final = 4
"""A long sequence: `LONG_SEQUENCE_TOKENS`, or so many of the model's largest window."""

SHORT_SEQUENCE_TOKENS: Final = 1024
SEQUENCES_PER_QUOTA: Final = 40
"""The guess without any knowledge of the requests: so many sequences fill level 0, each no shorter or longer than the limits above.
Chosen by replaying generated workloads and traces with fixed ratios: `tests/unit/replay/sweep_pool_ratios.py`."""

NEW_TOKENS_DIVISOR: Final = 24
"""The guess with a known longest sequence: each request adds a 24th of that length in new tokens, at least
`SHORT_SEQUENCE_TOKENS`, and one prefix end to reuse. Chosen in the same way."""

TOKENS_PER_SNAPSHOT: Final = 1024
"""The distance of snapshots of recurrent state in the guessed sequence."""

PREFILL_CHUNK_TOKENS: Final = 2048
"""The guessed number of inputs of a step."""


def plan_slot_counts(layout: SlotLayout, config: KVCacheManagerConfig, quota_bytes: int, level: int) -> tuple[int, ...]:
    """Slots by pool group: at most ``quota_bytes`` in all, and no further slot would fit; or those of external memory."""
    # Asked, too, for a level that the configuration has not, as one more like the others.
    tier = config.cache_tiers[level if level < len(config.cache_tiers) else 0]
    if isinstance(tier, ExternalCacheTierConfig):
        return _require_slots(layout, config, tier.slot_counts, level)
    return _share_quota(layout, config, quota_bytes, level, _minimum_within(layout, config, quota_bytes, level))


def _require_slots(layout: SlotLayout, config: KVCacheManagerConfig, slot_counts: Sequence[int], level: int) -> tuple[int, ...]:
    """The slot counts of external memory; `ValueError` unless there is one for each pool group, and no fewer than it needs."""
    counts = tuple(slot_counts)
    least = compute_min_slot_counts(layout, config, level)
    if len(counts) != len(least):
        raise ValueError(
            f"ExternalCacheTierConfig.slot_counts has {len(counts)} numbers, and the layers make {len(least)} pool groups, of slots with "
            f"{[layout.slot_bytes_total(index) for index in range(len(least))]} bytes: give one number for each, or layers of equal size"
        )
    for index, count in enumerate(counts):
        if count < least[index]:
            raise ValueError(
                f"ExternalCacheTierConfig.slot_counts has {count} slots for pool group {index}, but at least {least[index]} are needed: "
                f"{_describe_minimum(layout, config, level, list(least))}"
            )
    return counts


def plan_new_slot_counts(
    layout: SlotLayout, config: KVCacheManagerConfig, quota_bytes: int, level: int, least: Sequence[int], shares: Sequence[int] | None
) -> tuple[int, ...] | None:
    """New slot counts of a level in use, at least ``least`` by pool group; None if those exceed the quota.

    ``shares`` of the bytes, if given, replace the configured ones.
    """
    counts = _raised_to(_minimum_within(layout, config, quota_bytes, level), tuple(least))
    if compute_slots_bytes(layout, counts, level) > quota_bytes:
        return None
    if shares is not None:
        _share_rest(layout, quota_bytes, list(shares), counts, level)
        return tuple(counts)
    return _share_quota(layout, config, quota_bytes, level, counts)


def _share_quota(layout: SlotLayout, config: KVCacheManagerConfig, quota_bytes: int, level: int, counts: list[int]) -> tuple[int, ...]:
    """``counts`` (the fewest slots by pool group) and the divided rest of the quota."""
    weights = _configured_shares(layout, config, level)
    if weights is None:
        counts = _with_one_sequence(layout, config, quota_bytes, counts, level)
        level_0_bytes = quota_bytes if level == 0 else config.cache_tiers[0].quota
        guessed = _guessed_sequence_slots(layout, config, level_0_bytes)
        weights = [count * layout.slot_bytes_total(index, level) for index, count in enumerate(guessed)]
    counts, weights = _level_out(layout, quota_bytes, weights, counts, level)
    _share_rest(layout, quota_bytes, weights, counts, level)
    return tuple(counts)


def _minimum_within(layout: SlotLayout, config: KVCacheManagerConfig, quota_bytes: int, level: int) -> list[int]:
    counts = list(compute_min_slot_counts(layout, config, level))
    min_bytes = compute_slots_bytes(layout, counts, level)
    if min_bytes > quota_bytes:
        raise ValueError(
            f"the quota of level {level} is {quota_bytes} bytes, but at least {min_bytes} are needed:"
            f" {_describe_minimum(layout, config, level, counts)}; raise the quota"
        )
    return counts


def _configured_shares(layout: SlotLayout, config: KVCacheManagerConfig, level: int) -> list[int] | None:
    """The configured shares of the bytes by pool group; None without such settings."""
    if config.initial_pool_ratio is not None:
        return _to_integers(config.initial_pool_ratio)
    if config.typical_step is None:
        return None
    slots = slots_of_batch(layout, config, config.typical_step, level)
    if not any(slots):
        return None
    slots = _with_snapshots(layout, slots, len(config.typical_step.kv_caches))
    return [count * layout.slot_bytes_total(index, level) for index, count in enumerate(slots)]


def describe_slots(layout: SlotLayout, slot_counts: list[int] | tuple[int, ...], level: int) -> str:
    """So many slots by pool group, for messages: "2 slots of 512 bytes", with the pool group's name where there are several."""
    parts = []
    for index, count in enumerate(slot_counts):
        where = f" in pool group {index}" if len(slot_counts) > 1 else ""
        parts.append(f"{count} {'slot' if count == 1 else 'slots'} of {layout.slot_bytes_total(index, level)} bytes{where}")
    return ", ".join(parts)


def compute_slots_bytes(layout: SlotLayout, slot_counts: list[int] | tuple[int, ...], level: int = 0) -> int:
    """Bytes of that many slots by pool group."""
    return sum([count * layout.slot_bytes_total(index, level) for index, count in enumerate(slot_counts)])


def compute_min_slot_counts(layout: SlotLayout, config: KVCacheManagerConfig, level: int) -> tuple[int, ...]:
    """The fewest slots by pool group that the configuration needs on this level, whatever the quota."""
    least = [1 if cycle.has_page_per_block else 1 + config.state_checkpoints for cycle in layout.life_cycles]
    counts = list(sum_over_life_cycles(layout, least))
    longest = 0
    for batch in config.constraints:
        for kv_cache in batch.kv_caches:
            longest = max(longest, kv_cache.capacity)
    max_blocks = int(ceil_div(longest, config.tokens_per_block))
    for batch in config.constraints:
        by_life_cycle = batch_slots_by_life_cycle(layout, config, batch, level)
        for life_cycle_id, life_cycle in enumerate(layout.life_cycles):
            if life_cycle.window_size is not None:
                widest = compute_widest_need(life_cycle, max_blocks, config.tokens_per_block, 1)
                by_life_cycle[life_cycle_id] = max(by_life_cycle[life_cycle_id], widest)
        for index, count in enumerate(sum_over_life_cycles(layout, by_life_cycle)):
            counts[index] = max(counts[index], count)
    return tuple(counts)


def compute_constraint_slots(layout: SlotLayout, config: KVCacheManagerConfig) -> list[int]:
    """By pool group, the most level-0 slots that one of the constraints takes; 0 where there are none."""
    counts = [0] * layout.num_pool_groups
    for batch in config.constraints:
        counts = _raised_to(counts, slots_of_batch(layout, config, batch))
    return counts


def compute_widest_need(life_cycle: LifeCycle, num_blocks: int, tokens_per_block: int, num_inputs: int, state_checkpoints: int = 0) -> int:
    """The most slots of a sequence of at most ``num_blocks`` blocks in a step of ``num_inputs``, without scratch."""
    if not life_cycle.has_page_per_block:
        return 1 + state_checkpoints
    window = life_cycle.window_size
    if window is None:
        return num_blocks
    # The step reads from the first input's first window token to the last input. At its widest, this range begins with the last
    # token of a block; the other tokens fill whole blocks, and one more if they do not divide.
    num_others = window + num_inputs - 2
    return min(num_blocks, life_cycle.num_sink_blocks + int(ceil_div(num_others, tokens_per_block)) + 1)


def _long_sequence_tokens(layout: SlotLayout, config: KVCacheManagerConfig) -> int:
    if config.max_sequence_length is not None:
        return config.max_sequence_length
    tokens = LONG_SEQUENCE_TOKENS
    for life_cycle in layout.life_cycles:
        window = life_cycle.window_size
        if window is not None:
            tokens = max(tokens, WINDOWS_PER_LONG_SEQUENCE * window)
    return tokens


def _with_one_sequence(layout: SlotLayout, config: KVCacheManagerConfig, quota_bytes: int, counts: list[int], level: int) -> list[int]:
    """``counts`` raised to the needs of one sequence: the longest, up to a long one, that can prefill within the quota."""
    def raise_counts(num_blocks: int) -> list[int]:
        return _raised_to(counts, sequence_slots(layout, config, num_blocks, PREFILL_CHUNK_TOKENS))

    def fits(num_blocks: int) -> bool:
        return compute_slots_bytes(layout, raise_counts(num_blocks), level) <= quota_bytes

    longest = int(ceil_div(_long_sequence_tokens(layout, config), config.tokens_per_block))
    return raise_counts(find_last_fitting(fits, 0, longest + 1))


def _guessed_sequence_slots(layout: SlotLayout, config: KVCacheManagerConfig, quota_bytes: int) -> tuple[int, ...]:
    """The slots of a decoding sequence, of the length at which `SEQUENCES_PER_QUOTA` sequences fill the quota, or as configured.

    Reuse needs a full-attention page of every block, but window pages and recurrent state only where a prefix ends. In short
    sequences such ends are close together. A small quota holds many sequences only if they are short.
    """
    longest = config.max_sequence_length
    if longest is not None:
        new_tokens = max(longest // NEW_TOKENS_DIVISOR, min(longest, SHORT_SEQUENCE_TOKENS))
        num_blocks = int(ceil_div(new_tokens, config.tokens_per_block))
        return _with_snapshots(layout, sequence_slots(layout, config, num_blocks, 1), 1)
    least_blocks = int(ceil_div(SHORT_SEQUENCE_TOKENS, config.tokens_per_block))
    most_blocks = int(ceil_div(_long_sequence_tokens(layout, config), config.tokens_per_block))

    def fits(num_blocks: int) -> bool:
        return SEQUENCES_PER_QUOTA * compute_slots_bytes(layout, _kept_sequence_slots(layout, config, num_blocks)) <= quota_bytes

    return _kept_sequence_slots(layout, config, find_last_fitting(fits, least_blocks, most_blocks + 1))


def find_last_fitting(fits: Callable[[int], bool], fitting: int, too_many: int) -> int:
    """The last number that fits, by bisection: ``fitting`` does, ``too_many`` does not."""
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if fits(middle):
            fitting = middle
        else:
            too_many = middle
    return fitting


def _kept_sequence_slots(layout: SlotLayout, config: KVCacheManagerConfig, num_blocks: int) -> tuple[int, ...]:
    num_snapshots = num_blocks * config.tokens_per_block // TOKENS_PER_SNAPSHOT
    return _with_snapshots(layout, sequence_slots(layout, config, num_blocks, 1), num_snapshots)


def _level_out(layout: SlotLayout, quota_bytes: int, weights: list[int], least: list[int], level: int) -> tuple[list[int], list[int]]:
    """Initial counts, and shares of the rest, so that the whole quota is divided by ``weights``.

    A pool group whose share is under its ``least`` slots gets exactly these; the others divide what is left.
    """
    counts = [0] * len(weights)
    open_weights = list(weights)
    rest = quota_bytes
    is_settled = False
    while not is_settled:
        is_settled = True
        total = sum(open_weights)
        if total == 0:
            return least, weights
        for index, weight in enumerate(open_weights):
            slot_bytes = layout.slot_bytes_total(index, level)
            if counts[index] == 0 and rest * weight // (total * slot_bytes) < least[index]:
                counts[index] = least[index]
                open_weights[index] = 0
                rest -= least[index] * slot_bytes
                is_settled = False
                break
    return counts, open_weights


def _with_snapshots(layout: SlotLayout, slots: tuple[int, ...], num_snapshots: int) -> tuple[int, ...]:
    """Slots by pool group, with room for that many snapshots of recurrent state."""
    state_life_cycle = layout.life_cycles.state_life_cycle_id
    if state_life_cycle is None or not any(slots):
        return slots
    counts = list(slots)
    counts[layout.pool_group_indices[state_life_cycle]] += num_snapshots
    return tuple(counts)


def sequence_slots(layout: SlotLayout, config: KVCacheManagerConfig, num_blocks: int, num_inputs: int) -> tuple[int, ...]:
    """Slots by pool group of one sequence; grows with ``num_blocks``, wherever its windows begin. With one input: the most that it holds
    while it grows to that many blocks, at the first token of the last one."""
    size, checkpoints = config.tokens_per_block, config.state_checkpoints
    needs = [compute_widest_need(life_cycle, num_blocks, size, num_inputs, checkpoints) for life_cycle in layout.life_cycles]
    return sum_over_life_cycles(layout, needs)


def _raised_to(counts: list[int], floor: tuple[int, ...]) -> list[int]:
    return [max(count, floor[index]) for index, count in enumerate(counts)]


def _share_rest(layout: SlotLayout, quota_bytes: int, weights: list[int], counts: list[int], level: int) -> None:
    """Add the slots that the rest of the quota has room for; ``weights`` are shares of the bytes."""
    slot_bytes = [layout.slot_bytes_total(index, level) for index in range(len(counts))]
    rest = quota_bytes - compute_slots_bytes(layout, counts, level)
    total_weight = sum(weights)
    common_multiple = math.prod(slot_bytes)
    order: list[tuple[int, int]] = []
    for index, weight in enumerate(weights):
        # This group's exact share is rest * weight / (total_weight * slot_bytes) slots; the remainders are compared over one
        # denominator.
        num_slots, remainder = divmod(rest * weight, total_weight * slot_bytes[index])
        counts[index] += num_slots
        order.append((-remainder * (common_multiple // slot_bytes[index]), index))
    left = quota_bytes - compute_slots_bytes(layout, counts, level)
    for _, index in sorted(order):
        if slot_bytes[index] <= left:
            counts[index] += 1
            left -= slot_bytes[index]
    # A slot of another pool group may still fit into the bytes left over by a larger slot.
    for negative_bytes, index in sorted([(-num_bytes, index) for index, num_bytes in enumerate(slot_bytes)]):
        counts[index] += left // -negative_bytes
        left %= -negative_bytes


def _to_integers(ratios: Sequence[float]) -> list[int]:
    """Integers in exactly these proportions: a float is a fraction whose denominator is a power of two."""
    fractions = [ratio.as_integer_ratio() for ratio in ratios]
    largest = max([denominator for _, denominator in fractions])
    return [numerator * (largest // denominator) for numerator, denominator in fractions]


def _describe_minimum(layout: SlotLayout, config: KVCacheManagerConfig, level: int, counts: list[int]) -> str:
    needs = describe_slots(layout, counts, level)
    if not config.constraints:
        return f"{needs}, one slot for each layer group"
    most_bytes = -1
    demanding = 0
    for index, batch in enumerate(config.constraints):
        num_bytes = compute_slots_bytes(layout, slots_of_batch(layout, config, batch, level), level)
        if num_bytes > most_bytes:
            most_bytes = num_bytes
            demanding = index
    batch_text = _describe_batch(config.constraints[demanding])
    return f"{needs}, so that all constraints fit; constraints[{demanding}] ({batch_text}) takes {most_bytes} bytes"


def _describe_batch(batch: BatchDesc) -> str:
    longest = max([kv_cache.capacity for kv_cache in batch.kv_caches])
    return f"{len(batch.kv_caches)} sequences of up to {longest} tokens, {batch.system_prompt_length} of them a system prompt"
