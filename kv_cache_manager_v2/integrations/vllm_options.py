"""What vLLM's ``--additional-config`` may ask of `ManagedScheduler`: a journal of all calls, metrics for Prometheus, an eviction policy.

    vllm serve MODEL --scheduler-cls ... --additional-config '{"kvcm_metrics_port": 9400, "kvcm_journal": "/var/tmp/calls.journal"}'

Journal and metrics are of the scheduler's process. Data-parallel ranks have one each: the port is that many higher, the path ends in the
rank's number. ``"kvcm_eviction_policy": "lru"`` evicts by recency, as vLLM does; "learned", the default, by expected reuse.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ..base.missing_package import missing_package
from ..config.eviction_policy import EvictionPolicy
from ..manager.kv_cache_manager import KVCacheManager
from ..metrics.prometheus_exporter import PrometheusExporter

PREFIX: Final = "kvcm_"
JOURNAL: Final = "kvcm_journal"
PORT: Final = "kvcm_metrics_port"
POLICY: Final = "kvcm_eviction_policy"
POLICIES: Final = {policy.value: policy for policy in EvictionPolicy}
_CALLS: Final = re.compile(r"(tool|function).?call|<\|(call|eom|eom_id|python_tag|action_start)\|>", re.IGNORECASE)
"""Names of tokens that models write around a call of a tool, or after it."""


def read_options(vllm_config: Any) -> tuple[str | None, int | None, EvictionPolicy]:
    """The journal's path, the port of the metrics, and the policy. `ValueError` that names the option which cannot be had."""
    given = vllm_config.additional_config
    options = {name: value for name, value in given.items() if name.startswith(PREFIX)} if isinstance(given, dict) else {}
    parallel = vllm_config.parallel_config
    rank = parallel.data_parallel_rank
    path, port, policy = options.pop(JOURNAL, None), options.pop(PORT, None), options.pop(POLICY, EvictionPolicy.LEARNED.value)
    if options:
        raise ValueError(f"additional_config has {sorted(options)}; ManagedScheduler knows {JOURNAL}, {PORT} and {POLICY}")
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"additional_config's {POLICY} is {policy!r}; it is one of {sorted(POLICIES)}")
    if path is not None and (not isinstance(path, str) or not path):
        raise ValueError(f"additional_config's {JOURNAL} is {path!r}; it is the path of a file")
    if port is not None and (type(port) is not int or not 0 < port < 65536 - rank):
        raise ValueError(f"additional_config's {PORT} is {port!r}, of rank {rank}; it is a port from 1 to 65535")
    is_parallel = parallel.data_parallel_size > 1
    path = f"{path}.{rank}" if is_parallel and path is not None else path
    return path, None if port is None else port + rank, POLICIES[policy]


def find_call_tokens(tokenizer: Any) -> frozenset[int]:
    """Ids of the tokens that stand in an answer which calls a tool, by their names. None of a tokenizer that has, or tells, no names."""
    try:
        names = dict(tokenizer.get_added_vocab())
    except Exception:
        return frozenset()
    return frozenset(number for name, number in names.items() if isinstance(name, str) and _CALLS.search(name) and type(number) is int)


class Metrics:
    """Serves a manager's metrics on a port, until `close`."""

    def __init__(self, manager: KVCacheManager, port: int) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise missing_package(PORT, "prometheus-client", error) from error
        registry = prometheus_client.CollectorRegistry()
        try:
            self._server, self._thread = prometheus_client.start_http_server(port, registry=registry)
        except OSError as error:
            raise OSError(error.errno, f"additional_config's {PORT} {port} cannot be listened on: {error.strerror}") from error
        self._exporter: Final = PrometheusExporter(manager, registry=registry, event_manager=manager.event_manager)

    def close(self) -> None:
        self._exporter.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
