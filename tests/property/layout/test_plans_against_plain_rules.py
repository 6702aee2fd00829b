"""Plans of slot counts beside the rules of `sizing` in fractions: every length tried, no integers put together."""

from fractions import Fraction
from random import Random
from typing import Any

import pytest

from kv_cache_manager_v2.base.ids import LayerId
from kv_cache_manager_v2.config.batch_desc import BatchDesc, KVCacheDesc
from kv_cache_manager_v2.config.cache_tier_config import GpuCacheTierConfig, HostCacheTierConfig
from kv_cache_manager_v2.config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.config.scratch_reuse_config import SwaScratchReuseConfig
from kv_cache_manager_v2.layout.sizing import (
    compute_constraint_slots,
    compute_min_slot_counts,
    compute_slots_bytes,
    compute_widest_need,
    plan_new_slot_counts,
    plan_slot_counts,
)
from kv_cache_manager_v2.layout.slot_layout import SlotLayout
from kv_cache_manager_v2.layout.step_slots import batch_slots_by_life_cycle

from .random_models import layout_of


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


class PlainRules:
    """What the docstring of `sizing` says, for one level."""

    def __init__(self, config: KVCacheManagerConfig, level: int) -> None:
        self.config = config
        self.level = level
        self.layout = layout_of(config)
        self.slot_bytes = [self.layout.slot_bytes_total(group) for group in range(self.layout.num_pool_groups)]

    def by_group(self, by_cycle: list[int]) -> list[int]:
        sums = [0] * self.layout.num_pool_groups
        for cycle, count in enumerate(by_cycle):
            sums[self.layout.pool_group_indices[cycle]] += count
        return sums

    def bytes_of(self, counts: list[int]) -> int:
        return sum(count * size for count, size in zip(counts, self.slot_bytes, strict=True))

    def need(self, num_blocks: int, num_inputs: int) -> list[int]:
        """Of one sequence, at its widest."""
        config = self.config
        needs = []
        for cycle in self.layout.life_cycles:
            if not cycle.has_page_per_block:
                needs.append(1 + config.state_checkpoints)
            else:
                needs.append(int(compute_widest_need(cycle, num_blocks, config.tokens_per_block, num_inputs)))
        return self.by_group(needs)

    def with_snapshots(self, counts: list[int], num_snapshots: int) -> list[int]:
        counts = list(counts)
        for cycle, life_cycle in enumerate(self.layout.life_cycles):
            if not life_cycle.has_page_per_block:
                counts[self.layout.pool_group_indices[cycle]] += num_snapshots
        return counts

    def minimum(self) -> list[int]:
        config = self.config
        counts = self.by_group([1 if cycle.has_page_per_block else 1 + config.state_checkpoints for cycle in self.layout.life_cycles])
        longest = max([kv_cache.capacity for batch in config.constraints for kv_cache in batch.kv_caches], default=0)
        num_blocks = ceil_div(longest, config.tokens_per_block)
        for batch in config.constraints:
            by_cycle = batch_slots_by_life_cycle(self.layout, config, batch, self.level)
            for number, cycle in enumerate(self.layout.life_cycles):
                if cycle.window_size is not None:
                    window = cycle.num_sink_blocks + ceil_div(cycle.window_size - 1, config.tokens_per_block) + 1
                    by_cycle[number] = max(by_cycle[number], min(window, num_blocks))
            counts = [max(pair) for pair in zip(counts, self.by_group(by_cycle), strict=True)]
        return counts

    def longest_blocks(self) -> int:
        windows = [cycle.window_size for cycle in self.layout.life_cycles if cycle.window_size is not None]
        tokens = self.config.max_sequence_length
        if tokens is None:
            tokens = max([16384, *[4 * window for window in windows]])
        return ceil_div(tokens, self.config.tokens_per_block)

    def with_one_sequence(self, counts: list[int], quota: int) -> list[int]:
        found = counts
        for num_blocks in range(self.longest_blocks() + 1):
            raised = [max(pair) for pair in zip(counts, self.need(num_blocks, 2048), strict=True)]
            if num_blocks == 0 or self.bytes_of(raised) <= quota:
                found = raised
        return found

    def guess(self, quota: int) -> list[int]:
        config = self.config
        size = config.tokens_per_block
        longest = config.max_sequence_length
        if longest is not None:
            new_tokens = max(longest // 24, min(longest, 1024))
            return self.with_snapshots(self.need(ceil_div(new_tokens, size), 1), 1)
        found = []
        least = ceil_div(1024, size)
        for num_blocks in range(least, max(self.longest_blocks(), least) + 1):
            slots = self.with_snapshots(self.need(num_blocks, 1), num_blocks * size // 1024)
            if num_blocks == least or 40 * self.bytes_of(slots) <= quota:
                found = slots
        return found

    def weights(self, quota: int) -> list[Fraction] | None:
        """As configured."""
        config = self.config
        if config.initial_pool_ratio is not None:
            return [Fraction(ratio) for ratio in config.initial_pool_ratio]
        if config.typical_step is None:
            return None
        slots = self.by_group(batch_slots_by_life_cycle(self.layout, config, config.typical_step, self.level))
        if not any(slots):
            return None
        return self.in_bytes(self.with_snapshots(slots, len(config.typical_step.kv_caches)))

    def in_bytes(self, slots: list[int]) -> list[Fraction]:
        return [Fraction(count * size) for count, size in zip(slots, self.slot_bytes, strict=True)]

    def share(self, quota: int, least: list[int]) -> list[int]:
        weights = self.weights(quota)
        if weights is None:
            least = self.with_one_sequence(least, quota)
            weights = self.in_bytes(self.guess(quota if self.level == 0 else self.config.cache_tiers[0].quota))
        at_least: set[int] = set()
        while True:
            rest = quota - sum(least[group] * self.slot_bytes[group] for group in at_least)
            others = [group for group in range(len(least)) if group not in at_least]
            total = sum([weights[group] for group in others], Fraction(0))
            if total == 0:
                return self.divide(quota, weights, least)
            small = {group for group in others if rest * weights[group] / total // self.slot_bytes[group] < least[group]}
            if not small:
                break
            at_least |= small
        begun = [least[group] if group in at_least else 0 for group in range(len(least))]
        return self.divide(quota, [Fraction(0) if group in at_least else weights[group] for group in range(len(least))], begun)

    def divide(self, quota: int, weights: list[Fraction], counts: list[int]) -> list[int]:
        """By largest remainder, then as long as any slot fits, the largest first."""
        counts = list(counts)
        rest = quota - self.bytes_of(counts)
        shares = [rest * weight / sum(weights) / size for weight, size in zip(weights, self.slot_bytes, strict=True)]
        counts = [count + int(share) for count, share in zip(counts, shares, strict=True)]
        for _, group in sorted([(-(share % 1), group) for group, share in enumerate(shares)]):
            if self.bytes_of(counts) + self.slot_bytes[group] <= quota:
                counts[group] += 1
        for _, group in sorted([(-size, group) for group, size in enumerate(self.slot_bytes)]):
            while self.bytes_of(counts) + self.slot_bytes[group] <= quota:
                counts[group] += 1
        return counts


def draw_layers(random: Random) -> list[LayerConfig]:
    layers: list[LayerConfig] = []
    for number in range(random.randint(1, 4)):
        if number > 0 and random.random() < 0.3:
            layers.append(SsmLayerConfig(LayerId(number), [BufferConfig("state", random.choice((64, 700, 4096)))]))
            continue
        window = random.choice((None, 1, 64, 100, 3000, 9000))
        sinks = None if window is None else random.choice((None, 40))
        buffers = [BufferConfig("key", random.choice((16, 24, 64))), BufferConfig("value", 16)]
        layers.append(AttentionLayerConfig(LayerId(number), buffers, window, sinks))
    return layers


def draw_batch(random: Random) -> BatchDesc:
    kv_caches = []
    for _ in range(random.randint(1, 4)):
        capacity = random.choice((0, 1, 33, 500, 3000))
        kv_caches.append(KVCacheDesc(capacity, random.randint(0, capacity)))
    return BatchDesc(kv_caches, random.choice((0, 0, min(64, max(one.capacity for one in kv_caches)))))


def draw_config(random: Random) -> KVCacheManagerConfig:
    layers = draw_layers(random)
    settings: dict[str, Any] = {}
    if random.random() < 0.5:
        settings["constraints"] = [draw_batch(random) for _ in range(random.randint(1, 2))]
    if random.random() < 0.3:
        settings["swa_scratch_reuse"] = SwaScratchReuseConfig(random.choice((0, 5)))
    hint = random.choice(("none", "none", "length", "step", "ratio"))
    if hint == "length":
        settings["max_sequence_length"] = random.choice((20, 1000, 5000, 40_000))
    elif hint == "step":
        settings["typical_step"] = draw_batch(random)
    tiers: list[Any] = [GpuCacheTierConfig(random.choice((1, 50_000, 2_000_000))), HostCacheTierConfig(1 << 20)]
    size = random.choice((32, 48, 128))
    config = KVCacheManagerConfig(size, tiers, layers, **settings)
    if hint == "ratio":
        ratio = [random.choice((0.25, 1.0, 3.0, 0.1)) for _ in range(layout_of(config).num_pool_groups)]
        config = KVCacheManagerConfig(size, tiers, layers, initial_pool_ratio=ratio, **settings)
    return config


def draw_more(random: Random, layout: SlotLayout) -> int:
    """Bytes beyond the minimum: none, some slots, some sequences."""
    some = sum(layout.slot_bytes_total(group) for group in range(layout.num_pool_groups))
    return random.choice((0, random.randrange(some * random.choice((1, 20, 2000, 100_000)))))


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 300, 50)], ids=str)
def test_a_quota_is_divided_by_the_rules(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        config, level = draw_config(random), random.randrange(2)
        rules = PlainRules(config, level)
        layout = rules.layout
        minimum = rules.minimum()
        assert list(compute_min_slot_counts(layout, config, level)) == minimum
        assert compute_slots_bytes(layout, minimum) == rules.bytes_of(minimum)
        least_bytes = rules.bytes_of(minimum)
        quota = least_bytes + draw_more(random, layout)
        assert list(plan_slot_counts(layout, config, quota, level)) == rules.share(quota, minimum), f"seed {seed}"
        least = [random.choice((0, count, count + random.randrange(9))) for count in minimum]
        raised = [max(pair) for pair in zip(least, minimum, strict=True)]
        shares = random.choice((None, [random.randrange(1, 5) for _ in least]))
        if rules.bytes_of(raised) > quota:
            expected = None
        elif shares is None:
            expected = rules.share(quota, raised)
        else:
            expected = rules.divide(quota, [Fraction(share) for share in shares], raised)
        found = plan_new_slot_counts(layout, config, quota, level, least, shares)
        assert (None if found is None else list(found)) == expected, f"seed {seed}"
        most = [0] * len(minimum)
        for batch in config.constraints:
            slots = rules.by_group(batch_slots_by_life_cycle(layout, config, batch, 0))
            most = [max(pair) for pair in zip(most, slots, strict=True)]
        assert compute_constraint_slots(layout, config) == most
