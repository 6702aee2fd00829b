"""Two prefill and two decode processes, whose transfers over NIXL are frozen and killed at random: no wrong byte may be believed.

A third of the requests are read, a third written as a whole, a third written layer by layer by both prefill processes into one decode
process: the first has the first layers, the second the others, as ranks of a pipeline do.

    python drill.py --seconds 60 --seed 1

Prints one table. Each decode process compares every byte of every transfer that is DONE with what the prompt's tokens say.
"""

import argparse
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from random import Random
from typing import Any, Final

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)

LEASE: Final = 2.0
SIZE: Final = 16
TOKEN_BYTES: Final = 512


def make_manager() -> KVCacheManager:
    size = SIZE * TOKEN_BYTES
    layers = [
        AttentionLayerConfig(LayerId(layer), [BufferConfig("key", size), BufferConfig("value", size)], sliding_window_size=window)
        for layer, window in enumerate((None, 64, None))
    ]
    config = KVCacheManagerConfig(tokens_per_block=SIZE, cache_tiers=[GpuCacheTierConfig(64 << 20)], layers=layers)
    return KVCacheManager(config, device=HostDevice())


LAYERS: Final = (0, 1, 2)


def places(manager: KVCacheManager, kv_cache: KVCache, tokens: list[int], layers: Sequence[int] = LAYERS) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for number, buffer_id in enumerate(manager.all_buffer_ids):
        if buffer_id.layer_id not in layers:
            continue
        pages = manager.get_aggregated_pages([buffer_id])[0]
        slots = kv_cache.get_base_page_indices(pages.layer_group_id)
        for position, token in enumerate(tokens):
            slot = slots[position // SIZE]
            if slot >= 0:
                content = (token * 8 + number).to_bytes(8, "little") * (TOKEN_BYTES // 8)
                found.append((pages.base + pages.stride * slot + position % SIZE * TOKEN_BYTES, content))
    return found


def work(name: str, pipe: Connection) -> None:
    """One process: does what the router says, and reports (request, outcome)."""
    from kv_cache_manager_v2.integrations.nixl import NixlEngine
    from kv_cache_manager_v2.integrations.transfer import Transfer, TransferState
    from kv_cache_manager_v2.integrations.transfer_agent import TransferAgent
    from kv_cache_manager_v2.integrations.transfer_engine import PeerGone

    logging.getLogger("kv_cache_manager_v2").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    manager = make_manager()
    agent = TransferAgent(manager, NixlEngine(name), lease_seconds=LEASE)
    waiting: dict[int, tuple[KVCache, list[int], Transfer]] = {}
    longest = 0.0
    pipe.send(("up", 0, None))
    while True:
        if pipe.poll(0.0005):
            order, request, tokens, data, layers = pipe.recv()
            if order == "count":
                pipe.send(("count", request, (len(manager.open_leases), longest)))
                continue
            if order == "stop":
                break
            kv_cache = manager.create_kv_cache(None, tokens)
            length = len(tokens)
            if kv_cache.num_committed_tokens == length or not (kv_cache.resume() and kv_cache.resize(length, length)):
                kv_cache.close()
                pipe.send(("failed", request, None))
                continue
            try:
                if order in ("offer", "write"):
                    for part in [layers] if layers == LAYERS else [(layer,) for layer in layers]:
                        for address, content in places(manager, kv_cache, tokens, part):
                            ctypes.memmove(address, content, TOKEN_BYTES)
                        if order == "write":
                            agent.write([data], kv_cache, tokens, [LayerId(layer) for layer in part])
                            agent.progress()
                    if order == "offer":
                        pipe.send(("offered", request, agent.offer(kv_cache, tokens).offer.to_bytes()))
                    kv_cache.close()
                else:
                    num_peers = 1 if layers == LAYERS else 2
                    transfer = agent.invite(kv_cache, tokens, num_peers) if order == "invite" else agent.read([data], kv_cache, tokens)
                    waiting[request] = kv_cache, tokens, transfer
                    if order == "invite":
                        pipe.send(("invited", request, transfer.offer.to_bytes()))
            except (PeerGone, ValueError):
                # A peer that was killed, or one whose prefix was dropped in between.
                kv_cache.close()
                pipe.send(("failed", request, None))
        began = time.perf_counter()
        agent.progress()
        longest = max(longest, time.perf_counter() - began)
        for request, (kv_cache, tokens, transfer) in list(waiting.items()):
            if transfer.state is not TransferState.PENDING:
                del waiting[request]
                outcome = "failed"
                if transfer.state is TransferState.DONE:
                    expected = places(manager, kv_cache, tokens)
                    is_right = all([ctypes.string_at(address, TOKEN_BYTES) == content for address, content in expected])
                    outcome = "done" if is_right else "wrong"
                    kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
                kv_cache.close()
                pipe.send((outcome, request, None))


class Worker:
    """A process and its pipe."""

    def __init__(self, context: Any, name: str) -> None:
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(name, other), daemon=True)
        self.process.start()
        other.close()
        self.thaws_at = 0.0
        self.is_up = False

    def signal(self, number: int) -> None:
        if self.process.pid is not None:
            os.kill(self.process.pid, number)


def run(seconds: float, seed: int) -> Counter[str]:
    """The outcomes; "leases" counts what was still lent at the end, "longest_us" the longest `progress`."""
    random = Random(seed)
    context = multiprocessing.get_context("spawn")
    names = ["prefill-0", "prefill-1", "decode-0", "decode-1"]
    workers = {name: Worker(context, name) for name in names}
    counts: Counter[str] = Counter()
    under_way: dict[int, tuple[str, str, list[int], tuple[int, ...], float]] = {}
    num_requests = 0
    began = time.monotonic()
    next_harm = began + 3.0
    while True:
        now = time.monotonic()
        is_over = now - began > seconds
        if is_over and (not under_way or now - began > seconds + 10 * LEASE):
            break
        for name, worker in list(workers.items()):
            if 0.0 < worker.thaws_at < now:
                worker.signal(signal.SIGCONT)
                worker.thaws_at = 0.0
            while worker.thaws_at == 0.0 and worker.pipe.poll():
                try:
                    kind, request, data = worker.pipe.recv()
                except (EOFError, OSError):
                    break
                worker.is_up = True
                known = under_way.get(request)
                if kind in ("offered", "invited") and known is not None:
                    prefill, decode, tokens, layers, _since = known
                    target, order = (decode, "read") if kind == "offered" else (prefill, "write")
                    _send(workers[target], (order, request, tokens, data, layers))
                    if layers != LAYERS:
                        other = names[1] if prefill == names[0] else names[0]
                        rest = tuple(layer for layer in LAYERS if layer not in layers)
                        _send(workers[other], (order, request, tokens, data, rest))
                elif kind in ("done", "failed", "wrong") and known is not None:
                    counts[kind] += 1
                    counts["layered"] += kind == "done" and known[3] != LAYERS
                    del under_way[request]
        for request, (_prefill, _decode, _tokens, _layers, since) in list(under_way.items()):
            if now - since > 8 * LEASE:
                counts["unanswered"] += 1
                del under_way[request]
        up = all([worker.is_up for worker in workers.values()])
        if up and not is_over and len(under_way) < 8:
            num_requests += 1
            prefill, decode = random.choice(names[:2]), random.choice(names[2:])
            head = random.randrange(3)
            tokens = [head * 1000 + at for at in range(48)] + [random.randrange(1 << 20) for _ in range(random.randrange(1, 200))]
            way = random.choice(("read", "written", "layer by layer"))
            counts[way] += 1
            layers = LAYERS[: random.randrange(1, 3)] if way == "layer by layer" else LAYERS
            under_way[num_requests] = prefill, decode, tokens, layers, now
            order, target = ("offer", prefill) if way == "read" else ("invite", decode)
            _send(workers[target], (order, num_requests, tokens, b"", layers))
        if up and not is_over and now > next_harm:
            next_harm = now + random.uniform(0.3, 1.5)
            name = random.choice(names)
            worker = workers[name]
            if random.random() < 0.2:
                counts["killed"] += 1
                worker.signal(signal.SIGKILL)
                worker.process.join()
                workers[name] = Worker(context, name)
            elif worker.thaws_at == 0.0:
                counts["frozen"] += 1
                worker.signal(signal.SIGSTOP)
                worker.thaws_at = now + random.uniform(0.1, 2.5) * LEASE
        time.sleep(0.0005)
    for worker in workers.values():
        worker.signal(signal.SIGCONT)
    time.sleep(4 * LEASE)
    for worker in workers.values():
        _send(worker, ("count", 0, [], b"", LAYERS))
        while worker.pipe.poll(10.0):
            kind, _request, data = worker.pipe.recv()
            if kind == "count":
                counts["leases"] += data[0]
                counts["longest_us"] = max(counts["longest_us"], round(data[1] * 1e6))
                break
        _send(worker, ("stop", 0, [], b"", LAYERS))
        worker.process.join(5.0)
        worker.signal(signal.SIGKILL) if worker.process.is_alive() else None
    counts["requests"] = num_requests
    return counts


def _send(worker: Worker, order: tuple[str, int, list[int], bytes, tuple[int, ...]]) -> None:
    try:
        worker.pipe.send(order)
    except OSError:
        return  # it was killed; the router gives the request up


def main() -> int:
    """0 if nothing was wrong and nothing stayed lent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts = run(options.seconds, options.seed)
    ways = ("requests", "read", "written", "layer by layer")
    for name in (*ways, "done", "layered", "failed", "unanswered", "wrong", "frozen", "killed", "leases", "longest_us"):
        print(f"{name:14} {counts[name]:8}")
    return 0 if counts["wrong"] == 0 and counts["leases"] == 0 and counts["done"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
