"""A recurrent layer's state is the sequence's own: zeros at its first resume, in place while active, kept while suspended."""

import pytest
from hybrid_models import FIRST_STATE_LAYER, STATE_BYTES, Rig, hybrid_config

from kv_cache_manager_v2 import (
    BatchPageTable,
    BufferConfig,
    DensePages,
    KVCacheManager,
    LayerId,
    LogicError,
    SnapshotPolicy,
    SsmLayerConfig,
)
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.testing import SimulatedDevice

TEXT = list(range(1000, 1040))


def state_statistics(rig: Rig):
    """The state's pool group: the one whose slots are two layers' states."""
    return next(counts for counts in rig.manager.get_storage_statistics() if sum(counts.slot_sizes) == 2 * STATE_BYTES)


def test_fresh_state_is_zeros_even_in_a_slot_that_was_used() -> None:
    with Rig(snapshot_policy=SnapshotPolicy(at_commits=False)) as rig:
        for _ in range(3):
            kv_cache = rig.create(TEXT)
            assert rig.read_state(kv_cache, FIRST_STATE_LAYER, "conv") == bytes(STATE_BYTES // 4)
            assert rig.read_state(kv_cache, FIRST_STATE_LAYER + 1, "ssm") == bytes(STATE_BYTES * 3 // 4)
            rig.step(kv_cache, TEXT, 0, 10)
            assert rig.read_state(kv_cache, FIRST_STATE_LAYER + 1, "ssm") != bytes(STATE_BYTES * 3 // 4)
            kv_cache.close()


def test_slot_stays_while_active_and_the_state_outlives_suspension() -> None:
    with Rig() as rig:
        kv_cache = rig.create(TEXT)
        slot = kv_cache.get_ssm_block_base_index(rig.state_group)
        for begin in range(0, 40, 8):
            rig.step(kv_cache, TEXT, begin, begin + 8)
            assert kv_cache.get_ssm_block_base_index(rig.state_group) == slot
            kv_cache.suspend()
            with pytest.raises(LogicError):
                kv_cache.get_ssm_block_base_index(rig.state_group)
            rig.manager.check_invariants()
            assert kv_cache.resume()
            slot = kv_cache.get_ssm_block_base_index(rig.state_group)


def test_each_sequence_has_one_slot_and_gives_it_back() -> None:
    with Rig() as rig:
        total = state_statistics(rig).total
        assert state_statistics(rig).free == total
        sequences = [rig.create([]) for _ in range(3)]
        assert len({kv_cache.get_ssm_block_base_index(rig.state_group) for kv_cache in sequences}) == 3
        assert state_statistics(rig).free == total - 3
        waiting = rig.manager.create_kv_cache()
        assert state_statistics(rig).free == total - 3  # before the first resume nothing is on the device
        waiting.close()
        for kv_cache in sequences:
            kv_cache.close()
        assert state_statistics(rig).free == total


def test_resume_is_refused_without_a_state_slot() -> None:
    with Rig(max_util_for_resume=1.0) as rig:
        sequences = []
        while True:
            kv_cache = rig.manager.create_kv_cache()
            before = rig.manager.describe()
            if not kv_cache.resume():
                break
            sequences.append(kv_cache)
        assert len(sequences) == state_statistics(rig).total
        assert rig.manager.describe() == before
        assert rig.manager.last_refusal is not None
        sequences.pop().close()
        assert kv_cache.resume()


def test_steps_on_many_streams_never_race() -> None:
    device = SimulatedDevice(5)
    with Rig(device) as rig:
        streams = [device.default_stream(), device.create_stream(), device.create_stream()]
        for round_number in range(12):
            kv_cache = rig.manager.create_kv_cache()
            assert kv_cache.resume(streams[round_number % 3])
            rig.step(kv_cache, TEXT, 0, 9)
            kv_cache.suspend()
            assert kv_cache.resume(streams[(round_number + 1) % 3])
            rig.step(kv_cache, TEXT, 9, 11)
            kv_cache.close()
        rig.engine.synchronize()
        assert not device.races


def test_attention_and_state_in_one_layer() -> None:
    config = hybrid_config([None, 6], num_state_layers=0)
    both = [SsmLayerConfig(layer.layer_id, [BufferConfig("ssm", 56)]) for layer in config.layers]
    config = type(config)(tokens_per_block=config.tokens_per_block, cache_tiers=config.cache_tiers, layers=[*config.layers, *both])
    with Rig(config=config) as rig:
        assert rig.manager.layer_grouping == ((0,), (1,), (0, 1))
        assert [rig.manager.get_layer_group_id(LayerId(layer)) for layer in (0, 1)] == [0, 1]
        assert [rig.manager.state_layer_group_id(LayerId(layer)) for layer in (0, 1)] == [2, 2]
        kv_cache = rig.create(TEXT)
        rig.step(kv_cache, TEXT, 0, 17)
        rig.step(kv_cache, TEXT, 17, 40)


def test_asking_the_wrong_group_says_which_is_right() -> None:
    with Rig() as rig:
        with pytest.raises(ValueError, match=rf"layer_id is 0, which has no recurrent state; layers with one are \[{FIRST_STATE_LAYER}"):
            rig.manager.state_layer_group_id(LayerId(0))
        with pytest.raises(ValueError, match="layer_id is 99; the configured layers are"):
            rig.manager.state_layer_group_id(LayerId(99))
        kv_cache = rig.create(TEXT)
        with pytest.raises(ValueError, match="layer group 1"):
            kv_cache.get_ssm_block_base_index(0)
        with pytest.raises(ValueError, match="beam"):
            kv_cache.get_ssm_block_base_index(rig.state_group, 1)
        assert list(kv_cache.get_base_page_indices(rig.state_group)) == []
        table = BatchPageTable(rig.manager, 4, 16)
        with pytest.raises(ValueError, match="get_ssm_block_base_index"):
            table.add_block_table(DensePages(LayerId(FIRST_STATE_LAYER), "ssm"))
        kv_cache.close()
        with pytest.raises(LogicError):
            kv_cache.get_ssm_block_base_index(rig.state_group)


def test_model_without_attention() -> None:
    with Rig(windows=()) as rig:
        kv_cache = rig.create(TEXT)
        rig.step(kv_cache, TEXT, 0, 17)
        rig.step(kv_cache, TEXT, 17, 40)
        kv_cache.stop_committing()


def test_too_small_a_quota_for_one_state_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="quota"):
        KVCacheManager(hybrid_config(quota=2 * STATE_BYTES), device=HostDevice())
