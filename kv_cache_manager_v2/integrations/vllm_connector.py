"""Host memory and a disk below vLLM's KV cache: `TieredConnector`, a KV connector that vLLM loads by its name, beside `ManagedScheduler`.

    vllm serve MODEL --scheduler-cls kv_cache_manager_v2.integrations.vllm.ManagedScheduler --kv-transfer-config '{"kv_connector":
        "TieredConnector", "kv_connector_module_path": "kv_cache_manager_v2.integrations.vllm_connector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"host_bytes": 8589934592}}'

The scheduler's manager decides what is where. Each step takes a list of copies along, which every worker executes on its own memory before
the step's kernels, and reports with a digest of all that it has executed.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeAlias

# First: it says so when vLLM is missing, or of another version.
from .vllm import ManagedScheduler

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from ..base.errors import CopyListError
from ..manager.copy_lists import SlotCopy
from .vllm_manager import PagedKVCacheManager
from .vllm_tiers import TierWorker

Report: TypeAlias = tuple[int, bytes, tuple[tuple[int, ...], ...]]
"""The list that was executed, the digest of all lists up to it, and the worker's slots."""


class TieredConnector(KVConnectorBase_V1, SupportsHMA):
    """Made by vLLM, once for the scheduler and once for each worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        found = vllm_config.scheduler_config.get_scheduler_cls()
        if not issubclass(found, ManagedScheduler):
            name = f"{ManagedScheduler.__module__}.{ManagedScheduler.__name__}"
            raise ValueError(f"TieredConnector is for ManagedScheduler, and the scheduler is {found.__name__}: give --scheduler-cls {name}")
        self._config: Final = kv_cache_config
        self._extra_config: Final = dict(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self._rank: Final[int] = vllm_config.parallel_config.rank
        self._num_workers: Final[int] = vllm_config.parallel_config.world_size
        self._digest: Final = hashlib.blake2b(digest_size=16)
        self._manager: PagedKVCacheManager | None = None
        """Of the scheduler's."""
        self._last = 0
        self._awaited: Final[dict[int, tuple[bytes, set[int]]]] = {}
        """Of lists that are not reported by all: the digest up to there, and the workers that have yet to."""
        self._worker: TierWorker | None = None
        self._report: Report | None = None

    def _add_to_digest(self, number: int, copies: list[SlotCopy]) -> bytes:
        self._digest.update(repr((number, copies)).encode())
        return self._digest.digest()

    # -- for the scheduler ---------------------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """vLLM's constructor binds its own manager, which copies nothing, and `ManagedScheduler` then its own."""
        self._manager = kv_cache_manager if isinstance(kv_cache_manager, PagedKVCacheManager) else None

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._manager is not None
        self._last, copies = self._manager.take_copies(self._last)
        self._awaited[self._last] = self._add_to_digest(self._last, copies), set(range(self._num_workers))
        return CopyList(self._last, copies)

    def update_connector_output(self, connector_output: Any) -> None:
        """`CopyListError` that names the worker which has not executed what the scheduler listed."""
        found = connector_output.kv_connector_worker_meta
        if found is None:
            return
        assert self._manager is not None and isinstance(found, CopyReports)
        for rank, (number, digest, layout) in sorted(found.by_rank.items()):
            self._manager.report_copies(number, rank, layout)
            expected, missing = self._awaited[number]
            if digest != expected:
                raise CopyListError(
                    f"worker {rank} has executed other lists of copies than the scheduler has taken, up to list {number}: digest "
                    f"{digest.hex()}, expected {expected.hex()}. Its pages have other bytes than their tokens say: start anew", number
                )  # fmt: skip
            missing.remove(rank)
            if not missing:
                del self._awaited[number]
        for number, (_, missing) in self._awaited.items():
            if len(missing) < self._num_workers:
                raise CopyListError(f"worker {min(missing)} has not reported list {number} of copies, and others have: start anew", number)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """None: what is below is found by the manager, as all that it has."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing: `build_connector_meta` takes all copies of the step."""

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def reset_cache(self) -> bool:
        """Nothing: resetting the scheduler's prefix cache forgets what is below, too."""
        return True

    # -- for the worker ------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._worker = TierWorker(next(iter(kv_caches.values())), self._config, self._extra_config)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Execute the step's list: this comes before anything that the step writes, and before new blocks are filled with zeros."""
        assert isinstance(kv_connector_metadata, CopyList) and self._worker is not None
        number, copies = kv_connector_metadata.number, kv_connector_metadata.copies
        self._worker.execute(number, copies)
        self._report = number, self._add_to_digest(number, copies), self._worker.layout

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report, self._report = self._report, None
        return None if report is None else CopyReports({self._rank: report})

    def start_load_kv(self, forward_context: Any, **_keywords: Any) -> None:
        """Nothing: `handle_preemptions` has copied all."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: kernels run behind the copies."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_keywords: Any) -> None:
        """Nothing: pages are offloaded when they are evicted."""

    def wait_for_save(self) -> None:
        """Nothing: the next step's kernels run behind the copies."""

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()


class CopyList(KVConnectorMetadata):
    """What each worker copies before a step."""

    def __init__(self, number: int, copies: list[SlotCopy]) -> None:
        self.number: Final = number
        self.copies: Final = copies


class CopyReports(KVConnectorWorkerMetadata):
    """What workers have copied, by rank."""

    def __init__(self, by_rank: dict[int, Report]) -> None:
        self.by_rank: Final = by_rank

    def aggregate(self, other: KVConnectorWorkerMetadata) -> CopyReports:
        assert isinstance(other, CopyReports)
        return CopyReports({**self.by_rank, **other.by_rank})
