"""nano-vllm's scheduler on `ManagedBlocks` and on its own block manager: the answers of a model that reads what the block tables say."""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xxhash")
pytest.importorskip("transformers")

from kv_cache_manager_v2.integrations.nano_vllm import ManagedBlocks  # noqa: E402

T = 8
VOCABULARY = 50


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """The scheduler's modules, without the package's ``__init__``, which loads kernels for GPUs."""
    spec = importlib.util.find_spec("nanovllm")
    if spec is None or spec.origin is None:
        pytest.skip("the package nano-vllm-fork is not installed: make engines does that")
    package = ModuleType("nanovllm")
    package.__path__ = [str(Path(spec.origin).parent)]
    sys.modules["nanovllm"] = package
    yield SimpleNamespace(
        scheduler=importlib.import_module("nanovllm.engine.scheduler"),
        sequence=importlib.import_module("nanovllm.engine.sequence"),
        sampling=importlib.import_module("nanovllm.sampling_params"),
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "nanovllm"]:
        del sys.modules[name]


class Runner:
    """A model whose next token is a checksum of all that is before it, as it is in the blocks; tokens are their own keys."""

    def __init__(self, num_blocks: int) -> None:
        self.slots = [[-1] * T for _block in range(num_blocks)]
        self.num_computed = 0

    def run(self, seqs: list[Any], is_prefill: bool) -> list[int]:
        for seq in seqs:
            begin = seq.num_cached_tokens if is_prefill else len(seq) - 1
            assert begin < len(seq)
            self.num_computed += len(seq) - begin
            for position in range(begin, len(seq)):
                self.slots[seq.block_table[position // T]][position % T] = seq.token_ids[position]
        answers = []
        for seq in seqs:
            read = [self.slots[seq.block_table[position // T]][position % T] for position in range(len(seq))]
            assert read == seq.token_ids, f"sequence {seq.seq_id}"
            answers.append(sum((position + 1) * token for position, token in enumerate(read)) % VOCABULARY)
        return answers


def serve(engine: Any, blocks: Any, runner: Runner) -> tuple[list[list[int]], int]:
    """Twelve requests that begin alike in threes; returns the answers, and how many tokens were computed."""
    config = SimpleNamespace(max_num_seqs=5, max_num_batched_tokens=200, eos=-1, num_kvcache_blocks=200, kvcache_block_size=T)
    engine.sequence.Sequence.block_size = T
    scheduler, before = engine.scheduler.Scheduler(config), runner.num_computed
    if blocks is not None:
        scheduler.block_manager = blocks
    params = engine.sampling.SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    starts = [[(7 * position + start) % VOCABULARY for position in range(35)] for start in range(4)]
    seqs = [engine.sequence.Sequence([*starts[number % 4], *range(number + 3)], params) for number in range(12)]
    for seq in seqs:
        scheduler.add(seq)
    while not scheduler.is_finished():
        scheduled, is_prefill = scheduler.schedule()
        scheduler.postprocess(scheduled, runner.run(scheduled, is_prefill))
    return [seq.completion_token_ids for seq in seqs], runner.num_computed - before


def test_answers_are_those_of_its_own_block_manager(engine: Any) -> None:
    """With room for all: where there is less, the scheduler of this release fails with its own block manager."""
    wanted, computed_alone = serve(engine, None, Runner(200))
    blocks, runner = ManagedBlocks(200, T), Runner(200)
    found, computed = serve(engine, blocks, runner)
    assert found == wanted
    # Each of four beginnings is computed once, in both: its whole blocks are four of the five.
    assert computed == computed_alone
    blocks.manager.check_invariants()
    found, again = serve(engine, blocks, runner)
    # What the first round has left is found, but for the last token of a prompt, and what its last block holds.
    assert found == wanted and again < computed
    statistics = blocks.manager.get_storage_statistics(0)[0]
    assert statistics.total == statistics.available == 200
    blocks.close()


def test_a_request_that_makes_room_finds_what_it_had() -> None:
    """As a scheduler calls it: two requests in six blocks, of which one leaves for the other."""
    blocks = ManagedBlocks(6, T)
    first, second = make_request(0, range(20)), make_request(1, range(100, 120))
    for request in (first, second):
        assert blocks.can_allocate(request)
        blocks.allocate(request)
        assert request.num_cached_tokens == 0 and len(request.block_table) == 3
    for token in range(20, 25):
        first.token_ids.append(token)
        assert blocks.can_append(first) == (token < 24)
        if token < 24:
            blocks.may_append(first)
    assert not blocks.can_allocate(make_request(2, range(8)))
    blocks.deallocate(second)
    assert second.block_table == []
    assert blocks.can_append(first)
    blocks.may_append(first)
    assert len(set(first.block_table)) == 4
    blocks.deallocate(first)
    blocks.manager.check_invariants()
    # Of its 25 tokens the last had no keys yet.
    assert blocks.can_allocate(first)
    blocks.allocate(first)
    assert first.num_cached_tokens == 24
    blocks.close()


class Request:
    """What `ManagedBlocks` reads of nano-vllm's sequence."""

    def __init__(self, seq_id: int, token_ids: list[int]) -> None:
        self.seq_id = seq_id
        self.token_ids = token_ids
        self.num_cached_tokens = 0
        self.block_table: list[int] = []

    def __len__(self) -> int:
        return len(self.token_ids)


def make_request(seq_id: int, token_ids: Sequence[int]) -> Request:
    return Request(seq_id, list(token_ids))
