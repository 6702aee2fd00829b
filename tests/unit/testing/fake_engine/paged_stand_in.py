"""A manager and sequences with hand-made page tables: what the fake engine asks for, and every table open to mistakes.

Layout: each layer group has its own slots; in them the buffers of one expanded size lie side by side, in a pool per
size. Tables are plain lists that a test fills and spoils as it likes.
"""

import ctypes

import numpy as np

from kv_cache_manager_v2.base.ids import BAD_PAGE_INDEX, CacheTier, PageIndexMode
from kv_cache_manager_v2.config.layer_config import SsmLayerConfig


class StandInConverter:
    """DESIGN's conversion rules, one index at a time."""

    def __init__(self, scale, expansion, layer_offset, scratch_pages_per_block):
        self.scale = scale
        self.expansion = expansion
        self.layer_offset = layer_offset
        self.scratch_pages_per_block = scratch_pages_per_block

    def __call__(self, base_indices, index_mode=None, scratch=None):
        pages = []
        for block, slot in enumerate(base_indices):
            if scratch and scratch.range[0] <= block < scratch.range[1]:
                assert index_mode == PageIndexMode.PER_LAYER
                k, u = block - scratch.range[0], self.scratch_pages_per_block
                per_slot = self.scale // u
                page = (
                    scratch.slot_ids[k // per_slot] * self.scale + ((k % per_slot) * u + self.layer_offset) % self.scale
                )
            elif slot == BAD_PAGE_INDEX:
                page = BAD_PAGE_INDEX
            else:
                page = int(slot) * self.scale + (self.layer_offset if index_mode == PageIndexMode.PER_LAYER else 0)
            for piece in range(self.expansion):
                pages.append(page if page == BAD_PAGE_INDEX else page * self.expansion + piece)
        return np.array(pages, dtype=np.int32)


class StandInScratch:
    """``range`` is a pair here."""

    def __init__(self, beg, end, slot_ids):
        self.range = (beg, end)
        self.slot_ids = slot_ids


class _Place:
    """Where one (layer, role) lies."""

    def __init__(self, group, pool, converter, stride):
        self.group = group
        self.pool = pool
        self.converter = converter
        self.stride = stride


class StandInManager:
    """Pools in the device's memory; leaving the context gives them back."""

    def __init__(self, config, device, num_slots=64):
        self.config = config
        self.device = device
        self.num_slots = num_slots
        self.places = {}
        self.group_of_layer = {}  # of its attention, if it has that and state
        self.state_group = None
        self.num_allocated = []
        self.ranges = []
        groups = {}  # life cycle -> layers
        for layer in config.layers:
            if isinstance(layer, SsmLayerConfig):
                key = "state"
            else:
                key = (layer.window_size, -(-(layer.num_sink_tokens or 0) // config.tokens_per_block))
            groups.setdefault(key, []).append(layer)
        self.layer_grouping = [[layer.layer_id for layer in layers] for layers in groups.values()]
        for group, layers in enumerate(groups.values()):
            self.num_allocated.append(0)
            sizes = {}
            for layer in layers:
                if isinstance(layer, SsmLayerConfig):
                    self.state_group = group
                    self.group_of_layer.setdefault(layer.layer_id, group)
                else:
                    self.group_of_layer[layer.layer_id] = group
                for buffer in layer.buffers:
                    expansion = config.tokens_per_block // (buffer.tokens_per_block_override or config.tokens_per_block)
                    sizes.setdefault(buffer.size * expansion, []).append((layer.layer_id, buffer, expansion))
            for expanded_size, buffers in sizes.items():
                pool = self._map_pool(num_slots * len(buffers) * expanded_size)
                for offset, (layer_id, buffer, expansion) in enumerate(buffers):
                    of_layer = [other for other, _, _ in buffers].count(layer_id)
                    converter = StandInConverter(len(buffers), expansion, offset, of_layer)
                    self.places[layer_id, buffer.role] = _Place(group, pool, converter, buffer.size)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for address, num_bytes in self.ranges:
            self.device.unmap_memory(CacheTier.GPU_MEM, address, num_bytes)
            self.device.release_range(CacheTier.GPU_MEM, address, num_bytes)

    def _map_pool(self, num_bytes):
        granularity = self.device.granularity_bytes(CacheTier.GPU_MEM)
        num_bytes = -(-num_bytes // granularity) * granularity
        address = self.device.reserve_range(CacheTier.GPU_MEM, num_bytes)
        self.device.map_memory(CacheTier.GPU_MEM, address, num_bytes)
        self.ranges.append((address, num_bytes))
        return address

    def allocate(self, group):
        slot = self.num_allocated[group]
        assert slot < self.num_slots
        self.num_allocated[group] += 1
        return slot

    # -- what the engine asks ----------------------------------------------------------------------------------------

    def get_layer_group_id(self, layer_id):
        return self.group_of_layer[layer_id]

    def get_mem_pool_base_address(self, layer_id, data_role, index_mode=None):
        place = self.places[layer_id, data_role]
        if index_mode == PageIndexMode.PER_LAYER:
            return place.pool
        return place.pool + place.converter.layer_offset * place.converter.expansion * place.stride

    def get_page_stride(self, layer_id, data_role):
        return self.places[layer_id, data_role].stride

    def get_page_index_upper_bound(self, layer_id, data_role):
        converter = self.places[layer_id, data_role].converter
        return (self.num_slots - 1) * converter.scale * converter.expansion + converter.expansion

    def get_page_index_converter(self, layer_id, data_role):
        return self.places[layer_id, data_role].converter

    # -- what tests do -----------------------------------------------------------------------------------------------

    def address_of(self, sequence, layer_id, role, token, beam=0):
        """First byte of the page that holds the token, and the token's ordinal in it."""
        place = self.places[layer_id, role]
        tokens_per_page = self.config.tokens_per_block // place.converter.expansion
        table = sequence.tables[beam][place.group]
        pages = place.converter(table, PageIndexMode.PER_LAYER, sequence.scratch.get(place.group))
        return place.pool + int(pages[token // tokens_per_page]) * place.stride, token % tokens_per_page

    def state_address(self, sequence, layer_id, role, beam=0):
        place = self.places[layer_id, role]
        slot = sequence.states[beam][place.group]
        return place.pool + (slot * place.converter.scale + place.converter.layer_offset) * place.stride


class StandInSequence:
    """``tables[beam][group]`` are base page indices, ``states[beam][group]`` slots of recurrent state."""

    def __init__(self, manager, capacity=0, beam_width=1, stream=None, id="sequence"):
        self.manager = manager
        self.id = id
        self.cuda_stream = manager.device.default_stream() if stream is None else stream
        self.is_active = True
        self.capacity = 0
        self.beam_width = beam_width
        num_groups = len(manager.num_allocated)
        state_groups = [] if manager.state_group is None else [manager.state_group]
        self.tables = [[[] for _ in range(num_groups)] for _ in range(beam_width)]
        self.states = [{group: manager.allocate(group) for group in state_groups} for _ in range(beam_width)]
        self.scratch = {}
        self.grow(capacity)

    def grow(self, capacity):
        """New blocks get slots of their own."""
        for table_of_group in self.tables:
            for group, table in enumerate(table_of_group):
                if group not in self.states[0]:
                    while len(table) * self.manager.config.tokens_per_block < capacity:
                        table.append(self.manager.allocate(group))
        self.capacity = capacity

    def supports_index_mode(self, mode):
        return mode == PageIndexMode.PER_LAYER or not self.scratch

    def get_base_page_indices(self, layer_group_id, beam_id=0):
        return memoryview(np.array(self.tables[beam_id][layer_group_id], dtype=np.int32))

    def get_scratch_desc(self, layer_group_id):
        return self.scratch.get(layer_group_id)

    def get_ssm_block_base_index(self, layer_group_id, beam_id=0):
        return self.states[beam_id][layer_group_id]


def bytes_at(address, num_bytes):
    return ctypes.string_at(address, num_bytes)


def flip_byte(address):
    byte = ctypes.c_ubyte.from_address(address)
    byte.value ^= 0xFF
