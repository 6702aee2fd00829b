"""The CUDA kernels do what the host's do: their source runs on the processor here, and NVRTC compiles it if there."""

import ctypes
import random

import pytest
from simulation.cuda_over_fake import import_fake, make_cuda_device, require_clean

from kv_cache_manager_v2.base.ids import BAD_PAGE_INDEX
from kv_cache_manager_v2.config.layer_config import SsmLayerConfig
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle
from kv_cache_manager_v2.device.cuda_kernel import CudaCompiler, load_nvrtc_module
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.testing import FakeEngine, KVMismatch, Step
from kv_cache_manager_v2.testing.cuda_kernels import CUDA_SOURCE

from .models import MODELS, TOKENS_PER_BLOCK, attention, model, prompt
from .paged_stand_in import StandInManager, StandInSequence, flip_byte


@pytest.fixture
def driver_and_device():
    """The kernels run on the processor when the fake's streams reach them, some of them late."""
    if import_fake("kernels_on_host").COMPILER is None:
        pytest.skip("no C++ compiler to run the CUDA source on the processor")
    device, driver = make_cuda_device(2)
    yield driver, device
    device.close()  # says so if the engine left memory behind
    require_clean(driver)


@pytest.fixture
def device(driver_and_device):
    return driver_and_device[1]


def serve(config, device, spoil, reads_pools=True):
    """Three sequences, prefill and decode; between the steps `spoil` gets the manager and the sequences."""
    with StandInManager(config, device) as manager, FakeEngine(config, device, raise_on_mismatch=False) as engine:
        sequences = [StandInSequence(manager, 30, id=number) for number in range(3)]
        tokens = [prompt(number, 30) for number in range(3)]
        at = [0, 0, 0]
        for length in (9, 7, 1, 1, 3):
            engine.execute([Step(sequences[n], tokens[n][at[n] : at[n] + length], tokens[n][: at[n]]) for n in range(3)])
            at = [position + length for position in at]
            engine.synchronize()
            spoil(manager, sequences)
        engine.execute([Step(sequences[n], [], tokens[n][: at[n]]) for n in range(3)])
        engine.synchronize()
        pools = [ctypes.string_at(*memory) for memory in manager.ranges] if reads_pools else []
        return engine.mismatches, engine.first_mismatches, pools


@pytest.mark.parametrize("name", list(MODELS))
def test_both_write_the_same_bytes(device, name):
    host = HostDevice(4096)
    on_cuda = serve(MODELS[name], device, lambda manager, sequences: None)
    on_host = serve(MODELS[name], host, lambda manager, sequences: None)
    assert on_cuda[0] == on_host[0] == 0
    assert on_cuda[2] == on_host[2]
    host.close()


@pytest.mark.parametrize("name", list(MODELS))
def test_both_see_the_same_wrong_bytes(device, name):
    config = MODELS[name]
    host = HostDevice(4096)

    def spoiler():
        rng = random.Random(name)

        def spoil(manager, sequences):
            layer = rng.choice([layer for layer in config.layers if not isinstance(layer, SsmLayerConfig)])
            sequence = rng.choice(sequences)
            table = sequence.tables[0][manager.group_of_layer[layer.layer_id]]
            token = rng.randrange(12)
            if table[token // TOKENS_PER_BLOCK] != BAD_PAGE_INDEX:
                page, _ = manager.address_of(sequence, layer.layer_id, "value", token)
                flip_byte(page + rng.randrange(2))
            if rng.random() < 0.5:
                table[rng.randrange(4)] = BAD_PAGE_INDEX

        return spoil

    count, seen, _ = serve(config, device, spoiler())
    host_count, host_seen, _ = serve(config, host, spoiler())
    assert count == host_count
    if count <= 16:

        def told(mismatches):
            return sorted((m.layer, m.role, m.sequence, m.block, m.token, m.found or b"") for m in mismatches if m.found)

        # Of a page that is not there, each tells one token; of a long token, CUDA tells 8 bytes.
        assert [entry[:5] for entry in told(seen)] == [entry[:5] for entry in told(host_seen)]
        for cuda_entry, host_entry in zip(told(seen), told(host_seen), strict=True):
            assert len(cuda_entry[5]) == min(len(host_entry[5]), 8)
            assert cuda_entry[5] in host_entry[5]
    host.close()


def test_a_mismatch_is_raised_when_the_device_is_done(device):
    config = model(attention(0))
    tokens = prompt(1, 9)
    with StandInManager(config, device) as manager, FakeEngine(config, device) as engine:
        sequence = StandInSequence(manager, 9)
        engine.execute([Step(sequence, tokens[:8], [])])
        engine.synchronize()
        page, _ = manager.address_of(sequence, 0, "key", 5)
        flip_byte(page + 8)
        engine.execute([Step(sequence, tokens[8:], tokens[:8])])
        with pytest.raises(KVMismatch) as caught:
            engine.synchronize()
        seen = caught.value
        assert (seen.layer, seen.role, seen.block, seen.token) == (0, "key", 5 // TOKENS_PER_BLOCK, 5)
        assert seen.found[0] == seen.expected[0] ^ 0xFF
        flip_byte(page + 8)
        engine.execute([Step(sequence, [], tokens)])
        engine.synchronize()


def test_staging_memory_is_used_again(driver_and_device):
    driver, device = driver_and_device
    config = model(attention(0))
    tokens = prompt(1, 40)
    with StandInManager(config, device) as manager, FakeEngine(config, device) as engine:
        sequence = StandInSequence(manager, 40)
        engine.execute([Step(sequence, tokens[:30], [])])
        engine.synchronize()
        num_mapped = driver.calls.count("cuMemMap") + driver.calls.count("cuMemHostRegister")
        for position in range(30, 40):
            engine.execute([Step(sequence, tokens[position : position + 1], tokens[:position])])
            engine.synchronize()
        assert driver.calls.count("cuMemMap") + driver.calls.count("cuMemHostRegister") == num_mapped


def test_the_source_compiles_with_nvrtc():
    try:
        module = load_nvrtc_module()
        module.nvrtcVersion()
    except Exception as failure:  # cuda-python raises errors of its own where the library is not there
        pytest.skip(f"NVRTC is not installed: {failure}")
    assert b"write_tokens" in CudaCompiler(module, 80).compile(CUDA_SOURCE, ())


def check_against_swapped_pages(config, device):
    """A correct run, then one in which a sequence's table is wrong: needs no access to the memory from here."""
    assert serve(config, device, lambda manager, sequences: None, False)[0] == 0
    widest = max((layer for layer in config.layers if not isinstance(layer, SsmLayerConfig)), key=reach)

    def swap(manager, sequences):
        table = sequences[1].tables[0][manager.group_of_layer[widest.layer_id]]
        table[0], table[3] = table[3], table[0]

    count, seen, _ = serve(config, device, swap, False)
    assert count > 0
    assert {mismatch.sequence for mismatch in seen} == {1}


def reach(layer):
    return layer.window_size or 10**9


@pytest.mark.parametrize("name", list(MODELS))
def test_wrong_tables_are_seen(device, name):
    check_against_swapped_pages(MODELS[name], device)


@pytest.mark.skipif(find_cuda_obstacle(None) != "", reason=f"no GPU: {find_cuda_obstacle(None)}")
@pytest.mark.parametrize("name", list(MODELS))
def test_on_a_gpu(name):
    device = CudaDevice()
    check_against_swapped_pages(MODELS[name], device)
    device.close()
