"""A stand-in for TensorRT-LLM's executor: it makes the calls that its cache adapter makes, in that order, through the names alone.

Each request's kernels run on the fake engine, which checks every byte that a layer reads.
"""

from typing import Any

import numpy as np

import kv_cache_manager_v2.compat.tensorrt_llm as runtime
from kv_cache_manager_v2 import HostDevice
from kv_cache_manager_v2.testing import FakeEngine, Step

KEY, VALUE, STATE = runtime.DataRole("key"), runtime.DataRole("value"), runtime.DataRole("ssm_state")


def attention_layer(layer_id: int, tokens_per_block: int, window: int | None = None, size: int = 8) -> runtime.AttentionLayerConfig:
    buffers = [runtime.BufferConfig(role=role, size=size * tokens_per_block) for role in (KEY, VALUE)]
    return runtime.AttentionLayerConfig(layer_id=runtime.LayerId(layer_id), buffers=buffers, sliding_window_size=window)


def state_layer(layer_id: int, size: int = 256) -> runtime.SsmLayerConfig:
    return runtime.SsmLayerConfig(layer_id=runtime.LayerId(layer_id), buffers=[runtime.BufferConfig(STATE, size)])


class Request:
    """What the executor knows of a request; ``position``: tokens computed so far."""

    def __init__(self, request_id: int, prompt: list[Any], scope: Any = None) -> None:
        self.id = request_id
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.scope = runtime.ReuseScope() if scope is None else scope
        self.position = 0
        self.kv_cache: Any = None


class Adapter:
    """Owns the manager, and the requests that run."""

    def __init__(self, layers: list[Any], *, host_quota: int = 0, quota: int = 1 << 16, events: bool = False, **settings: Any) -> None:
        self.tokens_per_block = settings.pop("tokens_per_block", 4)
        tiers: list[Any] = [runtime.GpuCacheTierConfig(quota=quota)]
        if host_quota > 0:
            tiers.append(runtime.HostCacheTierConfig(quota=host_quota))
        config = runtime.KVCacheManagerConfig(
            tokens_per_block=self.tokens_per_block,
            cache_tiers=tiers,
            layers=layers,
            max_util_for_resume=0.97,
            enable_partial_reuse=settings.pop("enable_partial_reuse", True),
            reuse_match_backoff=settings.pop("reuse_match_backoff", 0),
            constraints=[runtime.BatchDesc([runtime.KVCacheDesc(capacity=8, history_length=0)])],
            typical_step=runtime.BatchDesc([runtime.KVCacheDesc(capacity=64, history_length=63)]),
            commit_min_snapshot=True,
            enable_stats=True,
            text_only=False,
            rebalance_min_sampled_kv_caches=2000,
            rebalance_cooldown_secs=120.0,
            rebalance_target_ratio_update_interval=100,
            rebalance_ratio_threshold=1.25,
            rebalance_moving_average_decay=0.9999,
            **settings,
        )
        self.event_manager = None
        if events:
            self.event_manager = runtime.KVCacheEventManager(
                1000, window_size=64, attention_dp_rank=None, attention_dp_gather=None, hash_algo="v2_sha256",
                window_size_by_layer_group=None, mm_token_id_offset=None,
            )  # fmt: skip
        self.device = HostDevice()
        self.impl = runtime.KVCacheManager(config, event_manager=self.event_manager, cold_page_codec=None, device=self.device)
        if self.event_manager is not None:
            groups = range(len(self.impl.layer_grouping))
            self.event_manager.set_layer_group_window_sizes({group: 64 for group in groups})
            self.event_manager.add_created_event([self.impl.get_storage_statistics()[0].total], list(groups))
        self.stream = self.device.default_stream()
        self.engine = FakeEngine(self.impl.core.init_config, self.device)
        self.requests: list[Request] = []

    # -- context ------------------------------------------------------------------------------------------------------

    def prepare_context(self, request: Request) -> None:
        """All but the last token of the prompt may be reused."""
        request.kv_cache = self.impl.create_kv_cache(
            request.scope,
            np.array(request.tokens[:-1], np.int32) if all(isinstance(token, int) for token in request.tokens) else request.tokens[:-1],
            id=request.id,
            custom_priority_callback=self.priority,
            expected_prompt_length=request.prompt_length,
            text_only=None,
            enable_request_stats=True,
        )
        request.position = request.kv_cache.num_committed_tokens
        assert request.kv_cache.resume(self.stream)
        self.requests.append(request)

    def priority(self, ordinal: int, life_cycle: Any) -> Any:
        stale = life_cycle.get_stale_range(ordinal * self.tokens_per_block, self.tokens_per_block)
        return runtime.Priority(40 if stale else 35)

    def context_chunk(self, request: Request, num_tokens: int) -> None:
        begin, end = request.position, min(request.position + num_tokens, request.prompt_length)
        kv_cache = request.kv_cache
        assert kv_cache.resize(end, begin)
        self.engine.execute([Step(kv_cache, request.tokens[begin:end], request.tokens[:begin])])
        kv_cache.commit(request.tokens[begin:end])
        request.position = end
        if end == request.prompt_length and self.impl.enable_swa_scratch_reuse:
            kv_cache.enable_swa_scratch_reuse = False

    def prefill(self, request: Request, chunk: int = 1 << 20) -> Request:
        self.prepare_context(request)
        while request.position < request.prompt_length:
            self.context_chunk(request, chunk)
        return request

    # -- generation ---------------------------------------------------------------------------------------------------

    def generate(self, request: Request, token: int, drafts: tuple[int, ...] = (), num_accepted: int = 0) -> None:
        """One step of a token and drafts, of which the first ones are accepted and the rest is taken back."""
        kv_cache = request.kv_cache
        begin = request.position
        assert kv_cache.resize(begin + 1 + len(drafts))
        self.engine.execute([Step(kv_cache, [token, *drafts], request.tokens[:begin])])
        kept = [token, *drafts[:num_accepted]]
        request.tokens += kept
        if num_accepted < len(drafts):
            assert kv_cache.resize(begin + len(kept))
        kv_cache.commit(kept)
        request.position = begin + len(kept)

    def add_dummy(self, request_id: int, num_tokens: int) -> Request:
        """For a warm-up or a CUDA graph: room without tokens, and in no statistics."""
        request = Request(request_id, [1] * num_tokens)
        self.impl.mark_stats_excluded(request_id)
        request.kv_cache = self.impl.create_kv_cache(None, None, request_id, None, None, None, False)
        assert request.kv_cache.resume(self.stream)
        request.kv_cache.stop_committing()
        assert request.kv_cache.resize(num_tokens, num_tokens - 1)
        self.requests.append(request)
        return request

    def free_resources(self, request: Request) -> Any:
        delta = request.kv_cache.commit_pending_stats()
        request.kv_cache.close()
        self.impl.clear_stats_excluded(request.id)
        self.impl.clear_stats_dirty(request.id)
        self.requests.remove(request)
        return delta

    # -- tables -------------------------------------------------------------------------------------------------------

    def page_row(self, request: Request, layer: int, length: int = 32) -> tuple[list[int], list[int]]:
        """The request's base page indices: as the library writes them into the engine's buffer, and as it returns them."""
        group = self.impl.get_layer_group_id(runtime.LayerId(layer))
        row = np.full(length, 77, np.int32)
        request.kv_cache.set_base_page_index_buf(beam_idx=runtime.DEFAULT_BEAM_INDEX, layer_group_id=group, buf=row.data)
        indices = np.frombuffer(request.kv_cache.get_base_page_indices(group), np.int32)[: request.kv_cache.num_blocks]
        request.kv_cache.set_base_page_index_buf(runtime.DEFAULT_BEAM_INDEX, group, None)
        return row[: len(indices)].tolist(), indices.tolist()

    def end(self) -> None:
        for request in list(self.requests):
            self.free_resources(request)
        self.impl.core.check_invariants()
        self.impl.clear_reusable_blocks()
        for level in range(len(self.impl.cache_tier_list)):
            assert all(figures.free == figures.total for figures in self.impl.get_storage_statistics(level))
        self.impl.shutdown()
        assert self.engine.mismatches == 0
