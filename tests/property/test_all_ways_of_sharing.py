"""All calls that share, lend, reorder, take back and drop, in random order: the model is the text of each beam.

Little room, two cache levels, several streams, on a device that reports races; invariants are checked after each call, every byte that
a next token would read is checked by the fake engine after each step and at the end.
"""

import random
from typing import Any

import pytest
from hybrid_models import hybrid_config
from small_models import config_of

from kv_cache_manager_v2 import GpuCacheTierConfig, HostCacheTierConfig, KVCacheManager, KVCacheManagerConfig, OutOfPagesError
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step

NUM_CALLS = 150


class Sequence:
    """``texts``: of each beam, as far as it is computed; they agree up to the committed tokens."""

    def __init__(self, handle: Any, texts: list[list[int]]) -> None:
        self.handle = handle
        self.texts = texts

    @property
    def length(self) -> int:
        return len(self.texts[0])

    @property
    def num_committed(self) -> int:
        found: int = self.handle.num_committed_tokens
        return found

    def step(self, inputs: list[list[int]]) -> Step:
        if len(self.texts) == 1:
            return Step(self.handle, inputs[0], self.texts[0])
        return Step(self.handle, inputs, self.texts)


class Run:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        rng = self.random
        self.size = rng.choice([1, 2, 4])
        self.has_state = seed % 4 == 3
        self.device = SimulatedDevice(seed)
        config = self.make_config()
        self.manager = KVCacheManager(config, device=self.device)
        self.engine = FakeEngine(config, self.device)
        self.streams = [self.device.default_stream(), self.device.create_stream()]
        self.sequences: list[Sequence] = []
        self.leases: list[Any] = []
        self.plans: list[Any] = []
        self.num_refused = 0
        self.quotas = [self.manager.get_quota(level) for level in range(len(self.manager.cache_tier_list))]

    def make_config(self) -> KVCacheManagerConfig:
        rng = self.random
        windows: list[int | None] = rng.choice([[None], [None, 2 * self.size + 1], [3 * self.size]])
        slot_bytes = 16 * self.size
        tiers = [GpuCacheTierConfig(rng.choice([24, 60]) * slot_bytes), HostCacheTierConfig(20 * slot_bytes)]
        if self.has_state:
            tiers = [GpuCacheTierConfig(1 << 13), HostCacheTierConfig(1 << 12)]
            return hybrid_config(windows, self.size, cache_tiers=tiers[: rng.choice([1, 2])], state_checkpoints=3)
        config = config_of(windows, tokens_per_block=self.size)
        return KVCacheManagerConfig(
            tokens_per_block=self.size, cache_tiers=tiers[: rng.choice([1, 2])], layers=config.layers, max_util_for_resume=1.0
        )

    def text(self, count: int) -> list[int]:
        return [self.random.randrange(2) for _ in range(count)]

    def call(self, kind: float) -> None:
        rng = self.random
        if kind > 0.98:
            level = rng.randrange(len(self.quotas))
            # Leased slots cannot move, and what must stay may not fit: then nothing happens.
            self.num_refused += not self.manager.resize(level, int(self.quotas[level] * rng.choice([0.6, 0.8, 1, 1.2])))
            return
        if kind < 0.12 or not self.sequences:
            self.create()
            return
        sequence = rng.choice(self.sequences)
        if not sequence.handle.is_active:
            if kind < 0.3:
                self.close(sequence)
            else:
                self.num_refused += not sequence.handle.resume(rng.choice(self.streams))
        elif kind < 0.2:
            self.close(sequence)
        elif kind < 0.26:
            sequence.handle.suspend()
        elif kind < 0.36:
            self.fork(sequence)
        elif kind < 0.44:
            self.change_beams(sequence)
        elif kind < 0.5:
            self.lend(sequence)
        elif kind < 0.54:
            self.settle()
        elif kind < 0.58 and self.plans:
            self.plans.pop(rng.randrange(len(self.plans))).drop()
        elif kind < 0.7:
            self.commit(sequence)
        elif kind < 0.75:
            self.take_back(sequence)
        else:
            self.compute(sequence)

    def create(self) -> None:
        if len(self.sequences) < 6:
            text = self.text(self.random.randrange(4 * self.size))
            handle = self.manager.create_kv_cache(input_tokens=text)
            self.sequences.append(Sequence(handle, [text[: handle.num_committed_tokens]]))

    def close(self, sequence: Sequence) -> None:
        if self.random.random() < 0.5:
            sequence.handle.stop_committing()
            plan = sequence.handle.plan_committed_block_drop()
            if plan is not None:
                self.plans.append(plan)
        sequence.handle.close()
        self.sequences.remove(sequence)

    def fork(self, sequence: Sequence) -> None:
        if len(self.sequences) < 6 and len(sequence.texts) == 1:
            try:
                handle = sequence.handle.fork()
            except OutOfPagesError:
                self.num_refused += 1
                return
            self.sequences.append(Sequence(handle, [list(sequence.texts[0])]))

    def change_beams(self, sequence: Sequence) -> None:
        rng = self.random
        width = len(sequence.texts)
        if rng.random() < 0.5:
            parents = [rng.randrange(width) for _ in range(width)]
            sequence.handle.reorder_beams(parents)
            sequence.texts = [list(sequence.texts[parent]) for parent in parents]
            return
        new_width = rng.randrange(1, 4)
        try:
            sequence.handle.beam_width = new_width
        except OutOfPagesError:
            self.num_refused += 1
            return
        sequence.texts = sequence.texts[:new_width] + [list(sequence.texts[0]) for _ in range(new_width - width)]

    def lend(self, sequence: Sequence) -> None:
        if len(sequence.texts) == 1 and len(self.leases) < 4:
            begin = self.random.randrange(sequence.handle.num_blocks + 1)
            self.leases.append(sequence.handle.reserve_transfer(begin))

    def settle(self) -> None:
        if self.leases:
            stream = self.random.choice([None, *self.streams])
            self.leases.pop(self.random.randrange(len(self.leases))).settle(stream)

    def commit(self, sequence: Sequence) -> None:
        """Of one beam all that is computed; in a model with recurrent layers, all go on from that beam first."""
        begin, end = sequence.num_committed, sequence.length
        if begin == end:
            return
        beam = self.random.randrange(len(sequence.texts))
        text = sequence.texts[beam]
        if len(sequence.texts) == 1:
            end = begin + self.random.randrange(end - begin + 1)
            if self.random.random() < 0.3:
                sequence.handle.commit_tree(text[begin:end], range(begin, end)) if not self.has_state else None
                return
            sequence.handle.commit(text[begin:end])
            return
        if self.has_state:
            sequence.handle.reorder_beams([beam] * len(sequence.texts))
            sequence.handle.commit(text[begin:end])
        else:
            sequence.handle.commit(text[begin:end], [beam] * (end - begin))
        sequence.texts = [list(text) for _ in sequence.texts]

    def take_back(self, sequence: Sequence) -> None:
        least = max(sequence.handle.history_length, sequence.num_committed)
        if self.has_state:
            least = max(least, sequence.handle.capacity - 3)
        if least <= sequence.length:
            kept = least + self.random.randrange(sequence.length - least + 1)
            if not sequence.handle.resize(kept):
                # The history stays behind: what is behind it counts as written again, and may need copies.
                self.num_refused += 1
                return
            sequence.texts = [text[:kept] for text in sequence.texts]

    def compute(self, sequence: Sequence) -> None:
        count = self.random.randrange(1, 4)
        if not sequence.handle.resize(sequence.length + count, sequence.length):
            self.num_refused += 1
            return
        inputs = [self.text(count) for _ in sequence.texts]
        self.engine.execute([sequence.step(inputs)])
        for text, tokens in zip(sequence.texts, inputs):
            text.extend(tokens)

    def finish(self) -> None:
        for sequence in self.sequences:
            if sequence.handle.is_active:
                if sequence.length > sequence.handle.capacity or sequence.handle.history_length > sequence.length:
                    raise AssertionError("the model lost count")
                self.engine.execute([sequence.step([[] for _ in sequence.texts])])
        self.random.shuffle(self.sequences)
        while self.sequences:
            self.sequences.pop().handle.close()
            self.manager.check_invariants()
        while self.leases:
            self.settle()
            self.manager.check_invariants()
        for plan in self.plans:
            plan.drop()
            self.manager.check_invariants()
        self.engine.close()
        assert not self.device.races
        self.manager.clear_reusable_blocks()
        for level in range(len(self.manager.cache_tier_list)):
            for counts in self.manager.get_storage_statistics(level):
                assert counts.free == counts.total
        self.manager.shutdown()


@pytest.mark.parametrize("seed", range(24))
def test_history(seed: int) -> None:
    run = Run(seed)
    for _ in range(NUM_CALLS):
        run.call(run.random.random())
        run.manager.check_invariants()
    run.finish()


def test_histories_meet_refusals() -> None:
    runs = [Run(seed) for seed in range(4)]
    for run in runs:
        for _ in range(NUM_CALLS):
            run.call(run.random.random())
        run.finish()
    assert sum(run.num_refused for run in runs) > 10
