"""The fake engine on the real manager: what the manager reuses, copies and moves has the right bytes."""

import pytest

from kv_cache_manager_v2 import KVCacheManager, PageIndexMode
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.testing import FakeEngine, KVMismatch, SimulatedDevice, Step

from .models import MODELS, attention, model, prompt
from .paged_stand_in import flip_byte

# Recurrent state is left out: see the models' own tests.
NAMES = ["full", "windows", "sinks", "sizes", "overrides"]
GRANULARITY_BYTES = 4096


@pytest.fixture(params=["host", "simulated 1", "simulated 2"])
def device(request):
    kind = request.param.split()
    device = HostDevice(GRANULARITY_BYTES) if kind[0] == "host" else SimulatedDevice(int(kind[1]))
    yield device
    device.close()


def generate(engine, sequence, tokens, at, end, lengths):
    """Compute tokens from ``at`` to ``end`` in steps of these lengths, then one by one, and commit them."""
    lengths = list(lengths)
    while at < end:
        length = min(lengths.pop(0) if lengths else 1, end - at)
        assert sequence.resize(at + length, at)
        engine.execute([Step(sequence, tokens[at : at + length], tokens[:at])])
        sequence.commit(tokens[at : at + length])
        at += length


@pytest.mark.parametrize("mode", list(PageIndexMode))
@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_reuse_has_the_right_bytes(device, name, mode):
    config = MODELS[name]
    tokens = prompt(1, 45)
    other = tokens.copy()
    other[30:] += 1
    with KVCacheManager(config, device=device) as manager:
        engine = FakeEngine(config, device, index_mode=mode)
        with manager.create_kv_cache(input_tokens=tokens[:40]) as sequence:
            assert sequence.resume(device.default_stream())
            assert sequence.num_committed_tokens == 0
            generate(engine, sequence, tokens, 0, 45, [13, 8, 9])
            # The first one still runs: 30 tokens are equal, 28 of them in full blocks; the other 2 are copied.
            stream = device.create_stream()
            with manager.create_kv_cache(input_tokens=other[:44]) as second:
                assert second.resume(stream)
                reused = second.num_committed_tokens
                assert reused == 30
                generate(engine, second, other, reused, 45, [3])
                second.suspend()
                assert second.resume(stream)
                engine.execute([Step(second, [], other), Step(sequence, [], tokens)])
            engine.synchronize()
            device.destroy_stream(stream)
        engine.synchronize()
        assert engine.mismatches == 0
        # Steps without input compare as well.
        assert engine.num_checked_bytes > 0


def test_a_batch_on_one_stream(device):
    config = MODELS["windows"]
    with KVCacheManager(config, device=device) as manager:
        engine = FakeEngine(config, device)
        sequences = [manager.create_kv_cache() for _ in range(5)]
        tokens = [prompt(number, 24) for number in range(5)]
        for sequence in sequences:
            assert sequence.resume(device.default_stream())
        at = 0
        for length in (7, 1, 1, 6, 4, 1):
            for sequence in sequences:
                assert sequence.resize(at + length, at)
            engine.execute([Step(sequences[n], tokens[n][at : at + length], tokens[n][:at]) for n in range(5)])
            at += length
        engine.synchronize()
        for sequence in sequences:
            sequence.close()


def test_spoiled_memory_is_seen():
    device = HostDevice(GRANULARITY_BYTES)
    config = model(attention(0))
    tokens = prompt(1, 9)
    with KVCacheManager(config, device=device) as manager, manager.create_kv_cache() as sequence:
        engine = FakeEngine(config, device)
        assert sequence.resume()
        assert sequence.resize(9, 0)
        engine.execute([Step(sequence, tokens, [])])
        slot = sequence.get_base_page_indices(manager.get_layer_group_id(0))[1]
        # 8 bytes per token, 4 tokens per block; key and value side by side in a slot: token 6 is the third of block 1.
        base = manager.get_mem_pool_base_address(0, "value", PageIndexMode.SHARED)
        flip_byte(base + slot * 2 * manager.get_page_stride(0, "value") + 2 * 8)
        with pytest.raises(KVMismatch) as caught:
            engine.execute([Step(sequence, [], tokens)])
        assert (caught.value.layer, caught.value.role, caught.value.block, caught.value.token) == (0, "value", 1, 6)
    device.close()
