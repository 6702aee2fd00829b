"""Three chats on a GPU with room for one: GPU, host memory and disk as one cache, and what the report of it says."""

import tempfile

from kv_cache_manager_v2 import (
    AttentionLayerConfig, BufferConfig, DiskCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig, KVCache, KVCacheManager,
    KVCacheManagerConfig, LayerId,
)  # fmt: skip

T = 32  # tokens per block
buffers = [BufferConfig("key", 2048 * T), BufferConfig("value", 2048 * T)]
layers = [AttentionLayerConfig(LayerId(i), buffers) for i in range(8)]
page_bytes = 8 * 2 * 2048 * T  # 1 MiB


def show(manager: KVCacheManager, what: str) -> None:
    used = [manager.get_storage_statistics(level)[0] for level in range(3)]
    print(f"{what:42s} " + "  ".join([f"{one.total - one.free:2d} of {one.total}" for one in used]))


def chat(manager: KVCacheManager, number: int, num_tokens: int) -> KVCache:
    tokens = list(range(10_000 * number, 10_000 * number + num_tokens))
    kv_cache = manager.create_kv_cache(input_tokens=tokens[:-1])
    assert kv_cache.resume(), manager.last_refusal
    assert kv_cache.resize(capacity=num_tokens), manager.last_refusal
    kv_cache.commit(tokens[kv_cache.num_committed_tokens :])  # the engine has computed them
    return kv_cache


with tempfile.TemporaryDirectory() as folder:
    gpu, host = GpuCacheTierConfig(12 * page_bytes), HostCacheTierConfig(12 * page_bytes)
    disk = DiskCacheTierConfig(64 * page_bytes, folder)
    config = KVCacheManagerConfig(tokens_per_block=T, cache_tiers=[gpu, host, disk], layers=layers)
    with KVCacheManager(config) as manager:
        print(f"{'slots in use':42s}  gpu       host      disk")
        chats: list[KVCache] = []
        for number in range(3):
            chats.append(chat(manager, number, 10 * T))
            chats[-1].suspend()  # moves nothing: whoever needs the room moves it
            show(manager, f"chat {number}, 10 blocks, computed, suspended")
        first = chats[0]
        assert first.prefetch(1)
        show(manager, "chat 0 is prefetched to the host")
        assert first.resume(wait=False)  # neither the stream nor this thread waits
        while not first.ready:  # an engine computes other requests in the meantime
            pass
        assert first.resize(capacity=10 * T + 1), manager.last_refusal
        show(manager, "chat 0 goes on, with a new block")
        for kv_cache in chats:
            kv_cache.close()  # published pages stay, on whatever level they are
        with chat(manager, 1, 10 * T) as again:
            found = again.statistics.prompts
            print(f"chat 1 comes again: {found.num_hit} of {found.tokens} tokens, by level {found.hit_tokens}")
        for one in manager.get_statistics().transfers:
            kind = f"level {one.source_level} to {one.target_level}"
            print(f"{one.kind:10s} {kind}: {one.blocks:3d} pages, {one.bytes >> 20:3d} MiB")
