"""The recipe for a page-table format: one class, added to a batch table, is right after every step."""

import random

import numpy as np
import pytest
from unit.kernels.random_batches import random_model

from kv_cache_manager_v2 import BatchPageTable, HostDevice, KVCacheManager, StridedPages, is_compiled
from kv_cache_manager_v2.kernels.page_family import resolve_family
from kv_cache_manager_v2.kernels.table_output import TableOutput

pytestmark = pytest.mark.skipif(is_compiled(), reason="a format is a class of the package: compiled ones take no subclass from outside")

ROWS, BLOCKS = 5, 80


class PagePresence(TableOutput):
    """``present`` ``[max_num_sequences, max_num_blocks]`` bool: which blocks have a page."""

    __slots__ = ("present", "_rule")

    def __init__(self, rule):
        self.present = np.zeros((ROWS, BLOCKS), np.bool_)
        self._own = [self.present]
        self._rule = rule

    def rules(self):
        return [self._rule]

    def update_row(self, row, state, layer_group, changed):
        if layer_group == self._rule.layer_group:
            slots = np.asarray(state.tables[layer_group].view())
            self._own[0][row] = False
            self._own[0][row, : len(slots)] = slots >= 0

    def clear_row(self, row):
        self._own[0][row] = False

    def _show(self, written):
        self.present = written._own[0]


@pytest.mark.parametrize("seed", range(8))
def test_a_format_of_ones_own(seed):
    rng = random.Random(seed)
    with KVCacheManager(random_model(rng, False), device=HostDevice()) as manager:
        table = BatchPageTable(manager, ROWS, BLOCKS)
        groups = range(len(manager.layer_grouping))
        formats = [PagePresence(resolve_family(manager, StridedPages(group))) for group in groups]
        for output in formats:
            table._add_outputs([output])
        sequences = []
        for _step in range(12):
            if len(sequences) < ROWS and rng.random() < 0.6:
                kv_cache = manager.create_kv_cache()
                assert kv_cache.resume()
                assert table.add(kv_cache) == len(sequences)
                sequences.append(kv_cache)
            elif sequences and rng.random() < 0.3:
                row = rng.randrange(len(sequences))
                table.remove(sequences[row])
                sequences[row].close()
                last = sequences.pop()
                if row < len(sequences):
                    sequences[row] = last
            for kv_cache in sequences:
                assert kv_cache.resize(kv_cache.capacity + rng.choice([1, 3, 20]), kv_cache.capacity)
            table.update()
            for group, output in zip(groups, formats, strict=True):
                expected = np.zeros((ROWS, BLOCKS), np.bool_)
                for row, kv_cache in enumerate(sequences):
                    slots = np.asarray(kv_cache.get_base_page_indices(group))
                    expected[row, : len(slots)] = slots >= 0
                assert (output.present == expected).all()
        for kv_cache in sequences:
            kv_cache.close()
