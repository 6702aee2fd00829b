"""All workloads, in the order of the report."""

from typing import Final

import cold_workloads
import decode_workloads
import durable_workload
import feature_workloads
import filling_workloads
import memory_workloads
import prompts_workloads
import restore_workload
import scale_workloads
import snapshot_workload
import start_workloads
import step_workloads
import tail_workloads
import trace_workload
from workload import Workload

WORKLOADS: Final[list[Workload]] = [
    *prompts_workloads.WORKLOADS,
    *decode_workloads.WORKLOADS,
    *step_workloads.WORKLOADS,
    *cold_workloads.WORKLOADS,
    *feature_workloads.WORKLOADS,
    *trace_workload.WORKLOADS,
    *memory_workloads.WORKLOADS,
    *start_workloads.WORKLOADS,
    *restore_workload.WORKLOADS,
    *durable_workload.WORKLOADS,
    *tail_workloads.WORKLOADS,
    *filling_workloads.WORKLOADS,
    *scale_workloads.WORKLOADS,
    *snapshot_workload.WORKLOADS,
]


def workload_by_name(name: str) -> Workload:
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    raise SystemExit(f"no workload {name!r}; there are {', '.join(workload.name for workload in WORKLOADS)}")
