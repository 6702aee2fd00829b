"""An object of each public class: values from their annotations, handles from a manager of every kind.

`Samples` makes everything anew, so that what one test does to it no other one sees.
"""

import ast
import enum
import io
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import prometheus_client
from every_call import config_of_every_kind
from public_classes import find_public_classes, load_class, package_modules

from kv_cache_manager_v2 import (
    BatchPageTable,
    BlockTimes,
    CopyBatch,
    DecodeBatch,
    CopyLog,
    DensePages,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheEventPublisher,
    KVCacheManager,
    LayerId,
    LifeCycleRegistry,
    PrometheusExporter,
    StatisticsLog,
    StridedPages,
)
from kv_cache_manager_v2.compat.tensorrt_llm import PlannedDropHandle
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.monotonic_clock import MonotonicClock
from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.device.read_only_files import ReadOnlyFiles
from kv_cache_manager_v2.device.stripe import Stripe
from kv_cache_manager_v2.device.striped_files import StripedFiles
from kv_cache_manager_v2.device.wakeup import Wakeup
from kv_cache_manager_v2.device.external_device import ExternalDevice
from kv_cache_manager_v2.replay.console import PlainConsole
from kv_cache_manager_v2.replay.presets import LayerShape
from kv_cache_manager_v2.replay.console import Console
from kv_cache_manager_v2.replay.spaced_workload import SpacedWorkload
from kv_cache_manager_v2.replay.trace import TraceWorkload
from kv_cache_manager_v2.replay.workload import ListedWorkload
from kv_cache_manager_v2.stats.guarded_clock import GuardedClock
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step
from kv_cache_manager_v2.testing.faults import FaultPlan
from kv_cache_manager_v2.replay.sized_codec import SizedCodec
from kv_cache_manager_v2.testing.recorded_codec import RecordedCodec
from kv_cache_manager_v2.testing.reversing_codec import ReversingCodec

PUBLIC: Final = find_public_classes()
WITHOUT_SAMPLE: Final = {
    "ReplayPlan": "is as good as the workload in it, which is a handle",
    "CudaDevice": "needs a GPU",
    "CudaKernel": "needs a GPU",
    "DevicePageIndices": "needs a GPU",
    "HostLayerKernel": "lives inside one launch of the fake engine",
    "SimulatedWorker": "lives inside the fake engine's memory",
    **dict.fromkeys(
        ("BufferSpan", "Float8Codec", "Float8Kernels", "Int4Codec", "LosslessCodec", "_Transcoding"),
        "works on arrays, and is not compiled: tests/unit/codecs has it",
    ),
    "EventLog": "is behind the event manager, where nobody sees it",
    **dict.fromkeys(
        (
            "MemoryStore", "MooncakeStore", "ObjectStore",
            "RemoteOperation", "RemoteRequest", "RespConnection", "SharedLevel", "ValkeyStore",
            "_MemoryConnection", "_MooncakeConnection", "_ObjectConnection", "Transfer", "TransferAgent", "TransferEngine",
        ),
        "is made around threads, servers or peers, and not compiled: tests/unit/shared and tests/unit/integrations have it",
    ),
}
"""Leaf classes whose objects this module cannot make; what can be done with the class alone is done to them too."""
LEAVES: Final[dict[str, Any]] = {
    "int": 3, "i64": 3, "float": 0.5, "bool": True, "str": "text", "bytes": b"bytes", "object": 3, "Any": 3, "SupportsIndex": 3,
    "SegmentArray": np.array([2, 3], np.int64),
}  # fmt: skip


def make_values_by_hand() -> dict[str, Callable[[], Any]]:
    """Classes whose constructors take less than their annotations allow."""
    package = __import__("kv_cache_manager_v2")
    layers = [package.AttentionLayerConfig(LayerId(0), [package.BufferConfig("key", 64)])]

    def config() -> Any:
        return package.KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 16)], layers)

    return {
        "CapacityPlan": lambda: package.plan_capacity(config()),
        "AttnLifeCycle": lambda: package.AttnLifeCycle(9, 1),
        "KVCacheDesc": lambda: package.KVCacheDesc(8, 4),
        "BatchDesc": lambda: package.BatchDesc([package.KVCacheDesc(8, 4)]),
        "KVCacheManagerConfig": config,
        "LifeCycleRegistry": lambda: LifeCycleRegistry(config()),
        "PageIndexConverter": lambda: package.PageIndexConverter(4, 1, 2, 1),
        "SnapshotPolicy": lambda: package.SnapshotPolicy(every_num_blocks=3),
        "SsmLayerConfig": lambda: package.SsmLayerConfig(LayerId(0), [package.BufferConfig("state", 64)]),
        "TokenRangeRetention": lambda: package.TokenRangeRetention(0, 3, 50),
        "RetentionConfig": lambda: package.RetentionConfig([package.TokenRangeRetention(0, 3, 50)], 80),
        "DiskCacheTierConfig": lambda: package.DiskCacheTierConfig(1 << 16, "/somewhere"),
        "ModelId": lambda: package.ModelId("a model", "r7", "bf16", {"rope": "yarn"}, "a tenant", (0, 8)),
        "Decoding": lambda: load_class("Decoding", PUBLIC["Decoding"])(2),
        "ServingLimits": lambda: load_class("ServingLimits", PUBLIC["ServingLimits"])(4),
        "ModelPreset": lambda: load_class("ModelPreset", PUBLIC["ModelPreset"])("a name", "a source", [LayerShape(2, 8)]),
        "TimeHistogram": lambda: load_class("TimeHistogram", PUBLIC["TimeHistogram"])([0.5, 1.0], [1, 2, 3], 4.5),
    }


class Annotations:
    """Makes values from the annotations of their constructors, or of their fields."""

    def __init__(self) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.modules: dict[str, str] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.by_hand = make_values_by_hand()
        for module, tree in package_modules():
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)
                    self.modules.setdefault(node.name, module)
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "NewType":
                        self.aliases[node.targets[0].id] = node.value.args[1]
                    elif isinstance(node.value, (ast.BinOp, ast.Subscript)):
                        self.aliases[node.targets[0].id] = node.value
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                    if getattr(node.annotation, "id", "") == "TypeAlias":
                        self.aliases[node.target.id] = node.value

    def make(self, name: str) -> Any:
        """An object of that class."""
        if name in self.by_hand:
            return self.by_hand[name]()
        found = load_class(name, self.modules[name])
        if issubclass(found, enum.Enum):
            return list(found)[0]
        node = self.classes[name]
        init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
        if init is not None:
            wanted = [argument.annotation for argument in init.args.args[1:]]
        elif issubclass(found, BaseException):
            return found("a text")
        else:
            wanted = [item.annotation for item in node.body if isinstance(item, ast.AnnAssign) and not is_class_variable(item)]
        return found(*[self.item(annotation) for annotation in wanted])

    def item(self, node: ast.expr | None) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.item(ast.parse(node.value, mode="eval").body)
        if isinstance(node, ast.BinOp):
            return self.item(node.left)
        if isinstance(node, ast.Subscript):
            return self.container(node)
        assert isinstance(node, ast.Name), ast.dump(node) if node is not None else None
        if node.id in LEAVES:
            return LEAVES[node.id]
        if node.id in self.aliases:
            return self.item(self.aliases[node.id])
        if node.id == "KVCacheEventData":
            return self.make("KVCacheUpdatedData")
        if node.id == "WireEvent":
            return self.make("BlockRemoved")
        return self.make(node.id)

    def container(self, node: ast.Subscript) -> Any:
        assert isinstance(node.value, ast.Name)
        kind = node.value.id
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if kind in ("Final", "ClassVar", "Given"):
            return self.item(parts[0])
        if kind in ("dict", "Mapping"):
            return {self.item(parts[0]): self.item(parts[1])}
        if kind == "tuple":
            if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...:
                return (self.item(parts[0]),)
            return tuple(self.item(part) for part in parts)
        assert kind in ("list", "Sequence", "Iterable"), kind
        return [self.item(parts[0])]


def is_class_variable(node: ast.AnnAssign) -> bool:
    return isinstance(node.annotation, ast.Subscript) and getattr(node.annotation.value, "id", "") == "ClassVar"


class Samples:
    """One of everything."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._annotations = Annotations()
        self._closers: list[Callable[[], object]] = []
        self._handles: dict[str, Any] | None = None

    def get(self, name: str) -> Any:
        """A sample of the class; LookupError if this module cannot make one."""
        found = load_class(name, PUBLIC[name])
        if name in self._annotations.by_hand or not is_handle(found):
            return self._annotations.make(name)
        if self._handles is None:
            self._handles = {type(handle).__name__: handle for handle in self._make_handles()}
        return self._handles[name]

    def _make_handles(self) -> list[Any]:
        events = KVCacheEventManager(100)
        device = HostDevice()
        manager = KVCacheManager(config_of_every_kind(False, self._folder.name), device=device, event_manager=events)
        prompt = list(range(30))
        sequence = manager.create_kv_cache(None, prompt)
        assert sequence.resume() and sequence.resize(30)
        sequence.commit(prompt)
        other = manager.create_kv_cache(None, [token + 1000 for token in prompt])
        assert other.resume() and other.resize(30)
        other.commit([token + 1000 for token in prompt])
        other.stop_committing()
        plan = other.plan_committed_block_drop()
        lease = sequence.reserve_transfer(0, 2)
        batch = BatchPageTable(manager, 4, 16)
        decoding = DecodeBatch(manager, 4, 16)
        engine_config = config_of_every_kind(False, self._folder.name)
        simulated = SimulatedDevice(1)
        publisher = KVCacheEventPublisher(events, endpoint="inproc://samples")
        wakeup = Wakeup()
        self._closers = [publisher.close, manager.shutdown, device.close, simulated.close, wakeup.close]
        clock = MonotonicClock()
        times = manager.record_block_times(clock)
        workload = ListedWorkload("listed", [])
        trace = Path(self._folder.name) / "trace.jsonl"
        trace.write_text('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n')
        tiers = load_class("CacheTier", PUBLIC["CacheTier"])
        handles = [
            events, device, manager, sequence, plan, lease, batch, decoding, simulated, publisher, clock, GuardedClock(clock),
            times if times is not None else BlockTimes(clock),
            manager.pool_view(LayerId(0), "key"),
            manager.time_transfers(),
            ExternalDevice(),
            CopyLog(),
            CopyBatch(tiers.GPU_MEM, tiers.HOST_MEM, 64),
            MemoryRange(device, tiers.HOST_MEM, 1 << 16),
            OsFiles(),
            ReadOnlyFiles(),
            StripedFiles(OsFiles(), Stripe([self._folder.name], 512)),
            wakeup,
            KVCacheEventIndex(),
            PrometheusExporter(manager, registry=prometheus_client.CollectorRegistry()),
            StatisticsLog(manager),
            batch.add_block_table(StridedPages(0)),
            batch.add_csr(StridedPages(0)),
            batch.add_offset_table(),
            batch.add_slot_mapping(DensePages(0, "key"), 64),
            FakeEngine(engine_config, device),
            FaultPlan(),
            RecordedCodec(b'{"identity": "a/1", "is_lossless": true, "cold_bytes": [1]}'),
            ReversingCodec(3),
            SizedCodec(ReversingCodec(3)),
            Step(sequence, [1], prompt),
            PlainConsole(io.StringIO(), io.StringIO()),
            Console(),
            workload,
            TraceWorkload(str(trace)),
            SpacedWorkload(workload, 1.0),
            PlannedDropHandle(other.plan_committed_block_drop()),
        ]  # fmt: skip
        return handles

    def renew(self) -> None:
        """The next handles are new ones."""
        handles, self._handles = self._handles, None
        closers, self._closers = self._closers, []
        if handles is not None:
            handles.clear()
        for close in closers:
            with suppress(Exception):  # what a case has spoilt
                close()

    def close(self) -> None:
        """Give back what is still there."""
        self.renew()


def is_handle(found: Any) -> bool:
    return any(base.__name__ == "Handle" for base in found.__mro__)


def is_value(found: Any) -> bool:
    return any(base.__name__ == "Value" for base in found.__mro__)
