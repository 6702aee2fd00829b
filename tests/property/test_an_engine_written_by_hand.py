"""An engine that shares no code with the library's fake engine: numpy over addresses, written from the meaning of the public calls.

Models of random layout (several windows, sinks, recurrent layers, buffers of different sizes, smaller blocks in a kernel than in the
cache, scratch) on one to three cache levels, sequences in random order. For each layer a step writes bytes that follow from scope,
text, layer and role, and reads every token that the layer's window lets it see. Each page index is looked up as a kernel would: base
address + page stride * what the converter says, in either mode.
"""

import ctypes
import hashlib
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DiskCacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    PageIndexMode,
    ReuseScope,
    SnapshotPolicy,
    SsmLayerConfig,
    SwaScratchReuseConfig,
)

NUM_CALLS = 150
VOCABULARY = 5  # few, so that texts branch often


class Buffer(NamedTuple):
    role: str
    size: int
    tokens_per_block: int | None


class Layer(NamedTuple):
    """``is_state``: recurrent. ``window`` and ``num_sinks`` in tokens."""

    is_state: bool
    buffers: list[Buffer]
    window: int | None = None
    num_sinks: int = 0

    def config(self, layer: int) -> Any:
        buffers = [BufferConfig(*buffer) for buffer in self.buffers]
        if self.is_state:
            return SsmLayerConfig(LayerId(layer), buffers)
        return AttentionLayerConfig(LayerId(layer), buffers, self.window, self.num_sinks or None)

    def visible(self, beg: int, end: int) -> set[int]:
        """Positions that the tokens ``beg .. end-1`` read."""
        seen: set[int] = set()
        for position in range(beg, end):
            first = 0 if self.window is None else max(0, position + 1 - self.window)
            seen.update(range(first, position + 1), range(min(self.num_sinks, position + 1)))
        return seen


class Sequence:
    def __init__(self, handle: KVCache, scope: str, prompt: list[int], text: list[int]) -> None:
        self.handle = handle
        self.scope = scope
        self.prompt = prompt
        self.text = text  # what is computed


def draw_layers(rng: random.Random, size: int) -> list[Layer]:
    windows = rng.choice([[None], [None, rng.choice([1, size, 3 * size])], [2, size + 1], [rng.choice([1, 3])]])
    layers: list[Layer] = []
    has_state = rng.random() < 0.3
    for _ in range(rng.randint(1, 6)):
        if has_state and rng.random() < 0.4:
            names = ["conv", "ssm"][: rng.randint(1, 2)]
            layers.append(Layer(True, [Buffer(name, rng.choice([16, 48, 64]), None) for name in names]))
            continue
        buffers = []
        for name in ["key", "value", "key_scale", "index"][: rng.choice([1, 2, 2, 3, 4])]:
            small = size // 2 if size % 2 == 0 and rng.random() < 0.15 else None
            buffers.append(Buffer(name, rng.choice([1, 2, 3, 4, 8]) * (small or size), small))
        window = rng.choice(windows)
        num_sinks = rng.choice([0, 0, 1, size + 1]) if window is not None else 0
        layers.append(Layer(False, buffers, window, num_sinks))
    return layers


class Run:
    def __init__(self, seed: int, folder: Path) -> None:
        rng = self.rng = random.Random(seed)
        self.size = rng.choice([1, 2, 4, 5, 8, 16])
        self.layers = draw_layers(rng, self.size)
        self.has_state = any(layer.is_state for layer in self.layers)
        self.rewind = rng.choice([None, None, None, 0, 2])
        self.device = HostDevice()
        self.manager = KVCacheManager(self.draw_config(folder), device=self.device)
        self.stream = self.device.default_stream()
        self.prompts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 60))] for _ in range(3)]
        self.sequences: list[Sequence] = []
        self.num_checked = 0

    def draw_config(self, folder: Path) -> KVCacheManagerConfig:
        rng = self.rng
        bytes_of_block = 0
        for layer in self.layers:
            for buffer in layer.buffers:
                bytes_of_block += buffer.size * (self.size // (buffer.tokens_per_block or self.size))
        quota = max(bytes_of_block * rng.choice([40, 80]), 32768)
        tiers: list[Any] = [GpuCacheTierConfig(quota)]
        if rng.random() < 0.6:
            tiers.append(HostCacheTierConfig(quota))
        if rng.random() < 0.3:
            tiers.append(DiskCacheTierConfig(quota, str(folder)))
        return KVCacheManagerConfig(
            self.size,
            tiers,
            [layer.config(index) for index, layer in enumerate(self.layers)],
            enable_partial_reuse=rng.random() < 0.8,
            swa_scratch_reuse=None if self.rewind is None else SwaScratchReuseConfig(self.rewind),
            reuse_match_backoff=rng.choice([0, 0, 3]),
            reserve_null_slot=rng.random() < 0.2,
            snapshot_policy=SnapshotPolicy(every_num_blocks=rng.choice([None, 1])),
        )

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self) -> None:
        rng = self.rng
        kind = rng.random()
        if len(self.sequences) < 2 or (kind < 0.12 and len(self.sequences) < 7):
            self.create()
            return
        sequence = rng.choice(self.sequences)
        handle = sequence.handle
        if kind < 0.2:
            handle.close()
            self.sequences.remove(sequence)
        elif kind < 0.3 and handle.is_active:
            handle.suspend()
        elif kind < 0.36 and handle.is_active and self.rewind is None and len(self.sequences) < 7:
            self.sequences.append(Sequence(handle.fork(), sequence.scope, sequence.prompt, list(sequence.text)))
        elif handle.is_active or handle.resume(self.stream):
            self.step(sequence)

    def create(self) -> None:
        rng = self.rng
        prompt = rng.choice(self.prompts)[: rng.randint(1, 60)] + [rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 12))]
        scope = rng.choice([None, None, ReuseScope(lora_id=1), ReuseScope(salt=3)])
        num_reusable = self.manager.probe_reuse(scope, prompt[:-1])
        handle = self.manager.create_kv_cache(scope, prompt[:-1])
        assert handle.num_committed_tokens == num_reusable
        self.sequences.append(Sequence(handle, repr(scope), prompt, prompt[:num_reusable]))

    def step(self, sequence: Sequence) -> None:
        """A chunk of the prompt, or a few generated tokens of which the last may be taken back."""
        rng = self.rng
        handle = sequence.handle
        history = len(sequence.text)
        num_left = len(sequence.prompt) - history
        if num_left > 0:
            count = min(rng.randint(1, 40), num_left)
        else:
            count = rng.choice([1, 1, 1, 2, 3, self.size, rng.randint(1, 30)])
        stop = handle.next_snapshot_position
        if stop is not None and history < stop < history + count:
            count = stop - history
        if not handle.resize(history + count, history):
            return
        for position in range(history, history + count):
            is_prompt = position < len(sequence.prompt)
            sequence.text.append(sequence.prompt[position] if is_prompt else rng.randrange(VOCABULARY))
        self.compute(sequence, history)
        if num_left <= 0 and not self.has_state and self.rewind != 0 and rng.random() < 0.2:
            most = count - 1 if self.rewind is None else min(self.rewind, count - 1)
            kept = history + count - rng.randint(0, most)
            del sequence.text[kept:]
        if rng.random() < 0.9 or self.has_state:
            tokens = sequence.text[handle.num_committed_tokens :]
            handle.commit(tokens if rng.random() < 0.5 else np.array(tokens, np.int32))
        if len(sequence.text) < history + count:
            assert handle.resize(len(sequence.text), len(sequence.text))

    def end(self) -> None:
        for sequence in self.sequences:
            sequence.handle.close()
        self.manager.clear_reusable_blocks()
        self.manager.check_invariants()
        for level in range(len(self.manager.cache_tier_list)):
            assert all(figures.free == figures.total for figures in self.manager.get_storage_statistics(level))
        self.manager.shutdown()

    # -- what kernels do ----------------------------------------------------------------------------------------------

    def compute(self, sequence: Sequence, history: int) -> None:
        # Addresses are used from the host, which must be behind what the stream waits for: copies from lower levels.
        self.device.synchronize_stream(self.stream)
        for index, layer in enumerate(self.layers):
            for buffer in layer.buffers:
                if layer.is_state:
                    self.run_state(sequence, index, buffer, history)
                else:
                    self.run_attention(sequence, index, layer, buffer, history)

    def run_state(self, sequence: Sequence, layer: int, buffer: Buffer, history: int) -> None:
        group = self.manager.get_layer_group_id(LayerId(layer))
        slot = sequence.handle.get_ssm_block_base_index(group)
        converter = self.manager.get_page_index_converter(LayerId(layer), buffer.role)
        index = int(converter([slot], PageIndexMode.PER_LAYER)[0])
        state = bytes_at(self.address(layer, buffer.role, PageIndexMode.PER_LAYER, index), buffer.size)
        if history > 0:
            expected = expected_bytes(sequence.scope, sequence.text[:history], layer, buffer.role, buffer.size)
            assert np.array_equal(state, expected), (layer, buffer.role, history)
        state[:] = expected_bytes(sequence.scope, sequence.text, layer, buffer.role, buffer.size)
        self.num_checked += 1

    def run_attention(self, sequence: Sequence, index: int, layer: Layer, buffer: Buffer, history: int) -> None:
        pages = self.pages_of(sequence, index, buffer.role)
        tokens_per_page = buffer.tokens_per_block or self.size
        num_bytes = buffer.size // tokens_per_page

        def token_bytes(position: int) -> "np.ndarray[Any, Any]":
            page = pages[position // tokens_per_page]
            assert page is not None, f"layer {index}, {buffer.role}: token {position} has no page, history {history}"
            return bytes_at(page + position % tokens_per_page * num_bytes, num_bytes)

        end = len(sequence.text)
        for position in range(history, end):
            token_bytes(position)[:] = expected_bytes(
                sequence.scope, sequence.text[: position + 1], index, buffer.role, num_bytes
            )
        for position in sorted(layer.visible(history, end)):
            expected = expected_bytes(sequence.scope, sequence.text[: position + 1], index, buffer.role, num_bytes)
            assert np.array_equal(token_bytes(position), expected), (index, buffer.role, position, history, end)
            self.num_checked += 1

    def pages_of(self, sequence: Sequence, layer: int, role: str) -> list[int | None]:
        """The address of each page of a buffer; None for those that the sequence does not have."""
        handle = sequence.handle
        group = self.manager.get_layer_group_id(LayerId(layer))
        base_indices = handle.get_base_page_indices(group)
        scratch = handle.get_scratch_desc(group)
        is_shared = not scratch and handle.supports_index_mode(PageIndexMode.SHARED) and self.rng.random() < 0.5
        mode = PageIndexMode.SHARED if is_shared else PageIndexMode.PER_LAYER
        converter = self.manager.get_page_index_converter(LayerId(layer), role)
        indices = [int(index) for index in converter(base_indices, mode, scratch if scratch else None)]
        if is_shared:
            assert max(indices) < self.manager.get_page_index_upper_bound(LayerId(layer), role)
        return [self.address(layer, role, mode, index) if index >= 0 else None for index in indices]

    def address(self, layer: int, role: str, mode: PageIndexMode, index: int) -> int:
        base = self.manager.get_mem_pool_base_address(LayerId(layer), role, mode)
        return base + index * self.manager.get_page_stride(LayerId(layer), role)


def bytes_at(address: int, num_bytes: int) -> "np.ndarray[Any, Any]":
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))


def expected_bytes(scope: str, text: list[int], layer: int, role: str, num_bytes: int) -> "np.ndarray[Any, Any]":
    """Bytes that say which text they end, and where they belong."""
    digest = hashlib.blake2b(repr((scope, text, layer, role)).encode(), digest_size=64).digest()
    return np.frombuffer((digest * (num_bytes // 64 + 1))[:num_bytes], np.uint8)


@pytest.mark.parametrize("seed", range(16))
def test_every_byte_is_where_the_calls_say(seed: int, tmp_path: Path) -> None:
    run = Run(seed, tmp_path)
    for number in range(NUM_CALLS):
        run.call()
        if number % 10 == 0:
            run.manager.check_invariants()
    run.end()
    assert run.num_checked > 50, "hardly anything was looked at"
