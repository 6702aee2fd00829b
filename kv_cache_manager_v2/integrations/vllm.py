"""vLLM on this library: `ManagedScheduler`, which vLLM takes as ``--scheduler-cls``.

    llm = LLM(model, scheduler_cls="kv_cache_manager_v2.integrations.vllm.ManagedScheduler", block_size=32)

The scheduler is vLLM's own; its KV cache manager and block pool are replaced by a `KVCacheManager`, and the model's layers read and
write that manager's pages. One worker, on the CPU, in the scheduler's process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``).
Lower tiers come from vLLM's ``additional_config``: ``{"kv_cache_manager_v2": {"host_bytes": 8 << 30}}``.
"""

from __future__ import annotations

from typing import Any

# First: it says so when vLLM is missing, or of another version.
from .vllm_version import require_version

from vllm.v1.core.sched.output import CachedRequestData
from vllm.v1.core.sched.scheduler import Scheduler

from .vllm_manager import PagedKVCacheManager
from .vllm_pool import LayerPool, require_supported

__all__ = ["ManagedScheduler", "require_version"]


class ManagedScheduler(Scheduler):
    """vLLM's scheduler with a `KVCacheManager` in place of vLLM's own; made by vLLM.

    `ValueError` for a model, platform or option that is not supported: the message names it, and what is supported. Nothing of the
    model has been changed then.
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *arguments: Any, **keywords: Any) -> None:
        require_supported(vllm_config, kv_cache_config)
        super().__init__(vllm_config, kv_cache_config, *arguments, **keywords)
        pool = LayerPool(vllm_config, kv_cache_config, has_events=self.enable_kv_cache_events)
        self.kv_cache_manager = PagedKVCacheManager(
            pool,
            kv_cache_config,
            max_model_len=self.max_model_len,
            max_step_tokens=self.max_num_scheduled_tokens,
            enable_caching=self.cache_config.enable_prefix_caching,
            publishes_when_scheduled=self.policy.value == "fcfs",
            log_stats=self.log_stats,
        )

    def _make_cached_request_data(self, *arguments: Any, **keywords: Any) -> CachedRequestData:
        """Workers only append block ids, so requests whose earlier blocks moved are announced anew, as resumed ones are."""
        data = super()._make_cached_request_data(*arguments, **keywords)
        moved = self.kv_cache_manager.take_moved()
        for index, request_id in enumerate(data.req_ids):
            if request_id in moved and request_id not in data.resumed_req_ids:
                data.resumed_req_ids.add(request_id)
                data.new_block_ids[index] = self.kv_cache_manager.get_block_ids(request_id)
                data.all_token_ids[request_id] = self.requests[request_id].all_token_ids.copy()
        return data

    def shutdown(self) -> None:
        super().shutdown()
        self.kv_cache_manager.shutdown()
