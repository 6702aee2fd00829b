"""Managers to measure: one layer per layer group, all groups in one pool group, on a host device that nobody touches.

The default is two layer groups, one that keeps everything and one with a window, as in most recent models. Slots are so
small, and mapped so lazily, that no memory is moved: what is measured is the bookkeeping.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)

Tokens = npt.NDArray[np.int32]

BLOCK: Final = 32
"""Tokens per block, everywhere here."""

PROMPT: Final = 8192
SLOT_BYTES: Final = 512
FULL_AND_WINDOW: Final[tuple[int | None, ...]] = (None, 1024)
WINDOWS_OF_8: Final[tuple[int | None, ...]] = (None, 1024, 512, 2048, 4096, 256, 768, 1536)
"""The first n of these are n layer groups."""


def make_manager(
    num_blocks: int,
    windows: Sequence[int | None] = FULL_AND_WINDOW,
    enable_stats: bool = False,
    event_manager: KVCacheEventManager | None = None,
    journal: str | None = None,
    policy: EvictionPolicy = EvictionPolicy.LRU,
) -> KVCacheManager:
    """Room for ``num_blocks`` blocks with a page in every layer group; without the features that can be switched off.

    Victims are chosen by recency, as in the managers that the goals compare with; what the default policy costs beside that has
    rows of its own.
    """
    layers = [
        AttentionLayerConfig(LayerId(number), [BufferConfig("key_and_value", SLOT_BYTES)], sliding_window_size=window)
        for number, window in enumerate(windows)
    ]
    config = KVCacheManagerConfig(
        tokens_per_block=BLOCK,
        cache_tiers=[GpuCacheTierConfig(num_blocks * len(windows) * SLOT_BYTES, policy)],
        layers=layers,
        enable_stats=enable_stats,
    )
    return KVCacheManager(config, device=HostDevice(), event_manager=event_manager, journal=journal)


class Prompts:
    """Prompts that share nothing: each call continues a running number."""

    def __init__(self, num_tokens: int = PROMPT) -> None:
        self.num_tokens = num_tokens
        self._next = 1

    def make(self) -> Tokens:
        """No two blocks are equal, and no token is an int that Python keeps ready."""
        first = self._next
        self._next += self.num_tokens
        assert self._next < 2**31 - 1000, "the token ids have run out"
        return np.arange(first + 999, first + 999 + self.num_tokens, dtype=np.int32)

    def make_many(self, count: int) -> list[Tokens]:
        return [self.make() for _ in range(count)]


def prefill(manager: KVCacheManager, tokens: Any) -> KVCache:
    """An active sequence with the whole prompt committed: the calls that an engine makes for a prompt."""
    kv_cache = manager.create_kv_cache(None, tokens)
    if not (kv_cache.resume() and kv_cache.resize(len(tokens))):
        raise RuntimeError(f"the benchmark's pool is too small: {manager.last_refusal}")
    num_matched = kv_cache.num_committed_tokens
    kv_cache.commit(tokens if num_matched == 0 else tokens[num_matched:])
    return kv_cache


def fill(manager: KVCacheManager, num_blocks: int, prompts: Prompts) -> int:
    """Cache at least that many blocks; how many."""
    blocks_per_prompt = prompts.num_tokens // BLOCK
    count = -(-num_blocks // blocks_per_prompt)
    for _ in range(count):
        prefill(manager, prompts.make()).close()
    return count * blocks_per_prompt
