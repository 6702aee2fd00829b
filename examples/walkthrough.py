"""One request from match to eviction, and one prefill with scratch slots, with all numbers; no GPU needed.

docs/walkthrough.md explains what this prints, and a test compares the two.
"""

import numpy as np

from kv_cache_manager_v2 import (
    BAD_PAGE_INDEX,
    AttentionLayerConfig,
    BufferConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    PageIndexMode,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.testing import FakeEngine, Step

BYTES_PER_TOKEN = 8


def layer(layer_id: int, tokens_per_block: int, window: int | None) -> AttentionLayerConfig:
    size = BYTES_PER_TOKEN * tokens_per_block
    return AttentionLayerConfig(LayerId(layer_id), [BufferConfig("key", size), BufferConfig("value", size)], window)


def show_slots(manager: KVCacheManager) -> None:
    """Every slot of the one pool group is free, or its page is locked, held or droppable, or it is a scratch slot."""
    counts = manager.get_storage_statistics()[0]
    group = manager.describe()["levels"][0]["pool_groups"][0]
    free, locked, droppable = counts.free, group["locked"], counts.evictable
    held = counts.total - free - locked - droppable
    print(f"    {counts.total} slots: {free} free, {locked} locked, {held} held, {droppable} droppable")


def show(title: str, sequence: KVCache) -> None:
    print(f"{title}: {sequence.status.value}")
    lengths = (sequence.num_committed_tokens, sequence.history_length, sequence.capacity)
    print("    committed {}, history {}, capacity {}".format(*lengths))
    for group, name in enumerate(("full", "window 8")):
        slots = ["  ." if slot == BAD_PAGE_INDEX else f"{slot:3}" for slot in sequence.get_base_page_indices(group)]
        print(f"    {name:9}" + "".join(slots))
    show_slots(sequence.manager)


def follow_one_request() -> None:
    layers = [layer(0, 4, None), layer(1, 4, 8)]
    # By recency, so that it can be followed by hand.
    tier = GpuCacheTierConfig(20 * 2 * 4 * BYTES_PER_TOKEN, EvictionPolicy.LRU)
    config = KVCacheManagerConfig(4, [tier], layers)
    device = HostDevice()
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
        system_prompt = list(range(100, 114))
        with manager.create_kv_cache(input_tokens=system_prompt) as earlier:
            assert earlier.resume() and earlier.resize(14)
            engine.execute([Step(earlier, system_prompt, [])])
            earlier.commit(system_prompt)
        print("an earlier request of 14 tokens was closed")
        show_slots(manager)

        prompt = system_prompt + list(range(200, 216))
        sequence = manager.create_kv_cache(input_tokens=prompt[:-1])
        show("\nmatch: create_kv_cache(29 tokens)", sequence)
        assert sequence.resume()
        show("\nresume()", sequence)
        for capacity in (22, 30):
            done = sequence.history_length
            assert sequence.resize(capacity)
            show(f"\nchunk of {capacity - done}: resize({capacity})", sequence)
            engine.execute([Step(sequence, prompt[done:capacity], prompt[:done])])
            sequence.commit(prompt[done:capacity])
            show(f"\ncommit({capacity - done} tokens)", sequence)
        text = prompt[:]
        for token in (7, 8, 9, 10, 11, 12):
            assert sequence.resize(len(text) + 1)
            engine.execute([Step(sequence, [token], text)])
            sequence.commit([token])
            text.append(token)
        show("\n6 decode steps: resize(n + 1), commit(1 token)", sequence)
        sequence.close()
        print("\nclose()")
        show_slots(manager)

        second = manager.create_kv_cache(input_tokens=text + [1, 2, 3])
        show("\nthe next turn: create_kv_cache(39 tokens)", second)
        second.close()
        with manager.create_kv_cache() as other:
            assert other.resume()
            for capacity in (16, 20):
                assert other.resize(capacity)
                show(f"\nanother text: resize({capacity})", other)
                print(f"    of the first text {manager.probe_reuse(input_tokens=text)} tokens can be reused")


def prefill_with_scratch_slots() -> None:
    layers = [layer(layer_id, 32, 128) for layer_id in range(32)]
    slot_bytes = 32 * 2 * 32 * BYTES_PER_TOKEN
    for scratch in (None, SwaScratchReuseConfig()):
        config = KVCacheManagerConfig(32, [GpuCacheTierConfig(40 * slot_bytes)], layers, swa_scratch_reuse=scratch)
        device = HostDevice()
        with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
            sequence = manager.create_kv_cache()
            assert sequence.resume() and sequence.resize(1024, 0)
            counts = manager.get_storage_statistics()[0]
            print(f"\nprefill of 1024 tokens, swa_scratch_reuse={scratch}")
            print(f"    {counts.total - counts.free} slots")
            if scratch is not None:
                show_scratch(manager, sequence)
            engine.execute([Step(sequence, list(range(1024)), [])])
            sequence.close()


def show_scratch(manager: KVCacheManager, sequence: KVCache) -> None:
    desc = sequence.get_scratch_desc(0)
    assert desc is not None
    base = np.asarray(sequence.get_base_page_indices(0))
    print(f"    blocks {desc.range.beg} to {desc.range.end - 1}: scratch slots {list(desc.slot_ids)}")
    print(f"    blocks {desc.range.end} to {len(base) - 1}: pages in slots {base[desc.range.end :].tolist()}")
    print("    page indices of blocks    0    1    2 ..  27 |  28   29   30   31")
    for layer_id in (0, 1, 31):
        for role in ("key", "value"):
            converter = manager.get_page_index_converter(LayerId(layer_id), role)
            indices = converter(base, PageIndexMode.PER_LAYER, desc).tolist()
            scratch, pages = indices[: desc.range.end], indices[desc.range.end :]
            first = " ".join(f"{index:4}" for index in scratch[:3])
            rest = " ".join(f"{index:4}" for index in pages)
            print(f"    layer {layer_id:2} {role:5}         {first} ..{scratch[-1]:4} |{rest}")


if __name__ == "__main__":
    follow_one_request()
    prefill_with_scratch_slots()
