"""vLLM on this library: `ManagedScheduler`, which vLLM takes as ``--scheduler-cls``.

    vllm serve MODEL --scheduler-cls kv_cache_manager_v2.integrations.vllm.ManagedScheduler

The scheduler is vLLM's own, asynchronous where vLLM's would be; its KV cache manager and block pool are replaced by a `KVCacheManager`
that owns no memory: block ids are all that workers get, so it works with any number of them, in any process, on any card.
"""

from __future__ import annotations

from typing import Any, Final

# First: it says so when vLLM is missing, or of another version.
from .vllm_version import require_equal_calls, require_version

import vllm
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from ..base.package_log import PackageLog
from .vllm_groups import TIERED, list_connectors, require_supported
from .vllm_manager import PagedKVCacheManager
from .vllm_options import find_call_tokens, read_options
from .vllm_tiers import read_sizes

__all__ = ["ManagedScheduler", "require_version"]
_logger: Final = PackageLog("kv_cache_manager_v2")
require_equal_calls(vllm.__version__, KVCacheManager, PagedKVCacheManager)


class ManagedScheduler(Scheduler):
    """vLLM's scheduler with a `KVCacheManager` in place of vLLM's own; made by vLLM.

    `ValueError` for a model or option that is not supported: the message names it, and what is supported.
    """

    def __new__(cls, vllm_config: Any, *_arguments: Any, **_keywords: Any) -> ManagedScheduler:
        # vLLM has resolved the flag by now, and takes the class as it is given.
        return object.__new__(_ManagedAsyncScheduler if vllm_config.scheduler_config.async_scheduling else cls)

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *arguments: Any, **keywords: Any) -> None:
        require_supported(vllm_config, kv_cache_config)
        journal, metrics_port, policy = read_options(vllm_config)
        transfer = vllm_config.kv_transfer_config
        has_tiers = list_connectors(transfer) == [TIERED]
        tiers = read_sizes(transfer.kv_connector_extra_config, kv_cache_config) if has_tiers else []
        super().__init__(vllm_config, kv_cache_config, *arguments, **keywords)
        self.kv_cache_manager = PagedKVCacheManager(
            kv_cache_config,
            max_model_len=self.max_model_len,
            max_in_flight_tokens=vllm_config.max_in_flight_tokens,
            enable_caching=self.cache_config.enable_prefix_caching,
            drops_last_block=self.use_eagle_block_drop,
            watermark=self.scheduler_config.watermark,
            has_events=self.enable_kv_cache_events,
            shares_in_step=self.policy.value == "fcfs",
            log_stats=self.log_stats,
            journal=journal,
            metrics_port=metrics_port,
            policy=policy,
            tiers=tiers,
            num_workers=vllm_config.parallel_config.world_size if tiers else 0,
            call_tokens=find_call_tokens(getattr(self.structured_output_manager, "tokenizer", None)),
        )
        if self.connector is not None:
            self.connector.bind_kv_cache_manager(self.kv_cache_manager)

    def schedule(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            return super().schedule(*arguments, **keywords)
        except Exception:
            self.kv_cache_manager.tell_failure()
            raise

    def update_from_output(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            return super().update_from_output(*arguments, **keywords)
        except Exception:
            self.kv_cache_manager.tell_failure()
            raise

    def add_request(self, request: Any) -> None:
        """A streaming session is aborted by the engine core at once where a turn that ends would leave a state of too many tokens."""
        if request.resumable and self.has_mamba_layers and self.vllm_config.max_concurrent_batches > 1:
            what = "a streaming session beside recurrent layers, whose states run ahead of it with several batches in flight"
            _logger.error("request %s is refused: it is %s; supported: async_scheduling off, and no pipeline", request.request_id, what)
            request.abort_immediately = True
        super().add_request(request)

    def shutdown(self) -> None:
        super().shutdown()
        self.kv_cache_manager.shutdown()


class _ManagedAsyncScheduler(ManagedScheduler, AsyncScheduler):
    """The same where async scheduling is on."""
