"""Sparse attention over a context eight times as long as level 0: old pages stay in host memory until a scorer picks their blocks."""

import numpy as np

from kv_cache_manager_v2 import (
    AttentionLayerConfig, BufferConfig, GpuCacheTierConfig, HostCacheTierConfig, HostDevice, KVCacheManager, KVCacheManagerConfig, LayerId,
)  # fmt: skip

T, WIDTH = 16, 32  # tokens per block, numbers of a key and of a value
PICKED = 3  # old blocks that a step reads beside the first block and the window
NUM_BLOCKS = 64  # of the context
weights = np.random.default_rng(0).normal(size=(3, 1000, WIDTH))  # query, key and value of each token of a vocabulary


class Engine:
    """One sequence of one layer. ``num_slots``: blocks of level 0; None: room for all of them."""

    def __init__(self, num_slots: int | None) -> None:
        block_bytes = 8 * T * WIDTH
        gpu = GpuCacheTierConfig(2 * block_bytes * (num_slots or NUM_BLOCKS + 8))
        host = HostCacheTierConfig(2 * block_bytes * NUM_BLOCKS)
        layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", block_bytes), BufferConfig("value", block_bytes)])
        self.manager = KVCacheManager(KVCacheManagerConfig(T, [gpu, host], [layer]), device=HostDevice())
        self.views = [self.manager.pool_view(LayerId(0), role, "float64", by_slot=True) for role in ("key", "value")]
        self.keys, self.values = [np.from_dlpack(view).reshape(-1, T, WIDTH) for view in self.views]
        self.sequence = self.manager.create_kv_cache()
        if num_slots is not None:
            self.sequence.set_residency_window(0, window_size=T + 1, num_sink_tokens=T)
        self.means = np.zeros((NUM_BLOCKS, WIDTH))  # of each block's keys: what the scorer looks at, and so not in pages

    def write(self, tokens: list[int]) -> None:
        """The next tokens' keys and values, at most a block of them."""
        begin = self.sequence.num_committed_tokens
        assert self.sequence.is_active or self.sequence.resume(), self.manager.last_refusal
        assert self.sequence.resize(begin + len(tokens), begin), self.manager.last_refusal
        slots = self.sequence.get_base_page_indices(0)
        for position, token in enumerate(tokens, begin):
            self.keys[slots[position // T], position % T] = weights[1][token]
            self.values[slots[position // T], position % T] = weights[2][token]
            self.means[position // T] += weights[1][token] / T
        self.sequence.commit(tokens)

    def answer(self, token: int) -> int:
        """The next token: attention over the first block, the latest ones and those that the scorer picks."""
        last = self.sequence.num_blocks - 1
        query = weights[0][token]
        old = np.argsort(self.means[1 : last - 1] @ query)[::-1][:PICKED] + 1
        blocks = sorted({0, *[int(block) for block in old], last - 1, last})
        assert self.sequence.require_blocks(0, blocks), self.manager.last_refusal
        slots = np.asarray(self.sequence.get_base_page_indices(0))[blocks]
        scores = np.concatenate(self.keys[slots]) @ query
        chances = np.exp(scores - scores.max())
        mixed = chances @ np.concatenate(self.values[slots]) / chances.sum()
        return int(np.argmax(weights[2] @ mixed))

    def close(self) -> None:
        self.sequence.close()
        del self.keys, self.values
        for view in self.views:
            view.release()
        self.manager.shutdown()


prompt = [int(token) for token in np.random.default_rng(1).integers(0, 1000, (NUM_BLOCKS - 4) * T)]
sparse, roomy = Engine(NUM_BLOCKS // 8), Engine(None)
for begin in range(0, len(prompt), T):
    for engine in (sparse, roomy):
        engine.write(prompt[begin : begin + T])
token, num_equal = prompt[-1], 0
for _step in range(3 * T):
    found = [engine.answer(token) for engine in (sparse, roomy)]
    num_equal += found[0] == found[1]
    token = found[0]
    for engine in (sparse, roomy):
        engine.write([token])
levels = list(sparse.sequence.get_block_levels(0))
print(f"{len(levels)} blocks of {T} tokens, {levels.count(0)} of them on level 0, {levels.count(1)} in host memory")
print(f"{num_equal} of {3 * T} answers are those of an engine with room for all")
for engine in (sparse, roomy):
    engine.close()
assert num_equal == 3 * T
