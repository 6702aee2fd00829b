"""Rejected drafts can be taken back with recurrent state too: by as many tokens as there are checkpoints, else it is refused."""

from random import Random

import pytest
from hybrid_models import Rig

from kv_cache_manager_v2 import LogicError, SnapshotPolicy
from kv_cache_manager_v2.testing import SimulatedDevice, Step


def text(seed: int, length: int) -> list[int]:
    return [seed * 10_000 + position for position in range(length)]


def test_without_checkpoints_taking_back_is_refused_and_changes_nothing() -> None:
    with Rig() as rig:
        kv_cache = rig.prefill(text(1, 10))
        assert kv_cache.resize(14)
        before = rig.manager.describe()
        with pytest.raises(LogicError, match="state_checkpoints"):
            kv_cache.resize(13)
        with pytest.raises(LogicError, match="state_checkpoints"):
            kv_cache.capacity = 10
        assert rig.manager.describe() == before
        assert kv_cache.resize(16)


def test_with_checkpoints_it_goes_back_that_far_and_no_further() -> None:
    with Rig(state_checkpoints=3) as rig:
        kv_cache = rig.prefill(text(1, 10))
        assert kv_cache.resize(14)
        with pytest.raises(LogicError, match="by 3 only"):
            kv_cache.resize(10)
        assert kv_cache.resize(11)


@pytest.mark.parametrize("seed", range(5))
def test_speculation_reads_the_state_of_the_accepted_tokens(seed: int) -> None:
    """1 token and up to 3 drafts a step, some of them rejected: the state after them must be that before the drafts."""
    random = Random(seed)
    device = SimulatedDevice(seed)
    with Rig(device, state_checkpoints=3, windows=[None, 6], snapshot_policy=SnapshotPolicy(every_num_blocks=1)) as rig:
        tokens = text(1, 10)
        kv_cache = rig.prefill(tokens)
        for step in range(40):
            begin = len(tokens)
            inputs = [step * 100 + draft for draft in range(1 + random.randrange(4))]
            assert kv_cache.resize(begin + len(inputs))
            rig.engine.execute([Step(kv_cache, inputs, tokens)])
            accepted = 1 + random.randrange(len(inputs))
            tokens = tokens + inputs[:accepted]
            assert kv_cache.resize(len(tokens))
            kv_cache.commit(inputs[:accepted])
            rig.manager.check_invariants()
            if random.random() < 0.2:
                kv_cache.suspend()
                assert kv_cache.resume()
        kv_cache.close()
        # What was left on the way are states of just these tokens.
        found = rig.manager.probe_reuse(None, tokens)
        assert found > 0
        again = rig.create(tokens + [5])
        rig.step(again, tokens + [5], again.num_committed_tokens, len(tokens) + 1)
        rig.engine.synchronize()
        assert not device.races


def test_snapshot_beside_drafts_that_were_not_taken_back_yet() -> None:
    """The state at 12 still is in its slot though 14 tokens were computed."""
    with Rig(state_checkpoints=3, snapshot_policy=SnapshotPolicy(every_num_blocks=1, at_prompt_end=False)) as rig:
        tokens = text(1, 14)
        kv_cache = rig.create([])
        rig.step(kv_cache, tokens, 0, 10)
        assert kv_cache.resize(14)
        rig.engine.execute([Step(kv_cache, tokens[10:], tokens[:10])])
        kv_cache.commit(tokens[10:12])
        kv_cache.close()
        assert rig.manager.probe_reuse(None, tokens) == 12
        again = rig.create(tokens)
        rig.step(again, tokens, 12, 14)


def test_each_length_has_its_slot() -> None:
    with Rig(state_checkpoints=2) as rig:
        kv_cache = rig.prefill(text(1, 7))
        group = rig.state_group
        slots = [kv_cache.get_ssm_block_base_index(group, 0, length) for length in range(6)]
        assert len(set(slots)) == 3
        assert slots[:3] == slots[3:]
        assert kv_cache.get_ssm_block_base_index(group) == slots[7 % 3]
        with pytest.raises(ValueError):
            kv_cache.get_ssm_block_base_index(group, 0, -1)


def test_checkpoints_are_counted_in_plans() -> None:
    from kv_cache_manager_v2 import BatchDesc, KVCacheDesc, plan_capacity

    with Rig(state_checkpoints=2) as rig:
        plan = plan_capacity(rig.config, BatchDesc([KVCacheDesc(4, 3)] * 2))
        states = next(group for group in plan.levels[0].pool_groups if group.layer_groups == (1,))
        assert states.batch_slots == 6
        sequences = [rig.create([]) for _ in range(2)]
        used = [counts.total - counts.free for counts in rig.manager.get_storage_statistics()]
        assert used[states.pool_group_index] == 6
        assert len(sequences) == 2


def test_going_back_twice_adds_up() -> None:
    """After 14 tokens the slots hold the states at 11 to 14; that at 8 is overwritten, even if 11 is the end by now."""
    with Rig(state_checkpoints=3) as rig:
        kv_cache = rig.prefill(text(1, 8))
        rig.step(kv_cache, text(1, 8), 8, 8)
        assert kv_cache.resize(14)
        assert kv_cache.resize(11)
        with pytest.raises(LogicError, match="room for, 14"):
            kv_cache.resize(8)
