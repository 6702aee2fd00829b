"""Prefill in one process, decode in another: the pages go from pool to pool over NIXL.

``pip install --no-deps nixl-cu12 nixl numpy`` first; a GPU is not needed. Both processes have the same model: two layers, one of them
with a window. What the prefill process computes is a rule here, so that the decode process can tell whether each byte has arrived.
"""

import ctypes
import importlib.util
import multiprocessing
from multiprocessing.connection import Connection

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

TOKENS_PER_BLOCK = 16
TOKEN_BYTES = 256
PROMPT = list(range(1000, 1000 + 200))


def make_manager() -> KVCacheManager:
    """Keys and values of 256 bytes a token in each of two layers."""
    size = TOKENS_PER_BLOCK * TOKEN_BYTES
    layers = [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", size), BufferConfig("value", size)]),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", size), BufferConfig("value", size)], sliding_window_size=64),
    ]
    config = KVCacheManagerConfig(tokens_per_block=TOKENS_PER_BLOCK, cache_tiers=[GpuCacheTierConfig(16 << 20)], layers=layers)
    return KVCacheManager(config, device=HostDevice())


def places(manager: KVCacheManager, kv_cache: KVCache) -> list[tuple[int, int]]:
    """(address, byte) of each token's keys and values: its page is filled with that byte there."""
    found: list[tuple[int, int]] = []
    for number, buffer_id in enumerate(manager.all_buffer_ids):
        pages = manager.get_aggregated_pages([buffer_id])[0]
        slots = kv_cache.get_base_page_indices(pages.layer_group_id)
        for position, token in enumerate(PROMPT):
            slot = slots[position // TOKENS_PER_BLOCK]
            if slot >= 0:
                at = pages.base + pages.stride * slot + position % TOKENS_PER_BLOCK * TOKEN_BYTES
                found.append((at, (token + 61 * number) % 251))
    return found


def prefill(to_decode: Connection) -> None:
    """Compute the prompt, offer its pages, and stay until the other process has them."""
    from kv_cache_manager_v2.integrations.nixl import NixlEngine
    from kv_cache_manager_v2.integrations.transfer import TransferState
    from kv_cache_manager_v2.integrations.transfer_agent import TransferAgent

    with make_manager() as manager, TransferAgent(manager, NixlEngine("prefill")) as agent:
        with manager.create_kv_cache(None, PROMPT) as kv_cache:
            if not (kv_cache.resume() and kv_cache.resize(len(PROMPT))):
                raise RuntimeError(f"no room for the prompt: {manager.last_refusal}")
            for address, byte in places(manager, kv_cache):
                ctypes.memset(address, byte, TOKEN_BYTES)
            kv_cache.commit(PROMPT)
            offered = agent.offer(kv_cache, PROMPT)
        # Its sequence is closed; its pages are lent until the other process says that it has them.
        to_decode.send_bytes(offered.offer.to_bytes())
        while offered.state is TransferState.PENDING or offered.is_quarantined:
            agent.progress()


def decode(from_prefill: Connection) -> None:
    """Read the prompt's pages, commit them, and go on with the next token."""
    from kv_cache_manager_v2.integrations.nixl import NixlEngine
    from kv_cache_manager_v2.integrations.transfer import TransferState
    from kv_cache_manager_v2.integrations.transfer_agent import TransferAgent

    with make_manager() as manager, TransferAgent(manager, NixlEngine("decode")) as agent:
        with manager.create_kv_cache(None, PROMPT) as kv_cache:
            if not (kv_cache.resume() and kv_cache.resize(len(PROMPT), len(PROMPT))):
                raise RuntimeError(f"no room for the prompt: {manager.last_refusal}")
            transfer = agent.read([from_prefill.recv_bytes()], kv_cache, PROMPT)
            while transfer.state is TransferState.PENDING:
                agent.progress()
            if transfer.state is TransferState.FAILED:
                raise RuntimeError(f"compute the prompt here: {transfer.reason}")
            expected = places(manager, kv_cache)
            num_right = sum([ctypes.string_at(address, TOKEN_BYTES) == bytes([byte]) * TOKEN_BYTES for address, byte in expected])
            kv_cache.commit(PROMPT)
            print(f"{num_right * TOKEN_BYTES} of {len(expected) * TOKEN_BYTES} bytes of {len(PROMPT)} tokens arrived as they were computed")
        print(f"the next request with this prompt reuses {manager.probe_reuse(None, [*PROMPT, 1])} tokens here")


def main() -> None:
    if importlib.util.find_spec("nixl") is None:
        raise SystemExit("this example needs NIXL: pip install --no-deps nixl-cu12 nixl numpy")
    """Run both, and fail if one of them does."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    processes = [context.Process(target=prefill, args=(sender,)), context.Process(target=decode, args=(receiver,))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any([process.exitcode != 0 for process in processes]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
