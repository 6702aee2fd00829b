"""Memory that two worker processes own: the scheduler sends tables and lists of copies, the workers compute, copy and compare."""

import multiprocessing
from typing import Any

import numpy as np

from kv_cache_manager_v2 import (
    AttentionLayerConfig, BufferConfig, CacheTier, CopyWorker, ExternalCacheTierConfig, KVCacheManager, KVCacheManagerConfig, LayerId
)  # fmt: skip

T = 4  # tokens per block
layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 8 * T), BufferConfig("value", 8 * T)])]
tiers = [ExternalCacheTierConfig([6], copy_workers=2), ExternalCacheTierConfig([12], tier=CacheTier.HOST_MEM)]
config = KVCacheManagerConfig(tokens_per_block=T, cache_tiers=tiers, layers=layers)
prompts = [[100 * user + position for position in range(20)] for user in (1, 2, 3)]  # level 0 holds one of them


class Worker(CopyWorker):
    def copy(self, from_level: int, from_slot: int, to_level: int, to_slot: int, pool_group: int) -> None:
        self.memory[to_level][pool_group][to_slot] = self.memory[from_level][pool_group][from_slot]

    def serve(self, steps: Any) -> None:
        self.memory = [[np.zeros((count, T), np.int64) for count in counts] for counts in self.layout]
        for number, copies, table, tokens, begin in iter(steps.recv, None):
            self.execute(number, copies)
            for position in range(begin, len(tokens)):  # what attention kernels write, and what they read
                self.memory[0][0][table[position // T], position % T] = tokens[position]
            found = [int(self.memory[0][0][table[position // T], position % T]) for position in range(len(tokens))]
            steps.send((number, self.layout, found == tokens))


def main() -> None:
    with KVCacheManager(config) as manager:
        pipes = [multiprocessing.Pipe() for _ in range(2)]
        workers = [multiprocessing.Process(target=Worker(manager.copy_layout).serve, args=(end,), daemon=True) for _, end in pipes]
        for worker in workers:
            worker.start()
        number = 0
        for user, tokens in enumerate(2 * prompts):
            with manager.create_kv_cache(input_tokens=tokens[:-1]) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(len(tokens))
                begin, table = kv_cache.num_committed_tokens, kv_cache.get_base_page_indices(0).tolist()
                number, copies = manager.take_copies(number)  # before the step is launched
                for index, (pipe, _) in enumerate(pipes):
                    pipe.send((number, copies, table, tokens, begin))
                    done, layout, is_right = pipe.recv()
                    manager.report_copies(done, index, layout)
                    assert is_right
                kv_cache.commit(tokens[begin:])  # after it
            print(f"list {number}: {begin} tokens were there, {len(copies)} slots copied")
        for pipe, _ in pipes:
            pipe.send(None)
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
