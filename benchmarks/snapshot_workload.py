"""W21: a model with recurrent layers and few slots for snapshots; how much of what attention has cached is computed again.

Requests come one after the other. A prefill ends its chunks where `KVCache.next_snapshot_position` says, as an engine does. Counted are the
prompt tokens that attention has cached and for which no snapshot was left, in percent of the cached ones: less is better.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    SnapshotPolicy,
    SsmLayerConfig,
)
from models import Tokens
from trace_workload import TRACE_BLOCK, TRACE_NAME, find_trace
from workload import Row, Size, Workload

SLOT_BYTES: Final = 2 << 20
BLOCK: Final = 32
MIX_SLOTS: Final = [12, 30, 100]
TRACE_SLOTS: Final = [10, 20, 40, 80]
ONLY: Final = {"at_prompt_end": False, "at_branches": False, "at_commits": False}
POLICIES: Final = {
    "ends": SnapshotPolicy(**{**ONLY, "at_prompt_end": True}),
    "grid": SnapshotPolicy(**ONLY, every_num_blocks=8),
    "branches": SnapshotPolicy(**{**ONLY, "at_branches": True}),
    "fixed": SnapshotPolicy(),
    "learned": SnapshotPolicy(placement="learned"),
}


class Request:
    """A prompt and the tokens that are generated for it."""

    def __init__(self, prompt: Tokens, answer: Tokens) -> None:
        self.prompt = prompt
        self.answer = answer


def make_config(tokens_per_block: int, num_blocks: int, num_states: int, policy: SnapshotPolicy) -> KVCacheManagerConfig:
    """So many slots for blocks and for states, one of them that of the running sequence."""
    total = num_blocks + 2 * num_states
    return KVCacheManagerConfig(
        tokens_per_block=tokens_per_block,
        cache_tiers=[GpuCacheTierConfig(total * SLOT_BYTES)],
        layers=[
            SsmLayerConfig(LayerId(0), [BufferConfig("ssm", 2 * SLOT_BYTES)]),
            AttentionLayerConfig(LayerId(1), [BufferConfig("kv", SLOT_BYTES)]),
        ],
        initial_pool_ratio=[2 * num_states / total, num_blocks / total],
        snapshot_policy=policy,
        max_util_for_resume=1.0,
    )


def serve(config: KVCacheManagerConfig, requests: Iterable[Request]) -> tuple[int, int]:
    """Tokens that attention has cached, and those of them that are computed again."""
    num_cached = num_again = 0
    # Here: an older build that has no such device can run all other workloads.
    from kv_cache_manager_v2.device.external_device import ExternalDevice

    with KVCacheManager(config, device=ExternalDevice()) as manager:
        for request in requests:
            prompt = request.prompt
            with manager.create_kv_cache(None, prompt[:-1]) as kv_cache:
                match = kv_cache.match_info
                num_cached += match.attention_tokens
                num_again += match.attention_tokens - match.state_tokens
                begin = kv_cache.num_committed_tokens
                if not kv_cache.resume():
                    raise RuntimeError(f"no room: {manager.last_refusal}")
                while begin < len(prompt):
                    stop = kv_cache.next_snapshot_position
                    end = len(prompt) if stop is None else min(stop, len(prompt))
                    if not kv_cache.resize(end):
                        raise RuntimeError(f"no room: {manager.last_refusal}")
                    kv_cache.commit(prompt[begin:end])
                    begin = end
                if len(request.answer) > 0 and kv_cache.resize(len(prompt) + len(request.answer)):
                    kv_cache.commit(request.answer)
    return num_cached, num_again


def make_mix(num_requests: int, seed: int = 5) -> list[Request]:
    """Chats, documents that are asked about, agents with one long instruction, and prompts that share nothing."""
    rng = np.random.default_rng(seed)
    systems = [_make(rng, length) for length in (700, 1500, 2600)]
    documents = [np.concatenate([systems[0], _make(rng, int(length))]) for length in rng.integers(1000, 6000, 60)]
    chats: list[Tokens] = []
    requests: list[Request] = []
    for _request in range(num_requests):
        kind = rng.random()
        if kind < 0.3:
            if len(chats) < 12 or rng.random() < 0.25:
                text = np.concatenate([systems[1], _make(rng, int(rng.integers(50, 400)))])
                chats = [*chats, text][-24:]
                turn = len(chats) - 1
            else:
                turn = int(rng.integers(len(chats)))
                chats[turn] = np.concatenate([chats[turn], _make(rng, int(rng.integers(50, 400)))])
            answer = _make(rng, int(rng.integers(50, 500)))
            requests.append(Request(chats[turn], answer))
            chats[turn] = np.concatenate([chats[turn], answer])
            continue
        if kind < 0.55:
            # The first documents are asked about most.
            start = documents[min(int(rng.zipf(1.3)) - 1, len(documents) - 1)]
        elif kind < 0.8:
            start = systems[2]
        else:
            start = _make(rng, int(rng.integers(500, 3000)))
        requests.append(Request(np.concatenate([start, _make(rng, int(rng.integers(20, 300)))]), _make(rng, 100)))
    return requests


def _make(rng: np.random.Generator, length: int) -> Tokens:
    return rng.integers(1, 1 << 30, length, dtype=np.int32)


def read_trace(path: Any, limit: int) -> list[Request]:
    requests: list[Request] = []
    with open(path, encoding="utf-8") as lines:
        for number, line in zip(range(limit), lines, strict=False):
            record = json.loads(line)
            ids = np.array(record["hash_ids"], dtype=np.int64)
            tokens = (ids[:, None] * TRACE_BLOCK + np.arange(TRACE_BLOCK)).reshape(-1)[: record["input_length"]]
            answer = np.arange(record["output_length"], dtype=np.int64) + (1 << 30) + (number << 12) % (1 << 29)
            requests.append(Request(tokens.astype(np.int32), answer.astype(np.int32)))
    return requests


def _serve_all(tokens_per_block: int, num_blocks: int, slots: list[int], requests: list[Request]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for num_slots in slots:
        for name, policy in POLICIES.items():
            num_cached, num_again = serve(make_config(tokens_per_block, num_blocks, num_slots + 1, policy), requests)
            shares[f"{name}_{num_slots}"] = 100 * num_again / num_cached
    return shares


def snapshots_mix(size: Size) -> dict[str, float]:
    return _serve_all(BLOCK, 20_000, MIX_SLOTS, make_mix(size.of(1500, 150)))


def _serve_trace(name: str, num_blocks: int, num_requests: int) -> dict[str, float]:
    return _serve_all(TRACE_BLOCK, num_blocks, TRACE_SLOTS, read_trace(find_trace(name), num_requests))


def snapshots_chat(size: Size) -> dict[str, float]:
    return _serve_trace(TRACE_NAME, 5_000, size.of(1500, 40))


def snapshots_agents(size: Size) -> dict[str, float]:
    return _serve_trace("agents_80_sessions.jsonl", 10_000, size.of(400, 40))


def _rows(title: str, slots: list[int]) -> dict[str, Row]:
    return {f"{name}_{count}": Row(f"W21 {title}, {count} snapshots, {name}", "%") for count in slots for name in POLICIES}


WORKLOADS: Final = [
    Workload("snapshots_mix", snapshots_mix, _rows("made mix", MIX_SLOTS), interpreted=False),
    Workload("snapshots_chat", snapshots_chat, _rows("chat", TRACE_SLOTS), interpreted=False),
    Workload("snapshots_agents", snapshots_agents, _rows("agents", TRACE_SLOTS), interpreted=False),
]
