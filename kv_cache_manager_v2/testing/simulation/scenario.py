"""A scenario: the configuration, the device, and the list of actions of one seed.

An `Action` is a kind and a number; the number is the seed of everything that the action draws when it is performed (which
sequence, how many tokens). So an action is valid in every state, and a history can be shortened by leaving
actions out.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final, final


from ...base.ids import LayerId
from ...config.cache_tier_config import DiskCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig
from ...config.layer_config import AttentionLayerConfig, BufferConfig, SsmLayerConfig
from ...config.manager_config import KVCacheManagerConfig
from ...config.scratch_reuse_config import SwaScratchReuseConfig
from ..reversing_codec import ReversingCodec
from ..simulated_device import SimulatedDevice
from .external_scenario import draw_external, make_external
from .draft_trees import grows_trees, without_scratch
from .large_worlds import (
    LARGE_FACTORS,
    LARGE_STEPS_PER_CHECK,
    SHARE_OF_REPEATED,
    draw_large_blocks,
    draw_large_config,
    draw_large_fault_share,
    is_large,
)
from .packed_scenario import draw_codec, draw_fault_share
from .policy_scenario import draw_policies, draw_settings
from .rare_scenarios import (
    BRIMFUL,
    CHUNKED,
    CHUNKED_PROMPT_BLOCKS,
    CHUNKED_STEP_BLOCKS,
    brimful_blocks,
    choose_bends,
    chunk_prompts,
    crowd,
    draw_lopsided,
    fill_to_the_brim,
    fragment,
    is_fragmented,
)
from .residency_scenario import blocks_of_prompts, draw_residency, has_residency, leave_room_below
from .sharing_scenario import draw_decoding, draw_planning, draw_sharing
from .state_scenario import add_state

_SHARE_OF_FILLED: Final = 0.06
_SHARE_OF_PARTED: Final = 0.25
_SHARE_OF_EQUAL_SLOTS: Final = 0.6
"""The share of scenarios in which layers that need the same blocks are in several groups."""
_SHARE_OF_STAYING: Final = 0.3
"""The share of scenarios in which indices stay."""
_SHARE_OF_REPEATED: Final = 0.85
_SHARE_OF_REPEATED_PAIRS: Final = 0.4
"""Where indices stay: two sequences that compute the same blocks side by side need a prompt that is not cached."""
_STEP_BLOCKS: Final = 3
"""Chunks of a prompt have up to that many blocks."""
_LIKELIHOODS: Final = {
    "create": 14.0,
    "resume": 10.0,
    "step": 30.0,
    "step_batch": 16.0,
    "commit": 12.0,
    "rewind": 3.0,
    "move_history": 2.0,
    "suspend": 5.0,
    "prefetch": 1.5,
    "resize_level": 1.5,
    "hint": 2.0,
    "stop_committing": 3.0,
    "close": 8.0,
    "fork": 5.0,
    "abandon": 0.7,
    "change_stream": 3.0,
    "give_buffer": 2.0,
    "misuse": 3.0,
    "clear": 1.6,
    "synchronize": 0.3,
}
"""The weight of each kind of action, before a scenario changes it."""


@final
class Action:
    __slots__ = ("kind", "number")

    def __init__(self, kind: str, number: int) -> None:
        self.kind: Final = kind
        self.number: Final = number

    def __repr__(self) -> str:
        return f"{self.kind}#{self.number}"


@final
class Scenario:
    """All that a seed decides. ``quota`` may have to grow before a manager accepts it."""

    __slots__ = (
        "seed", "config", "granularity_bytes", "actions", "num_streams", "max_sequences", "max_tokens", "vocabulary",
        "digest_share", "max_kept_texts", "max_cut", "commits_at_once", "max_event_entries", "steps_per_event_check", "fault_share",
        "spares_writes", "grows_trees", "fills_pages", "is_large", "share_of_repeated",
        "steps_per_invariants", "max_step_blocks", "codec", "has_residency",
    )  # fmt: skip

    seed: Final[int]
    config: Final[KVCacheManagerConfig]
    codec: Final[ReversingCodec | None]
    granularity_bytes: Final[int]
    actions: Final[list[Action]]
    num_streams: Final[int]
    max_sequences: Final[int]
    max_tokens: Final[int]
    vocabulary: Final[int]
    digest_share: Final[float]
    max_kept_texts: Final[int]
    """Few of them are shared often."""
    max_cut: Final[int]
    """`TextSource`'s ``max_cut``."""
    commits_at_once: Final[float]
    max_event_entries: Final[int]
    """Entries of the buffer for KV events; 0: no listener."""
    steps_per_event_check: Final[int]
    fault_share: Final[float]
    """The share of actions before which a failure of the device is planned."""
    spares_writes: Final[bool]
    """No write to a disk fails: after a failed one, nothing would be written, and so nothing read any more."""
    grows_trees: Final[bool]
    fills_pages: Final[bool]
    """Fill pages with a debug pattern, which changes no decision."""
    is_large: Final[bool]
    steps_per_invariants: Final[int]
    max_step_blocks: Final[int]
    """Blocks of a chunk of a prompt."""
    has_residency: Final[bool]
    """Many sequences have residency windows."""
    share_of_repeated: Final[float]
    """The share of prompts that begin like an earlier one."""

    def __init__(self, seed: int, num_actions: int) -> None:
        random = Random(seed)
        self.seed = seed
        self.fills_pages = Random(41 * seed + 3).random() < _SHARE_OF_FILLED
        self.granularity_bytes = 1 << random.choice((8, 10, 12))
        # Mostly no faults, so that refusals can be judged strictly. Drawn apart, like everything that was added later.
        self.is_large = is_large(seed)
        fault_share = Random(7 * seed + 4).choice((0.0, 0.0, 0.0, 0.05, 0.15))
        fault_share = draw_large_fault_share(seed) if self.is_large else fault_share
        drawn = _draw_config(random)
        bends = LARGE_FACTORS if self.is_large else choose_bends(seed, fault_share > 0.0)
        self.grows_trees = bends is not CHUNKED and grows_trees(seed)
        self.spares_writes = fault_share > 0.0 and len(bends) > 0
        config = _bend_config(drawn, seed, bends, self.grows_trees)
        if fault_share > 0.0:
            config = end_on_disk(config)
            if is_fragmented(seed):
                config = fragment(config)
        elif bends is not BRIMFUL and not self.grows_trees:
            config = make_external(config, seed)
        config = draw_settings(_divide_into_equal_slots(config, seed), seed)
        self.has_residency = len(bends) == 0 and not self.grows_trees and has_residency(config, seed)
        if self.has_residency:
            config = leave_room_below(config)
        self.config = config
        self.codec = draw_codec(config, seed)
        ends_on_disk = isinstance(config.cache_tiers[-1], DiskCacheTierConfig)
        self.fault_share = fault_share if self.codec is None or ends_on_disk else draw_fault_share(seed)
        self.num_streams = random.choice((1, 2, 3, 5, 8))
        max_sequences = random.choice((2, 4, 8, 12))
        self.max_sequences = 1 + seed % 2 if bends is BRIMFUL or bends is CHUNKED else max_sequences
        max_blocks = random.choice((3, 6, 12))
        if self.is_large:
            max_blocks = draw_large_blocks(seed)
        elif bends is CHUNKED:
            max_blocks = CHUNKED_PROMPT_BLOCKS
        elif self.has_residency:
            max_blocks = blocks_of_prompts(seed)
        self.max_step_blocks = CHUNKED_STEP_BLOCKS if bends is CHUNKED else _STEP_BLOCKS
        self.max_tokens = self.config.tokens_per_block * (brimful_blocks(seed) if bends is BRIMFUL else max_blocks)
        vocabulary = random.choice((2, 4, 1000))
        self.vocabulary = 1000 if self.is_large else vocabulary
        share_of_repeated = _SHARE_OF_REPEATED if config.allow_seq_rebasing else _SHARE_OF_REPEATED_PAIRS
        self.share_of_repeated = SHARE_OF_REPEATED if self.is_large else share_of_repeated
        self.digest_share = random.choice((0.0, 0.0, 0.1))
        max_kept_texts, commits_at_once = random.choice((1, 3, 12)), random.choice((0.3, 0.8, 1.0))
        self.max_cut = self.config.tokens_per_block if bends is BRIMFUL else 0
        self.max_kept_texts = 1 if bends is BRIMFUL else max_kept_texts
        self.commits_at_once = 1.0 if bends is BRIMFUL else commits_at_once
        weights: Mapping[str, float] = {
            kind: likelihood * random.choice((0.3, 1.0, 1.0, 2.0)) * bends.get(kind, 1.0) for kind, likelihood in _LIKELIHOODS.items()
        }
        if len(bends) == 0:
            weights = draw_lopsided(seed, weights)
        kinds = self._replace_some(random.choices(list(weights), list(weights.values()), k=num_actions))
        self.actions = [Action(kind, int(random.random() * 1_000_000_000)) for kind in kinds]
        listening = Random(2 * seed + 1)  # its own random numbers: a listener changes nothing else
        self.max_event_entries = 100_000 if bends is BRIMFUL else listening.choice((0, 3, 100_000))
        self.steps_per_event_check = LARGE_STEPS_PER_CHECK if self.is_large else listening.choice((1, 1, 5))
        self.steps_per_invariants = LARGE_STEPS_PER_CHECK if self.is_large else 1

    def _replace_some(self, kinds: list[str]) -> list[str]:
        """Actions that came later, with random numbers of their own."""
        kinds = draw_sharing(kinds, self.seed)
        kinds = draw_decoding(kinds, self.seed, self.fault_share > 0.0)
        has_state = any(isinstance(layer, SsmLayerConfig) for layer in self.config.layers)
        kinds = draw_planning(kinds, self.seed, self.fault_share > 0.0, has_state)
        if self.has_residency:
            kinds = draw_residency(kinds, self.seed)
        return draw_external(kinds, self.config, self.seed) if self.config.is_external else kinds

    def make_device(self) -> SimulatedDevice:
        is_external = self.config.is_external
        return SimulatedDevice(self.seed, granularity_bytes=self.granularity_bytes, is_external=is_external)


def _draw_config(random: Random) -> KVCacheManagerConfig:
    tokens_per_block = random.choice((1, 2, 3, 4, 4, 8, 16))
    num_layers = random.choice((1, 2, 3, 5))
    # A few kinds of layers only, so that several layers share a group.
    uses_scratch = random.random() < 0.35
    window_share = 0.8 if uses_scratch else 0.5
    kinds = [_draw_layer_kind(random, tokens_per_block, window_share) for _kind in range(random.choice((1, 2, 3)))]
    bytes_per_token = random.choice((1, 4, 8, 12))
    layers: list[AttentionLayerConfig] = []
    bytes_per_block = 0
    for layer_id in range(num_layers):
        window, num_sink_tokens, num_heads = random.choice(kinds)
        size = bytes_per_token * tokens_per_block * num_heads
        buffers = [BufferConfig("key", size), BufferConfig("value", size)]
        if random.random() < 0.1:
            buffers.append(BufferConfig("scale", tokens_per_block))
        if random.random() < 0.1 and tokens_per_block % 2 == 0:
            buffers[0] = BufferConfig("key", size // 2, tokens_per_block // 2)
        layers.append(AttentionLayerConfig(LayerId(layer_id), buffers, window, num_sink_tokens))
        bytes_per_block += 3 * size
    num_slots = random.choice((5, 8, 12, 20, 40))
    return KVCacheManagerConfig(
        tokens_per_block,
        [GpuCacheTierConfig(num_slots * bytes_per_block), *_draw_lower_tiers(random, bytes_per_block)],
        layers,
        max_util_for_resume=random.choice((0.5, 0.9, 0.97, 1.0)),
        enable_partial_reuse=random.random() < 0.8,
        reserve_null_slot=random.random() < 0.1,
        swa_scratch_reuse=SwaScratchReuseConfig(random.choice((0, 0, 1, 5))) if uses_scratch else None,
    )


def _draw_parts(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """Each attention layer in one of two or three parts."""
    random = Random(163 * seed + 59)
    num_parts = random.choice((2, 2, 3))
    layers = [
        replace(layer, part=random.randrange(num_parts)) if isinstance(layer, AttentionLayerConfig) else layer for layer in config.layers
    ]
    return replace(config, layers=layers)


def _divide_into_equal_slots(config: KVCacheManagerConfig, seed: int) -> KVCacheManagerConfig:
    """Some worlds, where memory is the manager's own and the layers can be divided."""
    random = Random(167 * seed + 61)
    if config.is_external or config.initial_pool_ratio is not None or random.random() >= _SHARE_OF_EQUAL_SLOTS:
        return config
    try:
        return replace(config, max_slot_padding=random.choice((0.0, 0.25, 0.5)))
    except ValueError:
        return config


def _draw_lower_tiers(random: Random, bytes_per_block: int) -> list[HostCacheTierConfig | DiskCacheTierConfig]:
    """None, one or two levels, small enough to be full often."""
    tiers: list[HostCacheTierConfig | DiskCacheTierConfig] = []
    has_disk = False
    for _level in range(random.choice((0, 0, 1, 1, 2))):
        quota = random.choice((3, 6, 12, 30)) * bytes_per_block
        has_disk = has_disk or random.random() < 0.4
        tiers.append(DiskCacheTierConfig(quota, "/tmp") if has_disk else HostCacheTierConfig(quota))
    return tiers


def _draw_layer_kind(random: Random, tokens_per_block: int, window_share: float) -> tuple[int | None, int | None, int]:
    """(window, sink tokens, heads). A window of 1 is left out: it needs no history, so every block would match."""
    num_heads = random.choice((1, 1, 2))
    if random.random() >= window_share:
        return None, None, num_heads
    size = tokens_per_block
    window = random.choice((2, 3, size, size + 1, 2 * size, 3 * size + 1))
    num_sink_tokens = random.choice((None, None, 1, size, size + 1))
    return max(window, 2), num_sink_tokens, num_heads


def end_on_disk(config: KVCacheManagerConfig) -> KVCacheManagerConfig:
    """The last level below the GPU becomes a disk, or a disk is added: it has the most ways to fail."""
    tiers = list(config.cache_tiers)
    lowest = tiers.pop() if len(tiers) > 1 else tiers[0]
    tiers.append(DiskCacheTierConfig(lowest.quota, "/tmp", eviction_policy=lowest.eviction_policy))
    return replace(config, cache_tiers=tiers)


def _bend_config(config: KVCacheManagerConfig, seed: int, bends: Mapping[str, float], grows_trees: bool) -> KVCacheManagerConfig:
    """The drawn configuration, made such that what the seed is for happens often."""
    if is_large(seed):
        config = draw_large_config(seed)
    elif bends is BRIMFUL:
        config = fill_to_the_brim(config, brimful_blocks(seed))
    elif bends is CHUNKED:
        config = chunk_prompts(config, seed)
    elif len(bends) > 0:
        config = crowd(config)
    if not is_large(seed) and bends is not CHUNKED:
        config = without_scratch(config) if grows_trees else add_state(config, seed)
        config = draw_policies(config, seed)
    if Random(157 * seed + 53).random() < _SHARE_OF_PARTED:
        config = _draw_parts(config, seed)
    return replace(config, allow_seq_rebasing=False) if Random(149 * seed + 41).random() < _SHARE_OF_STAYING else config
