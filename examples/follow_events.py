"""A router with two engines: each tells what it has, and a prompt goes where the longest prefix of it lies. Needs no GPU."""

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    compute_block_hashes,
)

TOKENS_PER_BLOCK = 4
NUM_SLOTS = 6


class Engine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.events = KVCacheEventManager(1000)
        buffers = [BufferConfig("key", 64), BufferConfig("value", 64)]
        tier = GpuCacheTierConfig(NUM_SLOTS * 128)
        config = KVCacheManagerConfig(TOKENS_PER_BLOCK, [tier], [AttentionLayerConfig(LayerId(0), buffers)])
        self.manager = KVCacheManager(config, device=HostDevice(), event_manager=self.events)

    def serve(self, prompt: list[int]) -> None:
        with self.manager.create_kv_cache(input_tokens=prompt) as sequence:
            assert sequence.resume() and sequence.resize(len(prompt))
            sequence.commit(prompt[sequence.num_committed_tokens :])
        self.events.flush_iteration_events()


class Router:
    """Knows of each engine only what its events say."""

    def __init__(self, engines: list[Engine]) -> None:
        self.indices = [(engine, KVCacheEventIndex()) for engine in engines]

    def listen(self) -> None:
        for engine, index in self.indices:
            for event in engine.events.get_latest_events():
                print(f"  {engine.name} {event.event_id}: {type(event.data).__name__.removeprefix('KVCache')}")
                index.apply([event])
            if index.needs_snapshot:
                index.apply_snapshot(engine.events.snapshot())

    def choose(self, prompt: list[int]) -> Engine:
        hashes = compute_block_hashes(prompt, TOKENS_PER_BLOCK)
        counts = [(index.count_leading_blocks(hashes), engine) for engine, index in self.indices]
        print(f"prompt of {len(hashes)} blocks: " + ", ".join([f"{engine.name} has {count}" for count, engine in counts]))
        return max(counts, key=lambda pair: pair[0])[1]


def main() -> None:
    engines = [Engine("left"), Engine("right")]
    router = Router(engines)
    chat = list(range(1, 13))
    book = list(range(100, 116))
    engines[0].serve(chat)
    engines[1].serve(book)
    router.listen()
    router.choose([*chat, 13, 14, 15, 16]).serve([*chat, 13, 14, 15, 16])
    router.choose([*book[:8], 7, 7, 7, 7]).serve([*book[:8], 7, 7, 7, 7])
    # The right engine has no room for another text; its events say what it gave up.
    engines[1].serve(list(range(500, 516)))
    router.listen()
    router.choose(book)
    for engine in engines:
        engine.manager.shutdown()


if __name__ == "__main__":
    main()
