"""W6: a trace of chats through a small continuous-batching loop; the time spent in the manager.

The loop is the least an engine does: 32 requests run at once, a prompt is computed in one step, every running request
generates one token per step, room is made in one call per step, the youngest gives way when there is none. Tokens are
made outside the measured time: equal block ids of the trace are equal tokens.
"""

import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from kv_cache_manager_v2 import EvictionPolicy, KVCache, KVCacheManager
from measure import Stopwatch
from models import Tokens, make_manager
from workload import Row, Size, Skipped, Workload

NUM_BLOCKS: Final = 30_000
NUM_RUNNING: Final = 32
TRACE_BLOCK: Final = 512
TRACE_NAME: Final = "conversation_first_4000.jsonl"
_ANSWERS_FROM: Final = 1 << 30


def find_trace(name: str = TRACE_NAME) -> Path:
    given = os.environ.get("KV_CACHE_MANAGER_V2_TRACES")
    folder = Path(given) if given else Path(__file__).resolve().parents[1].parent / "shared" / "traces"
    if not (folder / name).is_file():
        raise Skipped(f"no {name} in {folder}; KV_CACHE_MANAGER_V2_TRACES names the folder with the traces")
    return folder / name


class TraceRequest:
    """One line of the trace. Its prompt leaves off the last token, which the model must compute anyway."""

    def __init__(self, line: str) -> None:
        record: dict[str, Any] = json.loads(line)
        self.num_prompt_tokens: int = record["input_length"] - 1
        self.num_output_tokens: int = record["output_length"]
        self._block_ids = np.array(record["hash_ids"], dtype=np.int64)

    def make_prompt(self) -> Tokens:
        tokens = self._block_ids[:, None] * TRACE_BLOCK + np.arange(TRACE_BLOCK)
        return tokens.reshape(-1)[: self.num_prompt_tokens].astype(np.int32)


class RunningRequest:
    """A request with its sequence; ``capacity`` is what its next step needs."""

    def __init__(self, request: TraceRequest, kv_cache: KVCache, capacity: int) -> None:
        self.request = request
        self.kv_cache = kv_cache
        self.capacity = capacity
        self.num_left = request.num_output_tokens


class ServingLoop:
    """Serves requests until there are none; ``watch`` has the time in the manager."""

    def __init__(self, manager: KVCacheManager, requests: Iterator[TraceRequest]) -> None:
        self.watch = Stopwatch()
        self.num_hit_tokens = 0
        self.num_prompt_tokens = 0
        self.num_decoded_tokens = 0
        self._manager = manager
        self._requests = requests
        self._waiting: deque[TraceRequest] = deque()
        self._running: list[RunningRequest] = []
        self._next_answer = _ANSWERS_FROM

    def run(self) -> None:
        while self._admit() or self._running:
            self._decode()

    def _admit(self) -> bool:
        """Prefill new requests as long as there is room; False when none is left."""
        while len(self._running) < NUM_RUNNING:
            request = self._waiting.popleft() if self._waiting else next(self._requests, None)
            if request is None:
                return False
            if not self._prefill(request):
                if not self._running:
                    raise RuntimeError(f"a prompt of {request.num_prompt_tokens} tokens does not fit")
                self._waiting.appendleft(request)
                return True
        return True

    def _prefill(self, request: TraceRequest) -> bool:
        tokens = request.make_prompt()
        with self.watch:
            kv_cache = self._manager.create_kv_cache(None, tokens)
            num_matched = kv_cache.num_committed_tokens
            has_room = kv_cache.resume() and kv_cache.resize(len(tokens) + 1)
            if has_room:
                kv_cache.commit(tokens[num_matched:])
            else:
                kv_cache.close()
        if has_room:
            self._running.append(RunningRequest(request, kv_cache, len(tokens) + 1))
            self.num_hit_tokens += num_matched
            self.num_prompt_tokens += len(tokens)
        return has_room

    def _decode(self) -> None:
        running = self._running
        kv_caches = [one.kv_cache for one in running]
        capacities = [one.capacity for one in running]
        with self.watch:
            num_done = self._manager.resize_batch(kv_caches, capacities)
        while num_done < len(running):
            youngest = running.pop()
            with self.watch:
                youngest.kv_cache.close()
                num_done += self._manager.resize_batch(
                    kv_caches[num_done : len(running)], capacities[num_done : len(running)]
                )
            self._waiting.appendleft(youngest.request)
        first = self._next_answer
        self._next_answer += len(running)
        tokens = [[first + position] for position in range(len(running))]
        with self.watch:
            for one, token in zip(running, tokens, strict=True):
                one.kv_cache.commit(token)
        self.num_decoded_tokens += len(running)
        finished = []
        for one in running:
            one.capacity += 1
            one.num_left -= 1
            if one.num_left <= 0:
                finished.append(one)
        for one in finished:
            running.remove(one)
            with self.watch:
                one.kv_cache.close()


def trace_replay(size: Size) -> dict[str, float]:
    path = find_trace()
    with path.open(encoding="utf-8") as lines:
        wanted = size.of(4000, 20)
        requests = [TraceRequest(line) for _, line in zip(range(wanted), lines, strict=False)]
    with make_manager(NUM_BLOCKS) as manager:
        loop = ServingLoop(manager, iter(requests))
        loop.run()
    with make_manager(NUM_BLOCKS, enable_stats=True, policy=EvictionPolicy.LEARNED) as manager:
        with_defaults = ServingLoop(manager, iter(requests))
        with_defaults.run()
    return {
        "defaults": with_defaults.watch.ns / 1e9,
        "defaults_hit_percent": 100 * with_defaults.num_hit_tokens / with_defaults.num_prompt_tokens,
        "seconds": loop.watch.ns / 1e9,
        "us_per_request": loop.watch.ns / 1e3 / len(requests),
        "hit_percent": 100 * loop.num_hit_tokens / loop.num_prompt_tokens,
        "prompt_tokens": float(loop.num_prompt_tokens),
        "decoded_tokens": float(loop.num_decoded_tokens),
    }


WORKLOADS = [
    Workload(
        "trace_replay",
        trace_replay,
        {
            "defaults": Row("W6 4,000 chats, 30,000 blocks, defaults", "s", 3.0),
            "defaults_hit_percent": Row("W6 prompt tokens reused, defaults", "%"),
            "seconds": Row("W6 the same, LRU without statistics", "s"),
            "us_per_request": Row("W6 per request", "us"),
            "hit_percent": Row("W6 prompt tokens reused", "%"),
        },
    )
]
