"""On a device whose streams run late: what kernels touch is told exactly, and mismatches come when the work is done."""

import gc
import weakref

import numpy as np
import pytest

from kv_cache_manager_v2.base.ids import BAD_PAGE_INDEX, PageIndexMode
from kv_cache_manager_v2.config.layer_config import SsmLayerConfig
from kv_cache_manager_v2.testing import FakeEngine, KVMismatch, SimulatedDevice, Step
from kv_cache_manager_v2.testing.host_kernels import HostLayerKernel
from kv_cache_manager_v2.testing.kernel_buffer import kernel_buffers
from kv_cache_manager_v2.testing.launch_plan import LaunchPlan
from kv_cache_manager_v2.testing.mismatch_log import MismatchLog
from kv_cache_manager_v2.testing.race_error import RaceError
from kv_cache_manager_v2.testing.step_batch import StepBatch
from kv_cache_manager_v2.testing.token_layout import TokenLayout

from .models import MODELS, attention, model, prompt
from .paged_stand_in import StandInManager, StandInSequence, flip_byte


@pytest.fixture(params=[1, 2])
def device(request):
    device = SimulatedDevice(request.param)
    yield device
    device.close()


def test_a_given_stream_is_taken_instead(device):
    config = model(attention(0))
    tokens = prompt(1, 8)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 8)
        stream = device.create_stream()
        engine.execute([Step(sequence, tokens[:7], [])], stream)
        with pytest.raises(RaceError):  # on the sequence's own stream nothing says that the first step is done
            engine.execute([Step(sequence, tokens[7:], tokens[:7])])
        engine.synchronize()
        device.destroy_stream(stream)


def test_mismatches_come_when_the_work_is_done():
    config = model(attention(0))
    tokens = prompt(1, 8)
    device = SimulatedDevice(3, eager=False)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 8)
        engine.execute([Step(sequence, tokens, [])])
        engine.synchronize()
        flip_byte(manager.address_of(sequence, 0, "key", 3)[0])
        engine.execute([Step(sequence, [], tokens)])  # a device that is not eager runs nothing that nobody waits for
        assert engine.mismatches == 0
        with pytest.raises(KVMismatch):
            engine.synchronize()
        flip_byte(manager.address_of(sequence, 0, "key", 3)[0])
        sequence.tables[0][0][0] = BAD_PAGE_INDEX
        engine.execute([Step(sequence, [], tokens)])
        device.synchronize_stream(sequence.cuda_stream)
        sequence.tables[0][0][0] = 0
        with pytest.raises(KVMismatch):  # the next step says it too
            engine.execute([Step(sequence, [], tokens)])
        engine.synchronize()
    device.close()


def test_kernels_keep_the_tables_of_their_launch():
    config = model(attention(0))
    tokens = prompt(1, 8)
    device = SimulatedDevice(3, eager=False)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 8)
        engine.execute([Step(sequence, tokens, [])])
        table = sequence.tables[0][0]
        table[0], table[1] = table[1], table[0]
        engine.synchronize()
        table[0], table[1] = table[1], table[0]
        engine.execute([Step(sequence, [], tokens)])
        engine.synchronize()
    device.close()


def test_queued_kernels_keep_no_sequence_alive():
    config = model(attention(0))
    device = SimulatedDevice(3, eager=False)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 8)
        alive = weakref.ref(sequence)
        engine.execute([Step(sequence, prompt(1, 8), [])])
        del sequence
        gc.collect()
        assert alive() is None
        engine.synchronize()
    device.close()


def bytes_by_brute_force(config, manager, sequence, layer, history, end):
    """The sets of addresses that a layer's kernel reads and writes, token by token."""
    read, written = set(), set()
    for buffer in layer.buffers:
        if isinstance(layer, SsmLayerConfig):
            address = manager.state_address(sequence, layer.layer_id, buffer.role)
            if history > 0:
                read |= set(range(address, address + buffer.size))
            if end > history:
                written |= set(range(address, address + buffer.size))
            continue
        layout = TokenLayout(buffer.size, buffer.tokens_per_block_override or config.tokens_per_block)
        for token in range(end):
            page, in_page = manager.address_of(sequence, layer.layer_id, buffer.role, token)
            addresses = set(range(page + layout.first_byte(in_page), page + layout.first_byte(in_page + 1)))
            if token >= history:
                written |= addresses
            elif any(
                layer.window_size is None or query - token < layer.window_size or token < (layer.num_sink_tokens or 0)
                for query in range(history, max(end, history + 1))
            ):
                read |= addresses
    return read, written


@pytest.mark.parametrize("name", list(MODELS))
def test_accesses_are_exactly_what_the_layer_touches(device, name):
    config = MODELS[name]
    rng = np.random.default_rng(5)
    layers = kernel_buffers(config)
    with StandInManager(config, device) as manager:
        for _ in range(10):
            history, num_input = int(rng.integers(0, 20)), int(rng.integers(0, 6))
            manager.num_allocated = [0] * len(manager.num_allocated)
            sequence = StandInSequence(manager, history + num_input)
            for table in sequence.tables[0]:
                rng.shuffle(table)
            tokens = prompt(1, history + num_input)
            batch = StepBatch(0, manager)
            batch.add(Step(sequence, tokens[history:], tokens[:history]))
            plan = LaunchPlan(batch, layers, PageIndexMode.SHARED, False, None)
            for index, layer in enumerate(config.layers):
                accesses = HostLayerKernel(plan.layer(index), MismatchLog()).accesses()
                found = [set(), set()]
                for access in accesses:
                    touched = set(range(access.address, access.address + access.num_bytes))
                    assert touched and not touched & found[access.is_write]
                    found[access.is_write] |= touched
                    # Merged: no range ends where another one begins.
                    assert all(
                        other.address != access.address + access.num_bytes or other.is_write != access.is_write
                        for other in accesses
                    )
                assert tuple(found) == bytes_by_brute_force(
                    config, manager, sequence, layer, history, history + num_input
                )
