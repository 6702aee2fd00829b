"""nano-vllm's block manager, with a `KVCacheManager` behind its calls: an example of an engine that has its own tensors and wants indices.

    scheduler = nanovllm.engine.scheduler.Scheduler(config)
    scheduler.block_manager = ManagedBlocks(config.num_kvcache_blocks, config.kvcache_block_size)

A slot of the manager is a block of the engine's tensors: slot ids are what the kernels' block tables need, and the manager has no memory
(`ExternalCacheTierConfig`). So matches are of whole blocks, as nothing copies part of one, and a sequence keeps the blocks that it has.
"""

from typing import Any, Final

from ..base.ids import DataRole, LayerId
from ..config.cache_tier_config import ExternalCacheTierConfig
from ..config.layer_config import AttentionLayerConfig, BufferConfig
from ..config.manager_config import KVCacheManagerConfig
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager

__all__ = ["ManagedBlocks"]


class ManagedBlocks:
    """What nano-vllm's scheduler calls; `close` at the end. ``num_blocks`` and ``block_size`` (tokens) are the engine's."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        layers = [AttentionLayerConfig(LayerId(0), [BufferConfig(DataRole("blocks"), 1)])]
        config = KVCacheManagerConfig(
            block_size, [ExternalCacheTierConfig([num_blocks])], layers,
            enable_partial_reuse=False, allow_seq_rebasing=False, max_util_for_resume=1.0,
        )  # fmt: skip
        self.manager: Final = KVCacheManager(config)
        self._open: Final[dict[int, KVCache]] = {}
        self._planned: Final[list[tuple[KVCache, list[int]]]] = []

    def close(self) -> None:
        for kv_cache in self._open.values():
            kv_cache.close()
        self.manager.shutdown()

    def can_allocate(self, seq: Any) -> bool:
        """Allocates, if there is room: the scheduler's next call is `allocate`. The last token is never matched: one is left to compute."""
        kv_cache = self.manager.create_kv_cache(None, seq.token_ids[:-1])
        if kv_cache.resume() and kv_cache.resize(len(seq)):
            self._open[seq.seq_id] = kv_cache
            return True
        kv_cache.close()
        return False

    def allocate(self, seq: Any) -> None:
        """What this step computes is planned, so that prompts that are scheduled with it, or next, share it."""
        kv_cache = self._open[seq.seq_id]
        seq.num_cached_tokens = kv_cache.num_committed_tokens
        tokens = seq.token_ids[seq.num_cached_tokens :]
        num_planned = kv_cache.publish_planned(tokens[: len(tokens) - len(tokens) % self.manager.tokens_per_block])
        self._planned.append((kv_cache, tokens[:num_planned]))
        self._fill_table(seq)

    def can_append(self, seq: Any) -> bool:
        self._commit_planned()
        return self._open[seq.seq_id].resize(len(seq))

    def may_append(self, seq: Any) -> None:
        self._commit(seq)
        self._fill_table(seq)

    def deallocate(self, seq: Any) -> None:
        """The request has ended, or is preempted; in either case what it computed stays to be found."""
        self._commit_planned()
        self._commit(seq)
        self._open.pop(seq.seq_id).close()
        seq.num_cached_tokens = 0
        seq.block_table.clear()

    def _commit_planned(self) -> None:
        """Steps that compute prompts are over when a request decodes, ends or is preempted; its readers need what it planned first."""
        for kv_cache, tokens in self._planned:
            kv_cache.commit(tokens)
        self._planned.clear()

    def _commit(self, seq: Any) -> None:
        kv_cache = self._open[seq.seq_id]
        # The last token was sampled by the step before, and has no keys yet.
        kv_cache.commit(seq.token_ids[kv_cache.num_committed_tokens : len(seq) - 1])

    def _fill_table(self, seq: Any) -> None:
        seq.block_table[:] = self._open[seq.seq_id].get_base_page_indices(0)
