"""What vLLM's ``--additional-config`` may ask of `ManagedScheduler`: a journal of all calls, and metrics for Prometheus.

    vllm serve MODEL --scheduler-cls ... --additional-config '{"kvcm_metrics_port": 9400, "kvcm_journal": "/var/tmp/calls.journal"}'

Both are of the scheduler's process. Data-parallel ranks have one each: the port is that many higher, the path ends in the rank's number.
"""

from __future__ import annotations

from typing import Any, Final

from ..base.missing_package import missing_package
from ..manager.kv_cache_manager import KVCacheManager
from ..metrics.prometheus_exporter import PrometheusExporter

PREFIX: Final = "kvcm_"
JOURNAL: Final = "kvcm_journal"
PORT: Final = "kvcm_metrics_port"


def read_options(vllm_config: Any) -> tuple[str | None, int | None]:
    """The journal's path and the port of the metrics. `ValueError` that names the option which cannot be had."""
    given = vllm_config.additional_config
    options = {name: value for name, value in given.items() if name.startswith(PREFIX)} if isinstance(given, dict) else {}
    parallel = vllm_config.parallel_config
    rank = parallel.data_parallel_rank
    path, port = options.pop(JOURNAL, None), options.pop(PORT, None)
    if options:
        raise ValueError(f"additional_config has {sorted(options)}; ManagedScheduler knows {JOURNAL} and {PORT}")
    if path is not None and (not isinstance(path, str) or not path):
        raise ValueError(f"additional_config's {JOURNAL} is {path!r}; it is the path of a file")
    if port is not None and (type(port) is not int or not 0 < port < 65536 - rank):
        raise ValueError(f"additional_config's {PORT} is {port!r}, of rank {rank}; it is a port from 1 to 65535")
    is_parallel = parallel.data_parallel_size > 1
    return f"{path}.{rank}" if is_parallel and path is not None else path, None if port is None else port + rank


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
