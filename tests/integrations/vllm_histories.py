"""Random histories of vLLM's schedulers over toy workers, each made of a seed: what one finds wrong, it finds again.

    python -P tests/integrations/vllm_histories.py --engine stock --seeds 0:200 [--only async]

A seed chooses the layers, the number of blocks, the settings of the scheduler, and the requests: prompts that begin alike, salts,
adapters, stops, aborts, resets of the cache. Batches are dispatched as vLLM's engine core does it, up to as many as it has in flight; each
rank executes them in order, as early or as late as it likes. The answers must be those that the tokens alone decide.
"""

import argparse
import hashlib
import pickle
import random
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from integrations.vllm_scheduling import GEMMA, HYBRID, Engine, Shape, make_scheduler
import torch
from integrations.vllm_toy_workers import VOCABULARY, ToyWorker, WrongTagError, answer, first_tag, image_contents

from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

NUM_RANKS = 3
STOP = 7
ADAPTERS = [None, *[LoRARequest(f"adapter-{number}", number, f"/adapters/{number}") for number in (1, 2)]]


@dataclass(frozen=True)
class Asked:
    """A request, and when it comes and leaves."""

    name: str
    step: int
    prompt: list[int]
    max_tokens: int
    stop: int | None
    salt: str | None
    adapter: int
    priority: int
    aborted_at: int | None
    items: tuple[tuple[int, int, str], ...] = ()
    """Images: offset, length and identifier. Their tokens are all alike."""
    is_embedded: bool = False
    """Whether the prompt is embeddings, and no token ids."""
    peer: tuple[int, bool] = (0, False)
    """How much of the prompt another engine has computed, and whether the request waits for it, or its first step loads it."""
    turns: tuple[list[int], ...] = ()
    """Of a streaming session: what comes behind each answer, which loses its last token by that."""

    def make(self, engine: Engine, prompt: list[int] | None = None) -> Request:
        """The request; with ``prompt`` one that goes on with the session, or ends it if that is empty."""
        sampling = SamplingParams(
            temperature=0, max_tokens=self.max_tokens, ignore_eos=True, detokenize=False,
            stop_token_ids=[] if self.stop is None else [self.stop], extra_args={"salt": self.salt, "peer": self.peer},
        )  # fmt: skip
        places = [(PlaceholderRange(offset=offset, length=length), name) for offset, length, name in (self.items if prompt is None else ())]
        embeds = torch.tensor(self.prompt, dtype=torch.float32)[:, None] if self.is_embedded else None
        return Request(
            self.name, None if self.is_embedded else list(self.prompt if prompt is None else prompt or [0]), sampling, None,
            arrival_time=self.step, lora_request=ADAPTERS[self.adapter], cache_salt=self.salt, priority=self.priority,
            block_hasher=engine.block_hasher, prompt_embeds=embeds, resumable=bool(self.turns) and prompt != [],
            mm_features=[MultiModalFeatureSpec(None, "image", name, place) for place, name in places],
        )  # fmt: skip

    def contents(self) -> dict[int, int]:
        return dict(enumerate(self.prompt)) if self.is_embedded else image_contents(self.items)

    def expected(self) -> list[int]:
        first, text, found = first_tag(self.salt, self.adapter), [0] * len(self.prompt) if self.is_embedded else self.prompt, []
        for turn in [*self.turns, []]:
            found.append(answer(text, first, self.max_tokens, self.stop, self.contents()))
            text = text + found[-1][:-1] + turn
        return sum(found, [])


def choose_shape(chance: random.Random, kinds: tuple[str, ...]) -> Shape:
    """``kinds``: what there may be beside the plain: see `KINDS`."""
    layers = [("full",) * 2, ("full", "window"), GEMMA, ("window",) * 2]
    if "states" in kinds:
        layers += [HYBRID, HYBRID, ("state",) * 2]
    shape = Shape(
        layers=chance.choice(layers), window=chance.choice([16, 40, 64, 100]), block_size=chance.choice([4, 16]),
        max_model_len=512, max_step_tokens=chance.choice([48, 128, 256]), max_num_seqs=chance.choice([4, 12]),
        threshold=chance.choice([0, 0, 20]),
    )  # fmt: skip
    # From what one request of any length needs on.
    groups = len(shape.layers) if len(set(shape.layers)) > 1 else 1
    least = groups * (shape.max_model_len // shape.block_size + 2) + 1
    shape = replace(shape, num_blocks=least + chance.choice([0, 0, least // 4, 3 * least]))
    if "async" in kinds and chance.random() < 0.6:
        shape = replace(shape, is_async=True)
    elif "stages" in kinds and chance.random() < 0.3:
        shape = replace(shape, num_stages=2)
    if "runner 2" in kinds and chance.random() < 0.5:
        shape = replace(shape, runner=2)
    # With stages vLLM's own manager goes wrong too: drafts of a step that a reset made void are scheduled while a prefill is in flight.
    if "state" not in shape.layers and shape.num_stages == 1 and "drafts" in kinds and chance.random() < 0.5:
        shape = replace(shape, num_drafts=chance.choice([1, 3]))
    if "priority" in kinds and chance.random() < 0.3:
        shape = replace(shape, policy="priority")
    if "state" in shape.layers and chance.random() < 0.5:
        shape = replace(shape, exports_states=True)
    if "peer" in kinds:
        shape = replace(shape, has_peer=True)
    if "tiers" in kinds:
        block_bytes = 16 * shape.block_size * len(shape.layers)
        tiers: dict[str, Any] = {"host_bytes": block_bytes * chance.choice([1, 5, 20, 200])}
        if chance.random() < 0.3:
            tiers |= {"disk_bytes": block_bytes * chance.choice([1, 100]), "disk_path": tempfile.gettempdir()}
        shape = replace(shape, tiers=tiers, num_workers=NUM_RANKS, runner=1 if "state" in shape.layers else shape.runner)
    return shape


def choose_contents(chance: random.Random, asked: list[Asked]) -> list[Asked]:
    """Half of the requests with images, which are few, so that some are equal; and one in ten as embeddings."""
    found = []
    for one in asked:
        kind = chance.random()
        if kind < 0.1:
            one = replace(one, is_embedded=True)
        elif kind < 0.6:
            length = chance.choice([5, 20])
            offsets = [offset for offset in (3, 3 + length, 70) if offset + length < len(one.prompt)]
            items = tuple((offset, length, str(10 * length + chance.randrange(2))) for offset in offsets)
            prompt = list(one.prompt)
            for offset, _, _ in items:
                prompt[offset : offset + length] = [1] * length
            one = replace(one, items=items, prompt=prompt)
        found.append(one)
    return found


def choose_sessions(chance: random.Random, asked: list[Asked]) -> list[Asked]:
    """One in three goes on for some turns."""
    found = []
    for one in asked:
        if chance.random() < 0.3 and one.aborted_at is None and not one.is_embedded and len(one.prompt) < 200:
            turns = [[chance.randrange(VOCABULARY) for _ in range(chance.choice([1, 7, 40]))] for _ in range(chance.choice([1, 3]))]
            one = replace(one, turns=tuple(turns), max_tokens=min(one.max_tokens, 30))
        found.append(one)
    return found


def choose_peers(chance: random.Random, asked: list[Asked]) -> list[Asked]:
    """Half of the prompts have been computed elsewhere, whole or in part."""
    peers = [(chance.choice([len(one.prompt), chance.randrange(1, len(one.prompt) + 1)]), chance.random() < 0.7) for one in asked]
    return [replace(one, peer=peer) if chance.random() < 0.5 else one for one, peer in zip(asked, peers, strict=True)]


def choose_requests(chance: random.Random, shape: Shape, count: int) -> list[Asked]:
    def tokens(number: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(number)]

    size = shape.block_size
    documents = [tokens(chance.choice([size, 3 * size, 90, 200])) for _ in range(3)]
    asked: list[Asked] = []
    step = 0
    scopes = chance.choice([[(None, 0)], [(None, 0), ("salt", 0), (None, 1), ("salt", 2)]])
    while len(asked) < count:
        step += chance.choice([0, 0, 0, 1, 4, 15])
        salt, adapter = chance.choice(scopes)
        earlier = chance.choice(asked) if asked and chance.random() < 0.4 else None
        if earlier is not None:
            # The same again, or a chat's next turn, or another end.
            prompt = earlier.prompt[: chance.choice([len(earlier.prompt), chance.randrange(1, len(earlier.prompt) + 1)])]
            if chance.random() < 0.5:
                prompt = prompt + answer(prompt, first_tag(earlier.salt, earlier.adapter), earlier.max_tokens, earlier.stop)
        else:
            prompt = list(chance.choice(documents))
        prompt = (prompt + tokens(chance.choice([0, 1, size, 30])))[:350] or [1]
        asked.append(Asked(
            name=f"request-{len(asked)}", step=step, prompt=prompt, max_tokens=chance.choice([1, 5, 30, 100]),
            stop=chance.choice([None, STOP]), salt=salt, adapter=adapter, priority=chance.randrange(3),
            aborted_at=step + chance.randrange(40) if chance.random() < 0.15 else None,
        ))  # fmt: skip
    return asked


class Canary:
    """A planted bug; this one is none. ``count``: how often it has struck."""

    count = 0

    def begin(self, history: "History") -> None: ...

    def before_step(self, history: "History") -> None: ...

    def deliver(self, history: "History", rank: int, output: Any) -> Any:
        return output


class History:
    """One engine serves requests; `run` raises `WrongTagError` at the first thing that is wrong."""

    def __init__(self, engine: Engine, asked: list[Asked], chance: random.Random, where: str, canary: Canary) -> None:
        self.engine = engine
        self.scheduler = engine.scheduler
        self.asked = asked
        self.chance = chance
        self.where = where
        self.canary = canary
        self.workers = [ToyWorker(engine, rank, where) for rank in range(NUM_RANKS)]
        self.in_flight: deque[Any] = deque()
        self.max_in_flight = engine.config.max_concurrent_batches
        self.answers: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.step = 0
        self.num_preemptions = 0
        self.num_cached = 0
        self.running_sum = 0
        self.num_executed = 0
        self.digest = hashlib.sha256()
        """Of all that was dispatched and answered."""
        self.resets_at: set[int] = set()

    def run(self, max_steps: int = 20000) -> None:
        self.canary.begin(self)
        waiting = deque(self.asked)
        leaving = sorted((one.aborted_at, one.name) for one in self.asked if one.aborted_at is not None)
        going_on: list[tuple[int, Asked, list[int]]] = []
        while waiting or going_on or self.scheduler.has_requests() or self.in_flight or self.workers[0].awaited:
            self.step += 1
            if self.step > max_steps:
                raise WrongTagError(f"{self.where}: after {max_steps} steps there are {self.scheduler.get_request_counts()} requests")
            while waiting and waiting[0].step <= self.step:
                one = waiting.popleft()
                self.scheduler.add_request(one.make(self.engine))
                step = self.step
                for turn in [*one.turns, []] if one.turns else ():
                    step += self.chance.randrange(40)
                    going_on.append((step, one, turn))
            for _, one, turn in [known for known in going_on if known[0] <= self.step]:
                self.scheduler.add_request(one.make(self.engine, turn))
            going_on = [known for known in going_on if known[0] > self.step]
            gone = [name for step, name in leaving if step == self.step]
            is_amid = self.chance.random() < 0.5
            if gone and not is_amid:
                self.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
            if self.step in self.resets_at:
                self.scheduler.reset_prefix_cache(reset_running_requests=self.chance.random() < 0.5)
            self.canary.before_step(self)
            self._step(gone if is_amid else [])
        for one in self.asked:
            if one.aborted_at is None and self.answers.get(one.name) != one.expected():
                raise WrongTagError(f"{self.where}, request {one.name}: got {self.answers.get(one.name)}, expected {one.expected()}")
        if self.scheduler.kv_cache_manager.usage != 0:
            raise WrongTagError(f"{self.where}: when all have finished, the usage is {self.scheduler.kv_cache_manager.usage}")
        self.engine.close()

    def _step(self, gone: list[str]) -> None:
        """What `EngineCore.step` does, and with several batches in flight `step_with_batch_queue`."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self._count(output)
            for worker in self.workers:
                worker.deliver(self.canary.deliver(self, worker.rank, output))
            self.in_flight.append(output)
            self._let_some_execute()
            if len(self.in_flight) < self.max_in_flight and (output.total_num_scheduled_tokens or self.scheduler.has_requests()):
                if gone:
                    self.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
                return
        if not self.in_flight:
            return
        output = self.in_flight.popleft()
        sampled = self._result()
        if gone:
            self.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
        names = list(sampled)
        result = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, [sampled[name] for name in names])
        if self.engine.shape.has_peer:
            result.kv_connector_output = self._let_some_load()
        if self.engine.shape.tiers:
            result.kv_connector_output = KVConnectorOutput(kv_connector_worker_meta=self._reports())
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                self.answers.setdefault(one.request_id, []).extend(one.new_token_ids)
                if one.prefill_stats is not None:
                    self.num_cached += one.prefill_stats.num_cached_tokens
        if self.engine.shape.num_drafts and not self.engine.shape.is_async and output.total_num_scheduled_tokens:
            self.scheduler.update_draft_token_ids(DraftTokenIds(*self.workers[0].take_drafts()))

    def _count(self, output: Any) -> None:
        if output.total_num_scheduled_tokens:
            self.num_executed += 1
            self.running_sum += len(self.scheduler.running)
        self.num_preemptions += len(output.preempted_req_ids or ())
        ids = [new.block_ids for new in output.scheduled_new_reqs] + output.scheduled_cached_reqs.new_block_ids
        self.digest.update(repr((output.num_scheduled_tokens, ids)).encode())

    def _let_some_execute(self) -> None:
        """Rank 0 is as late as can be, rank 1 as early, the others as it happens."""
        for worker in self.workers[1:]:
            while worker.delivered and (worker.rank == 1 or self.chance.random() < 0.5):
                worker.execute()

    def _let_some_load(self) -> KVConnectorOutput:
        """Loads that are done; one in five has failed, and is to be computed."""
        done = {name for name in self.workers[0].awaited if self.chance.random() < 0.3}
        failed = {name for name in sorted(done) if self.chance.random() < 0.2}
        for worker in self.workers:
            for name in sorted(done):
                if name in failed:
                    del worker.awaited[name]
                else:
                    worker.load(name)
        return KVConnectorOutput(finished_recving=done, failed_recving=failed)

    def _reports(self) -> Any:
        """Of all workers, pickled and put together as vLLM does it."""
        reports = [pickle.loads(pickle.dumps(worker.reports.pop(0))) for worker in self.workers]
        return reduce(lambda one, other: one.aggregate(other), reports)

    def _result(self) -> dict[str, list[int]]:
        results = []
        for worker in self.workers:
            if not worker.results:
                worker.execute()
            results.append(worker.results.pop(0))
        if any(result != results[0] for result in results):
            raise WrongTagError(f"{self.where}, step {self.step}: ranks sampled {results}")
        return results[0]


def make_history(name: str, seed: int, kinds: tuple[str, ...], canary: Canary | None = None) -> History:
    chance = random.Random(f"{seed} {' '.join(kinds)}")
    shape = choose_shape(chance, kinds)
    engine = make_scheduler(shape, name)
    asked = choose_requests(chance, shape, 30)
    if "images" in kinds and chance.random() < 0.5:
        asked = choose_contents(chance, asked)
    # A turn's last step may be in flight when it is cut: a recurrent state has the token by then, with vLLM's own cache manager too.
    if "sessions" in kinds and not shape.num_drafts and shape.num_stages == 1 and not (shape.is_async and "state" in shape.layers):
        asked = choose_sessions(chance, asked)
    if "peer" in kinds:
        asked = choose_peers(chance, asked)
    history = History(engine, asked, chance, f"{name}, seed {seed}, {' '.join(kinds)}, {shape}", canary or Canary())
    # A paused session keeps its blocks, and vLLM resets no cache beside it.
    if "resets" in kinds and not any(one.turns for one in asked):
        history.resets_at = {chance.randrange(1, 150) for _ in range(chance.choice([0, 3]))}
    return history


KINDS = ("async", "stages", "drafts", "states", "priority", "runner 2", "resets", "images", "sessions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["stock", "ours"], default="stock")
    parser.add_argument("--seeds", default="0:50")
    parser.add_argument("--kinds", default=None, help='such as "async,drafts"')
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    kinds = KINDS if options.kinds is None else tuple(kind for kind in options.kinds.split(",") if kind)
    begin = time.perf_counter()
    wrong = checked = preempted = cached = loaded = 0
    for seed in range(int(first), int(last or int(first) + 1)):
        history = make_history(options.engine, seed, kinds)
        try:
            history.run()
        except Exception as error:
            wrong += 1
            where = "" if isinstance(error, WrongTagError) else f"{history.where}, step {history.step}: "
            print(f"WRONG {where}{error!r}", flush=True)
            if not last:
                raise
        checked += sum(worker.num_checked for worker in history.workers)
        preempted += history.num_preemptions
        loaded += history.workers[0].num_loaded
        cached += history.num_cached
    seconds = time.perf_counter() - begin
    counts = f"{checked:,} tags checked, {cached:,} cached tokens, {loaded:,} blocks loaded, {preempted} preemptions"
    print(f"{wrong} wrong; {counts}, {seconds:.1f} s")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
