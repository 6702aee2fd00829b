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
            shares_in_step=self.policy.value == "fcfs",
            log_stats=self.log_stats,
        )

    def shutdown(self) -> None:
        super().shutdown()
        self.kv_cache_manager.shutdown()
