"""Random calls of every kind that changes a manager, for runs that are repeated elsewhere or go on for long.

`EveryCall` needs nothing but the calls: what it draws depends on the seed and on what the manager answered, so equal managers are
driven alike. Calls that do not fit the moment are refused by a named error, and counted. When there is no room, another sequence is
suspended: preemption.
"""

import hashlib
import random
from math import inf
from typing import Any, Final

from hybrid_models import hybrid_config
from small_models import BYTES_PER_TOKEN, attention_layers

from kv_cache_manager_v2 import (
    CacheTierConfig,
    DecodeBatch,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LogicError,
    OutOfPagesError,
    RetentionConfig,
    ReuseScope,
    SnapshotPolicy,
    SwaScratchReuseConfig,
    TokenRangeRetention,
)

REFUSALS: Final = (LogicError, OutOfPagesError, ValueError)
WINDOWS: Final = (None, 8, 40)
TOKENS_PER_BLOCK: Final = 4
MAX_OPEN: Final = 12
MAX_STREAMS: Final = 4


def config_of_every_kind(has_state: bool, folder: str, num_slots: int = 200) -> KVCacheManagerConfig:
    """Windows, sinks, scratch or recurrent layers, and three levels that are full before long, each with a policy of its own."""
    slot_bytes = 2 * BYTES_PER_TOKEN * TOKENS_PER_BLOCK
    quotas = [num_slots * slot_bytes, num_slots // 2 * slot_bytes, num_slots // 2 * slot_bytes]
    tiers: list[CacheTierConfig] = [
        GpuCacheTierConfig(quotas[0], eviction_policy=EvictionPolicy.LEARNED if has_state else EvictionPolicy.LRU),
        HostCacheTierConfig(quotas[1], eviction_policy=EvictionPolicy.LRU if has_state else EvictionPolicy.LEARNED),
        DiskCacheTierConfig(quotas[2], folder, eviction_policy=EvictionPolicy.LRU),
    ]
    if has_state:
        return hybrid_config(
            WINDOWS,
            TOKENS_PER_BLOCK,
            cache_tiers=tiers,
            state_checkpoints=2,
            max_state_replay_tokens=TOKENS_PER_BLOCK,
            snapshot_policy=SnapshotPolicy(every_num_blocks=3, at_close=True, max_per_path=4),
        )
    return KVCacheManagerConfig(
        TOKENS_PER_BLOCK, tiers, attention_layers(WINDOWS, TOKENS_PER_BLOCK), swa_scratch_reuse=SwaScratchReuseConfig(1)
    )


class EveryCall:
    """``num_calls`` counts calls of the manager and its sequences, ``num_refused`` those that raised, ``num_preempted`` suspensions."""

    def __init__(self, manager: KVCacheManager, seed: int) -> None:
        self.manager = manager
        self.random = random.Random(seed)
        self.streams = [manager.device.default_stream()]
        self.open: list[Any] = []
        self.leases: list[Any] = []
        self.plans: list[Any] = []
        self.quotas = [manager.get_quota(level) for level in range(len(manager.cache_tier_list))]
        self.answers = hashlib.sha256()
        self.num_calls = 0
        self.num_refused = 0
        self.num_preempted = 0

    def run(self, num_calls: int) -> None:
        """So many more calls."""
        end = self.num_calls + num_calls
        while self.num_calls < end:
            self.num_calls += 1
            try:
                self.answers.update(repr(self.call(self.random.random())).encode())
            except REFUSALS as error:
                self.num_refused += 1
                self.answers.update(type(error).__name__.encode())

    def finish(self) -> str:
        """Close everything; 16 digits that are equal after equal calls with equal answers."""
        self.answers.update(self.manager.state_digest())
        for kv_cache in self.open:
            kv_cache.close()
        for lease in self.leases:
            lease.settle()
        for plan in self.plans:
            plan.cancel()
        self.open, self.leases, self.plans = [], [], []
        for stream in self.streams[1:]:
            self.manager.device.destroy_stream(stream)
        self.streams = self.streams[:1]
        return self.answers.hexdigest()[:16]

    # -- one call -----------------------------------------------------------------------------------------------------

    def call(self, kind: float) -> object:
        if kind < 0.03:
            return self.call_on_manager(kind / 0.03)
        if kind < 0.1 and len(self.open) < MAX_OPEN or not self.open:
            return self.create()
        kv_cache = self.random.choice(self.open)
        if not kv_cache.is_active:
            return self.call_on_suspended(kv_cache)
        if kind < 0.13:
            return kv_cache.suspend()
        if kind < 0.18:
            return self.close(kv_cache)
        if kind < 0.35:
            return self.call_rarely(kv_cache)
        if kind < 0.6:
            return self.commit(kv_cache)
        return self.grow(kv_cache)

    def text(self, length: int) -> list[int | bytes]:
        """The beginning of one of a few texts, with an end of its own now and then; every sixth token of one is a digest."""
        family = self.random.randrange(6)
        tokens: list[int | bytes] = [family * 1000 + position // 3 for position in range(length)]
        if family == 5:
            tokens[::6] = [bytes([position % 250]) * 8 for position in range(len(tokens[::6]))]
        if length > 0 and self.random.random() < 0.5:
            tokens[-1] = self.random.randrange(50)
        return tokens

    def scope(self) -> ReuseScope:
        return ReuseScope(salt=self.random.choice([None, None, "tenant", -5]))

    def stream(self) -> int:
        """One of a few; streams come and go."""
        device = self.manager.device
        if self.random.random() < 0.1:
            if len(self.streams) >= MAX_STREAMS:
                oldest = self.streams.pop(1)
                for kv_cache in self.open:
                    if kv_cache.cuda_stream == oldest:
                        kv_cache.cuda_stream = self.streams[0]
                device.destroy_stream(oldest)
            self.streams.append(device.create_stream())
        return self.random.choice(self.streams)

    def create(self) -> object:
        rng = self.random
        text = self.text(rng.randrange(60))
        arguments: dict[str, Any] = {}
        if rng.random() < 0.2:
            arguments["custom_priority_callback"] = lambda ordinal, life_cycle: ordinal % 50
        if rng.random() < 0.2:
            ranges = [TokenRangeRetention(0, rng.randrange(1, 20), rng.randrange(101), rng.choice([None, 5.0]), rng.choice([None, 0, 255]))]
            arguments["retention"] = RetentionConfig(ranges, rng.choice([None, 80]))
        if rng.random() < 0.3:
            arguments["snapshot_positions"] = [rng.randrange(60)]
            arguments["exact"] = len(text) % 2 == 0
        if rng.random() < 0.3:
            arguments["expected_prompt_length"] = rng.randrange(80)
        kv_cache = self.manager.create_kv_cache(self.scope(), text, **arguments)
        self.open.append(kv_cache)
        return kv_cache.num_committed_tokens

    def call_on_suspended(self, kv_cache: Any) -> object:
        rng = self.random
        kind = rng.random()
        if kind < 0.1:
            self.open.remove(kv_cache)
            return kv_cache.close()
        if kind < 0.2:
            return kv_cache.prefetch(rng.randrange(len(self.quotas)))
        if kind < 0.23:
            return kv_cache.rewind(rng.randrange(kv_cache.num_committed_tokens + 1))
        if kind < 0.27:
            kv_cache.cuda_stream = self.stream()
            return None
        if kind < 0.3 and len(self.quotas) > 1:
            return kv_cache.set_residency_window(rng.randrange(2), rng.choice([None, 4, 9]), rng.choice([0, 4]))
        resumed = kv_cache.resume(self.stream(), rng.random() < 0.7)
        if not resumed:
            self.preempt(kv_cache)
        return resumed

    def preempt(self, but: Any) -> None:
        for kv_cache in self.open:
            if kv_cache is not but and kv_cache.is_active:
                kv_cache.suspend()
                self.num_preempted += 1
                return

    def close(self, kv_cache: Any) -> object:
        planned = False
        if self.random.random() < 0.4:
            kv_cache.stop_committing(self.random.choice([None, True, False]))
            plan = kv_cache.plan_committed_block_drop()
            if plan is not None:
                planned = True
                self.plans.append(plan)
        self.open.remove(kv_cache)
        kv_cache.close(self.random.choice([None, True, False]))
        return planned

    def grow(self, kv_cache: Any) -> object:
        rng = self.random
        capacity = kv_cache.capacity
        if rng.random() < 0.1:
            active = [other for other in self.open if other.is_active]
            return self.manager.resize_batch(
                active, [other.capacity + 3 for other in active], [other.capacity for other in active]
            )
        if rng.random() < 0.1:
            least = max(kv_cache.history_length, kv_cache.num_committed_tokens)
            return kv_cache.resize(rng.randrange(least, capacity + 1))
        # Decoding mostly; a long chunk now and then.
        history = capacity if rng.random() < 0.9 else None
        grown = kv_cache.resize(capacity + rng.choice([1, 1, 1, 1, 4, 20]), history)
        if not grown:
            self.preempt(kv_cache)
        if capacity > 100:
            self.close(kv_cache)
        return grown

    def commit(self, kv_cache: Any) -> object:
        begin = kv_cache.num_committed_tokens
        num_free = kv_cache.capacity - begin
        if num_free == 0:
            return self.grow(kv_cache)
        end = begin + (num_free if self.random.random() < 0.5 else self.random.randrange(1, num_free + 1))
        tokens = self.text(end)[begin:]
        kind = self.random.random()
        if kind < 0.1:
            kv_cache.commit_tree(tokens, range(begin, end))
        elif kv_cache.beam_width > 1 and kind < 0.6:
            kv_cache.commit(tokens, [self.random.randrange(kv_cache.beam_width)] * len(tokens))
        elif kv_cache.beam_width == 1 and kind < 0.3 and isinstance(tokens[0], int):
            if len(tokens) % 2 == 0:
                self.manager.commit_batch([kv_cache], tokens[:1])
            else:
                batch = DecodeBatch(self.manager, 1, 64)
                batch.join(kv_cache)
                if batch.step(tokens[:1]):
                    self.preempt(kv_cache)
        else:
            kv_cache.commit(tokens)
        return None

    def call_rarely(self, kv_cache: Any) -> object:
        rng = self.random
        kind = rng.randrange(10)
        if kind == 9 and kv_cache.num_blocks > 0:
            return kv_cache.require_blocks(rng.randrange(2), [rng.randrange(kv_cache.num_blocks) for _ in range(3)])
        if kind == 0 and len(self.open) < MAX_OPEN:
            self.open.append(kv_cache.fork())
        elif kind == 1:
            kv_cache.beam_width = rng.randrange(1, 4)
        elif kind == 2:
            kv_cache.reorder_beams([rng.randrange(kv_cache.beam_width) for _ in range(kv_cache.beam_width)])
        elif kind == 3 and len(self.leases) < 6:
            lease = kv_cache.reserve_transfer(rng.randrange(kv_cache.num_blocks + 1))
            self.leases.append(lease)
            return [lease.get_page_indices(group) for group in range(len(self.manager.layer_grouping))]
        elif kind == 4 and self.leases:
            self.leases.pop(rng.randrange(len(self.leases))).settle(rng.choice([None, *self.streams]))
        elif kind == 5:
            kv_cache.cuda_stream = self.stream()
        elif kind == 6:
            kv_cache.enable_swa_scratch_reuse = rng.random() < 0.5
        elif kind == 7 and rng.random() < 0.2:
            kv_cache.stop_committing()
        return None

    def invalidate(self) -> object:
        self.manager.invalidate_reuse_scope(self.scope())
        return None

    def call_on_manager(self, kind: float) -> object:
        rng = self.random
        manager = self.manager
        choice = int(kind * 12)
        if choice < 2:
            text, scope = self.text(rng.randrange(60)), self.scope()
            assert manager.probe_reuse_batch([text], [scope]) == [manager.probe_reuse(scope, text)]
            return None
        if choice == 2:
            return manager.retain(self.text(40), self.scope(), rng.randrange(101), rng.choice([None, 3.0, inf]))
        if choice == 3:
            return manager.release(self.text(40), self.scope())
        if choice == 4:
            return manager.demote(self.text(40), self.scope())
        if choice == 5:
            return manager.prefetch(self.text(40), self.scope(), rng.randrange(len(self.quotas)))
        if choice == 6:
            manager.advance_clock(rng.random())
            return None
        if choice == 7:
            return manager.adjust()
        if choice == 8:
            level = rng.randrange(len(self.quotas))
            return manager.resize(level, int(self.quotas[level] * rng.choice([0.6, 0.8, 1.0, 1.2])), rng.random() < 0.3)
        if choice == 9 and self.plans:
            return self.plans.pop(rng.randrange(len(self.plans))).drop()
        if choice == 10 and self.plans:
            return self.plans.pop(rng.randrange(len(self.plans))).cancel()
        if rng.random() < 0.02:
            return manager.clear_reusable_blocks()
        if rng.random() < 0.2:
            return self.invalidate()
        return manager.state_digest()
