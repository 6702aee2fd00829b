"""Random calls of the common kinds on one or two streams, without refusals; `every_call` makes all kinds."""

import random
from typing import Any

from kv_cache_manager_v2 import KVCacheManager, ReuseScope


def drive(manager: KVCacheManager, seed: int, num_calls: int) -> bytes:
    """``num_calls`` random calls; returns the digest after the last."""
    rng = random.Random(seed)
    open_: list[Any] = []
    streams = [manager.device.default_stream(), manager.device.create_stream()]

    def text(length: int) -> list[int | bytes]:
        family = rng.randrange(6)
        tokens: list[int | bytes] = [family * 1000 + i // 3 for i in range(length)]
        if length > 5 and rng.random() < 0.2:
            tokens[5] = bytes([family]) * 8
        return tokens

    for _ in range(num_calls):
        kind = rng.random()
        if kind < 0.1 and len(open_) < 8 or not open_:
            callback = (lambda ordinal, life_cycle: ordinal % 50) if rng.random() < 0.3 else None
            scope = ReuseScope(salt=rng.choice([None, "tenant", -5])) if rng.random() < 0.3 else None
            open_.append(
                manager.create_kv_cache(scope, text(rng.randrange(40)), custom_priority_callback=callback)
            )
            continue
        kv_cache = rng.choice(open_)
        if not kv_cache.is_active:
            if kind < 0.2:
                kv_cache.close()
                open_.remove(kv_cache)
            elif rng.random() < 0.8:
                kv_cache.resume(rng.choice(streams))
        elif kind < 0.15:
            kv_cache.suspend()
        elif kind < 0.2:
            kv_cache.stop_committing()
            kv_cache.close()
            open_.remove(kv_cache)
        elif kind < 0.25:
            kv_cache.cuda_stream = rng.choice(streams)
        elif kind < 0.3:
            manager.probe_reuse(None, text(30))
        elif kind < 0.4:
            active = [other for other in open_ if other.is_active]
            manager.resize_batch(active, [other.capacity + 3 for other in active], [other.capacity for other in active])
        else:
            free = kv_cache.capacity - kv_cache.num_committed_tokens
            if free and rng.random() < 0.6 and kv_cache.history_length == kv_cache.num_committed_tokens:
                length = kv_cache.num_committed_tokens + rng.randrange(1, free + 1)
                kv_cache.commit(text(length)[kv_cache.num_committed_tokens :])
            else:
                capacity = kv_cache.capacity
                kv_cache.resize(capacity + rng.choice([1, 1, 1, 20]), capacity if rng.random() < 0.9 else None)
    digest = manager.state_digest()
    for kv_cache in open_:
        kv_cache.close()
    for stream in streams[1:]:
        manager.device.destroy_stream(stream)
    return digest
