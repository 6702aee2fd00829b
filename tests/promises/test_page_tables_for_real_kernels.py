"""A batch's page tables are in the shapes that today's attention kernels take, and always those of the sequences.

Every array is compared with one made from scratch, through the public calls of a sequence, after each of many random
steps.
"""

import random

import numpy as np
import pytest
from small_models import config_of, manager_of

from kv_cache_manager_v2 import (
    BAD_PAGE_INDEX,
    AttentionLayerConfig,
    AttnLifeCycle,
    BatchPageTable,
    BufferConfig,
    BufferId,
    DecodeBatch,
    DensePages,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    PageIndexMode,
    StridedPages,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.device.external_device import ExternalDevice

T = 4
SHARED, PER_LAYER = PageIndexMode.SHARED, PageIndexMode.PER_LAYER


def model(windows, expansion=1, num_slots=200, **settings):
    """One layer per window, keys in kernel blocks of T / expansion tokens; values in blocks of T."""
    layers = [
        AttentionLayerConfig(
            LayerId(index),
            [BufferConfig("key", 64 // expansion, T // expansion if expansion > 1 else None), BufferConfig("value", 64)],
            window,
            None if window is None else index,
        )
        for index, window in enumerate(windows)
    ]
    return KVCacheManagerConfig(T, [GpuCacheTierConfig(num_slots * 128)], layers, **settings)


def pages_of(manager, kv_cache, pages):
    """All page indices of a sequence, -1 where there is none, made by the converter."""
    if isinstance(pages, StridedPages):
        return np.asarray(kv_cache.get_base_page_indices(pages.layer_group_id))
    group = manager.get_layer_group_id(pages.layer_id)
    converter = manager.get_page_index_converter(pages.layer_id, pages.data_role)
    scratch = kv_cache.get_scratch_desc(group) if pages.index_mode is PER_LAYER else None
    return converter(kv_cache.get_base_page_indices(group), pages.index_mode, scratch)


def page_tokens_of(manager, pages):
    return T if isinstance(pages, StridedPages) else T // manager.get_page_index_converter(pages.layer_id, "key").expansion


def stale_blocks(manager, kv_cache, pages):
    group = pages.layer_group_id if isinstance(pages, StridedPages) else manager.get_layer_group_id(pages.layer_id)
    layer = next(layer for layer in manager.init_config.layers if manager.get_layer_group_id(layer.layer_id) == group)
    life_cycle = AttnLifeCycle.make(layer.sliding_window_size, layer.num_sink_tokens, T)
    return life_cycle.compute_stale_range(kv_cache.history_length, T)


class Checked:
    """A table with every kind of output, and what each must be."""

    def __init__(self, manager, families, filler, buffers=1):
        self.manager, self.families, self.filler, self.buffers = manager, families, filler, buffers
        self.written = []
        self.table = BatchPageTable(manager, 6, 64, buffers=buffers)
        self.blocks = [self.table.add_block_table(pages) for pages in families]
        self.lists = [self.table.add_csr(pages) for pages in families]
        self.slots = [self.table.add_slot_mapping(pages, 2000) for pages in families]
        self.rows = []

    def check(self, inputs):
        table, manager = self.table, self.manager
        assert len(table) == len(self.rows)
        assert [table.row_of(kv_cache) for kv_cache in self.rows] == list(range(len(self.rows)))
        lengths = [kv_cache.history_length + count for kv_cache, count in zip(self.rows, inputs, strict=True)]
        vacant = 6 - len(self.rows)
        assert table.seq_lens.tolist() == lengths + [0] * vacant
        assert table.query_start_loc.tolist() == np.cumsum([0, *inputs, *[0] * vacant]).tolist()
        assert table.kv_start_loc.tolist() == np.cumsum([0, *lengths, *[0] * vacant]).tolist()
        for number, pages in enumerate(self.families):
            filler, page_tokens = self.filler(pages), page_tokens_of(manager, pages)
            expected = np.full(self.blocks[number].array.shape, filler)
            lists, slots = [], []
            for row, (kv_cache, length) in enumerate(zip(self.rows, lengths, strict=True)):
                indices = pages_of(manager, kv_cache, pages)
                expected[row, : len(indices)] = np.where(indices < 0, filler, indices)
                # A step's scratch blocks are described until the next one, and are stale as soon as history has passed
                # them.
                stale = stale_blocks(manager, kv_cache, pages)
                ratio = T // page_tokens
                numbers = range(-(-length // page_tokens))
                lists.append([indices[i] for i in numbers if indices[i] >= 0 and i // ratio not in stale])
                for token in range(kv_cache.history_length, length):
                    slots.append(indices[token // page_tokens] * page_tokens + token % page_tokens)
            assert (self.blocks[number].array == expected).all()
            assert (self.blocks[number].rows == expected[: len(self.rows)]).all()
            csr = self.lists[number]
            starts = np.cumsum([0, *[len(part) for part in lists]]).tolist()
            assert csr.indptr.tolist() == starts + [starts[-1]] * vacant and csr.num_pages == starts[-1]
            assert csr.indices[: starts[-1]].tolist() == [int(page) for part in lists for page in part]
            last = [(length - 1) % page_tokens + 1 if length else 1 for length in lengths]
            assert csr.last_page_len[: len(self.rows)].tolist() == last
            assert self.slots[number].tokens.tolist() == slots
            assert (self.slots[number].array[len(slots) :] == -1).all()
        self.check_buffers()

    def check_buffers(self):
        """What the last updates wrote is as it was, up to the one whose turn is next."""
        for arrays, copies in self.written:
            assert all((array == copy).all() for array, copy in zip(arrays, copies, strict=True))
        arrays = [self.table.seq_lens, self.table.query_start_loc, self.table.kv_start_loc]
        arrays += [block.array for block in self.blocks] + [slot.array for slot in self.slots]
        arrays += [array for csr in self.lists for array in (csr.indptr, csr.indices, csr.last_page_len)]
        self.written = [*self.written, (arrays, [array.copy() for array in arrays])][len(self.written) + 2 - self.buffers :]
        if self.buffers > 1:
            mine = {array.__array_interface__["data"] for array in arrays}
            assert len(mine) == len(arrays)
            for others, _ in self.written[:-1]:
                assert not mine & {array.__array_interface__["data"] for array in others}


def drive(manager, checked, seed, num_steps=120, leave_capacity=True):
    """Random steps: sequences come, prefill in chunks, decode, sleep, swap rows, go."""
    rng = random.Random(seed)
    table, rows = checked.table, checked.rows
    asleep: list[KVCache] = []
    for _ in range(num_steps):
        action = rng.random()
        if action < 0.2 and len(rows) < 6:
            if asleep and rng.random() < 0.5:
                kv_cache = asleep.pop()
            else:
                prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 20))]
                kv_cache = manager.create_kv_cache(input_tokens=prompt)
            if not kv_cache.resume():
                asleep.append(kv_cache)
                continue
            assert table.add(kv_cache) == len(rows)
            rows.append(kv_cache)
        elif action < 0.3 and rows:
            row = rng.randrange(len(rows))
            kv_cache = rows[row]
            how = rng.random()
            if how < 0.4:
                kv_cache.close()
            elif how < 0.7:
                kv_cache.suspend()
            assert table.remove(kv_cache) == row
            rows[row] = rows[-1]
            rows.pop()
            if how >= 0.7:
                kv_cache.suspend()
            if how >= 0.4:
                asleep.append(kv_cache)
        elif action < 0.4 and len(rows) > 1:
            a, b = rng.randrange(len(rows)), rng.randrange(len(rows))
            table.swap_rows(a, b)
            rows[a], rows[b] = rows[b], rows[a]
        for kv_cache in [old for old in rows if old.capacity > 200]:
            row = table.remove(kv_cache)
            rows[row] = rows[-1]
            rows.pop()
            kv_cache.close()
        inputs = []
        for kv_cache in rows:
            if kv_cache.capacity > kv_cache.history_length and rng.random() < 0.7:
                # The last step's tokens are final, or some of them.
                count = kv_cache.capacity - kv_cache.history_length
                kept = count if rng.random() < 0.8 or not leave_capacity else rng.randrange(count + 1)
                kv_cache.commit([rng.randrange(2) for _ in range(kept)])
            step = rng.choice([0, 1, 1, 1, 2, 5, 30]) if leave_capacity else rng.choice([1, 1, 9, 40])
            history = kv_cache.history_length if leave_capacity else kv_cache.capacity
            kv_cache.resize(kv_cache.capacity + step, history)
            count = kv_cache.capacity - kv_cache.history_length
            inputs.append(rng.randrange(count + 1) if leave_capacity else count)
        if rng.random() < 0.8:
            table.update(inputs)
            checked.check(inputs)
    for kv_cache in rows + asleep:
        kv_cache.close()
    table.clear()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("expansion", [1, 2])
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_tables_are_always_those_of_the_sequences(seed, expansion, buffers):
    null = bool(seed % 2)
    config = model([None, 9, 30], expansion, reserve_null_slot=null)
    families = [StridedPages(0), StridedPages(1), DensePages(2, "key"), DensePages(1, "key", PER_LAYER), DensePages(0, "value")]

    def filler(pages):
        if not null:
            return BAD_PAGE_INDEX
        if isinstance(pages, StridedPages) or pages.index_mode is SHARED:
            return 0
        converter = manager.get_page_index_converter(pages.layer_id, pages.data_role)
        return converter.layer_offset * converter.expansion

    families = [pages for pages in families if expansion == 1 or not (isinstance(pages, DensePages) and pages.data_role == "value")]
    with KVCacheManager(config, device=HostDevice()) as manager:
        drive(manager, Checked(manager, families, filler, buffers), seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("buffers", [1, 2])
def test_scratch_blocks_are_in_the_tables_of_each_layer(seed, buffers):
    config = model([None, 9, 30], swa_scratch_reuse=SwaScratchReuseConfig())
    families = [DensePages(layer, "key", PER_LAYER) for layer in range(3)]
    with KVCacheManager(config, device=HostDevice()) as manager:
        drive(manager, Checked(manager, families, lambda pages: BAD_PAGE_INDEX, buffers), seed, leave_capacity=False)


def test_shared_tables_refuse_scratch_blocks_and_change_nothing():
    with KVCacheManager(model([9], swa_scratch_reuse=SwaScratchReuseConfig()), device=HostDevice()) as manager:
        table = BatchPageTable(manager, 2, 32)
        blocks = table.add_block_table(StridedPages(0))
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(8, 0)
            table.add(kv_cache)
            table.update()
            before = blocks.array.copy()
            assert kv_cache.resize(60, 8)
            with pytest.raises(ValueError):
                table.update()
            assert (blocks.array == before).all() and table.seq_lens.tolist() == [8, 0]


def test_buffers_take_turns_in_arrays_of_ones_own():
    """A copy of one update's arrays may go on until the next but one, also where sequences leave meanwhile."""
    with manager_of([None]) as manager:
        arrays = np.zeros((2, 3), np.int32)
        table = BatchPageTable(manager, 3, 8, seq_lens=arrays, buffers=2)
        rows = np.zeros((2, 3, 8), np.int32)
        blocks = table.add_block_table(StridedPages(0), out=rows)
        offsets = table.add_offset_table("key", "value")
        sequences = [manager.create_kv_cache() for _ in range(3)]
        for kv_cache in sequences:
            assert kv_cache.resume() and kv_cache.resize(5)
            table.add(kv_cache)
        table.update()
        first, first_offsets = blocks.array, offsets.offsets
        before, offsets_before = first.copy(), first_offsets.copy()
        assert table.seq_lens.tolist() == [5, 5, 5]
        table.remove(sequences[0])
        sequences[0].close()
        assert (first == before).all() and table.seq_lens.tolist() == [5, 5, 5]
        table.update()
        assert table.seq_lens.tolist() == [5, 5, 0] and (blocks.array[2] == -1).all()
        assert (first == before).all() and (first_offsets == offsets_before).all()
        assert sorted(arrays.tolist()) == [[5, 5, 0], [5, 5, 5]]
        with pytest.raises(LogicError):
            sequences[1].suspend()
            table.update()
        assert (first == before).all()
        table.remove(sequences[1])
        table.update()
        # Its turn has come.
        assert table.seq_lens.tolist() == [5, 0, 0] and blocks.array is first and (first[1:] == -1).all()
        assert not first_offsets[:, 1:].any()
        for kv_cache in sequences:
            kv_cache.close()


def test_wrong_buffers_are_named():
    with manager_of([None]) as manager:
        for buffers in (0, -1, 17, 1 << 40):
            with pytest.raises(ValueError, match="buffers is"):
                BatchPageTable(manager, 3, 8, buffers=buffers)
        with pytest.raises(ValueError, match="seq_lens has the shape .* its first axis must be 2"):
            BatchPageTable(manager, 3, 8, buffers=2, seq_lens=np.zeros(3, np.int32))
        table = BatchPageTable(manager, 3, 8, buffers=2)
        with pytest.raises(ValueError, match="out has the shape"):
            table.add_block_table(StridedPages(0), out=np.zeros((2, 3, 7), np.int32))
        with pytest.raises(TypeError, match="out must be an array"):
            table.add_block_table(StridedPages(0), out=[np.zeros((3, 8), np.int32)] * 2)
        with pytest.raises(ValueError, match="indptr has the shape"):
            table.add_csr(StridedPages(0), indptr=np.zeros(4, np.int32))
        table.update([])


def test_two_tables_follow_one_sequence():
    with manager_of([None, 8]) as manager:
        tables = [BatchPageTable(manager, 2, 32) for _ in range(2)]
        blocks = [table.add_block_table(StridedPages(1)) for table in tables]
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            for table in tables:
                table.add(kv_cache)
            for step in range(60):
                assert kv_cache.resize(step + 1, step)
                tables[step % 3 == 0].update()
            for number in range(2):
                tables[number].update()
                expected = kv_cache.get_base_page_indices(1).tolist()
                assert blocks[number].array[0, : len(expected)].tolist() == expected
            tables[0].remove(kv_cache)
            assert kv_cache.resize(80, 79)
            tables[1].update()
            assert blocks[1].array[0, :20].tolist() == kv_cache.get_base_page_indices(1).tolist()


def test_an_output_that_comes_late_sees_everything():
    with manager_of() as manager:
        table = BatchPageTable(manager, 2, 32)
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(40)
            table.add(kv_cache)
            first = table.add_block_table(StridedPages(0))
            table.update()
            late = table.add_block_table(StridedPages(0))
            other = table.add_csr(StridedPages(0))
            table.update()
            assert (late.array == first.array).all() and other.num_pages == 10


def test_arrays_of_the_caller():
    with manager_of(reserve_null_slot=True) as manager:
        blocks, lengths, slots = np.full((3, 16), 77, np.int32), np.full(3, 77, np.int32), np.full(64, 77, np.int64)
        table = BatchPageTable(manager, 3, 16, seq_lens=lengths)
        assert table.add_block_table(StridedPages(0), out=blocks).array is blocks
        table.add_slot_mapping(StridedPages(0), 64, out=slots)
        assert (blocks == 0).all() and (slots == -1).all(), "the null slot, and: do not write"
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(10)
            table.add(kv_cache)
            table.update([10])
            indices = kv_cache.get_base_page_indices(0).tolist()
            assert 0 not in indices, "slot 0 is reserved"
            assert blocks.tolist() == [indices + [0] * 13, [0] * 16, [0] * 16]
            assert lengths.tolist() == [10, 0, 0]
            assert slots[:10].tolist() == [indices[token // 4] * 4 + token % 4 for token in range(10)]
            table.remove(kv_cache)
            assert (blocks == 0).all()
        wrong = [
            (np.zeros((3, 16), np.int64), TypeError),
            (np.zeros((3, 15), np.int32), ValueError),
            (np.zeros((16, 3), np.int32).T, ValueError),
            ([[0] * 16] * 3, TypeError),
        ]
        for out, error in wrong:
            with pytest.raises(error):
                table.add_block_table(StridedPages(0), out=out)
        for filler in (1 << 31, -(1 << 31) - 1, 1 << 63):
            with pytest.raises(ValueError, match="filler is"):
                table.add_block_table(StridedPages(0), filler=filler)


def test_null_slot_is_zero():
    """Whatever kernels compute from it is finite."""
    with manager_of([None, 8], reserve_null_slot=True) as manager:
        for layer in (0, 1):
            for role in ("key", "value"):
                assert (np.asarray(manager.pool_view(layer, role, by_slot=True))[0] == 0).all()


def model_with_pages_of_a_byte(quota, max_quota, window=None):
    """A slot of 8,192 pages, so that int32 counts the pages of 262,142 slots, of 2 GiB."""
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 1, 1), BufferConfig("value", 1, 1)], window)]
    return KVCacheManagerConfig(4096, [GpuCacheTierConfig(quota, max_quota=max_quota)], layers, max_util_for_resume=1.0)


def test_page_indices_that_int32_does_not_hold_are_refused():
    """When an output is made, and at the step after level 0 has grown; then nothing has changed."""
    with KVCacheManager(model_with_pages_of_a_byte(5 << 29, 5 << 29), device=HostDevice()) as manager:
        table = BatchPageTable(manager, 2, 8)
        out = np.full((1, 2, 2, 8 * 4096), 7, np.int32)
        for make in (
            lambda: table.add_block_table(DensePages(0, "key")),
            lambda: table.add_csr(DensePages(0, "key")),
            lambda: table.add_offset_table(out=out),
        ):
            with pytest.raises(ValueError, match="int32 holds the page indices of 262142 slots, and level 0 has 327680"):
                make()
        assert (out == 7).all()
        table.add_block_table(StridedPages(0))
        table.update()
    for is_batch in (False, True):
        with KVCacheManager(model_with_pages_of_a_byte(1 << 30, 5 << 29), device=HostDevice()) as manager:
            with manager.create_kv_cache() as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(10)
                batch = DecodeBatch(manager, 2, 8)
                table = batch.table if is_batch else BatchPageTable(manager, 2, 8)
                step = batch.step if is_batch else table.update
                # The least of all outputs' limits counts, in whatever order they were added.
                table.add_block_table(StridedPages(0))
                offsets = table.add_offset_table()
                table.add_block_table(StridedPages(0))
                table.add(kv_cache)
                step()

                def state():
                    return offsets.offsets.tolist(), table.seq_lens.tolist(), kv_cache.capacity, kv_cache.history_length

                before = state()
                assert manager.resize(0, 5 << 29)
                with pytest.raises(ValueError, match="int32 holds the page indices of 262142 slots, and level 0 has 327680"):
                    step()
                assert state() == before
                assert manager.resize(0, 1 << 30)
                step()
                table.remove(kv_cache)


@pytest.mark.parametrize("is_batch", [False, True])
def test_tokens_of_a_batch_that_int32_does_not_count_are_refused(is_batch):
    most = 2**31 - 1
    config = model_with_pages_of_a_byte(1 << 24, 1 << 24, 64)
    with KVCacheManager(config, device=ExternalDevice()) as manager:
        batch = DecodeBatch(manager, 3, most // 4096)
        table = batch.table if is_batch else BatchPageTable(manager, 3, most // 4096)
        step = batch.step if is_batch else table.update
        members = [manager.create_kv_cache(id=number) for number in range(3)]
        lengths = [1 << 30, (1 << 30) - 4096, 4000]
        for kv_cache, length in zip(members, lengths, strict=True):
            assert kv_cache.resume() and kv_cache.resize(length, length - 1)
        for kv_cache in members[:2]:
            table.add(kv_cache)
        step()
        assert table.kv_start_loc.tolist() == [0, 1 << 30, most + 1 - 4096, most + 1 - 4096]
        table.add(members[2])
        step()
        assert table.kv_start_loc[3] == most - 95
        for number, (kv_cache, length) in enumerate(zip(members, lengths, strict=True)):
            assert kv_cache.resize(length + 32, length + 31 if number == 0 else length + 30)
        before = [(kv_cache.capacity, kv_cache.history_length) for kv_cache in members]
        if is_batch:
            step()
            assert table.kv_start_loc[3] <= most
            with pytest.raises(ValueError, match="together, and kv_start_loc counts up to 2147483647"):
                batch.step(None, 40)
        else:
            with pytest.raises(ValueError, match=r"the rows have 2147483648 tokens together, and kv_start_loc counts up to 2147483647"):
                step()
        assert before == [(kv_cache.capacity, kv_cache.history_length) for kv_cache in members]
        manager.check_invariants()
        for kv_cache in members:
            kv_cache.close()


def test_misuse_is_refused_before_anything_changes():
    with manager_of() as manager, manager_of() as other:
        table = BatchPageTable(manager, 1, 4)
        blocks = table.add_block_table(StridedPages(0))
        kv_cache, second, foreign = manager.create_kv_cache(), manager.create_kv_cache(), other.create_kv_cache()
        table.add(kv_cache)
        for refused in (kv_cache, second, foreign):
            with pytest.raises(ValueError):
                table.add(refused)
        with pytest.raises(LogicError):
            table.update()  # suspended
        assert kv_cache.resume() and kv_cache.resize(16)
        table.update()
        before = blocks.array.copy()
        assert kv_cache.resize(17)
        for inputs in (None, [1], [1, 1], [18], [-1]):
            with pytest.raises(ValueError):
                table.update(inputs)
        assert (blocks.array == before).all()
        with pytest.raises(ValueError):
            table.remove(second)
        with pytest.raises(ValueError):
            table.swap_rows(0, 1)
        for pages in (StridedPages(1), DensePages(9, "key"), DensePages(0, "nothing")):
            with pytest.raises(ValueError):
                table.add_csr(pages)
        for closed in (kv_cache, second, foreign):
            closed.close()
        with pytest.raises(LogicError):
            table.update()
        with pytest.raises(LogicError):
            table.add(second)
        table.remove(kv_cache)
        table.update()


def keys_and_values_at(manager, layer, slot):
    """Addresses of the block with that slot."""
    pages = manager.get_page_index_scale(layer, "key") * slot * manager.get_page_stride(layer, "key")
    return [manager.get_mem_pool_base_address(layer, role, SHARED) + pages for role in ("key", "value")]


def check_offsets(manager, offsets, kv_cache):
    for index, layer in enumerate(offsets.layer_ids):
        pool, position = offsets.pool_mapping[index].tolist()
        page_bytes = int(offsets.page_bytes[pool])
        for block, slot in enumerate(kv_cache.get_base_page_indices(manager.get_layer_group_id(layer)).tolist()):
            for plane in range(2):
                offset = int(offsets.offsets[pool, 0, plane, block])
                if slot < 0:
                    assert offset == 0
                    continue
                address = int(offsets.pool_pointers[pool, 0]) + position * 2 * page_bytes + offset * page_bytes
                assert address == keys_and_values_at(manager, layer, slot)[plane]


@pytest.mark.parametrize("uneven", [False, True])
def test_key_and_value_offsets(uneven):
    """Layers 0..4, windows in two groups; with `uneven` layer 2's buffers are of the size of two others and stand
    between."""
    layers = [
        AttentionLayerConfig(
            LayerId(index),
            [BufferConfig("key", 64), BufferConfig("value", 64)] + ([BufferConfig("other", 64)] if uneven and index == 2 else []),
            9 if index == 3 else None,
        )
        for index in range(5)
    ]
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(1 << 16)], layers, reserve_null_slot=True)
    with KVCacheManager(config, device=HostDevice()) as manager:
        table = BatchPageTable(manager, 3, 32)
        offsets = table.add_offset_table()
        # Layers 0, 1, 2, 4 share a pool and 3 has its own; an odd buffer ends a run, so that 4 counts for itself.
        assert offsets.pool_mapping.tolist() == (
            [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0]] if uneven else [[0, 0], [0, 1], [0, 2], [1, 0], [0, 3]]
        )
        assert offsets.offsets.dtype == np.int32 and offsets.offsets.shape == (3 if uneven else 2, 3, 2, 32)
        assert offsets.pool_pointers.dtype == np.int64 and offsets.pool_mapping.dtype == np.int32
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            table.add(kv_cache)
            for step in range(70):
                assert kv_cache.resize(step + 1, step)
                table.update()
                check_offsets(manager, offsets, kv_cache)
            assert offsets.rows.shape[1] == 1
            table.remove(kv_cache)
            assert (offsets.offsets == 0).all()


def draw_layers(rng):
    """Keys and values of one of few sizes, some in kernel blocks of fewer tokens, windows, and buffers between them."""
    layers = []
    for index in range(rng.randrange(1, 7)):
        size, expansion = rng.choice([64, 64, 128]), rng.choice([1, 1, 2, 4])
        tokens = T // expansion if expansion > 1 else None
        buffers = [BufferConfig(role, size // expansion, tokens) for role in ("key", "value")]
        if rng.random() < 0.3:
            buffers.insert(rng.randrange(3), BufferConfig("other", rng.choice([64, 32])))
        layers.append(AttentionLayerConfig(LayerId(index), buffers, rng.choice([None, None, 9])))
    return layers


@pytest.mark.parametrize("seed", range(60))
def test_each_offset_is_the_address_of_its_kernel_block(seed):
    """By the formula of the class, against `get_aggregated_pages`, which knows nothing of indices."""
    rng = random.Random(seed)
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(1 << 16)], draw_layers(rng), reserve_null_slot=True)
    with KVCacheManager(config, device=HostDevice()) as manager:
        table = BatchPageTable(manager, 2, 8)
        offsets = table.add_offset_table()
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(21)
            table.add(kv_cache)
            table.update()
            for index, layer in enumerate(offsets.layer_ids):
                pool, position = offsets.pool_mapping[index].tolist()
                page_bytes = int(offsets.page_bytes[pool])
                slots = kv_cache.get_base_page_indices(manager.get_layer_group_id(layer)).tolist()
                for plane, role in enumerate(("key", "value")):
                    (pages,) = manager.get_aggregated_pages([BufferId(layer, role)])
                    num_kernel_blocks = pages.size // manager.get_page_stride(layer, role)
                    assert num_kernel_blocks * page_bytes == pages.size
                    first = int(offsets.pool_pointers[pool, 0]) + position * offsets.kv_factor * page_bytes
                    found = [first + offset * page_bytes for offset in offsets.offsets[pool, 0, plane].tolist()]
                    expected = [pages.base + slot * pages.stride + part * page_bytes for slot in slots for part in range(num_kernel_blocks)]
                    assert found[: len(expected)] == expected
                    assert not offsets.offsets[pool, 0, plane, len(expected) :].any()
            table.remove(kv_cache)


def test_offsets_with_scratch_count_for_each_layer():
    """Each layer is a virtual pool; its entries are those of the converter, scratch blocks included."""
    layers = [AttentionLayerConfig(LayerId(index), [BufferConfig("key", 64), BufferConfig("value", 64)], 9) for index in range(4)]
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(1 << 16)], layers, swa_scratch_reuse=SwaScratchReuseConfig())
    with KVCacheManager(config, device=HostDevice()) as manager:
        table = BatchPageTable(manager, 2, 32)
        offsets = table.add_offset_table()
        assert offsets.pool_mapping.tolist() == [[layer, 0] for layer in range(4)]
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            table.add(kv_cache)
            for capacity, history in ((70, 0), (71, 70), (90, 71)):
                assert kv_cache.resize(capacity, history)
                table.update()
                for layer in range(4):
                    assert offsets.pool_pointers[layer, 0] == manager.get_mem_pool_base_address(layer, "key", PER_LAYER)
                    for plane, role in enumerate(("key", "value")):
                        converter = manager.get_page_index_converter(layer, role)
                        expected = converter(kv_cache.get_base_page_indices(0), PER_LAYER, kv_cache.get_scratch_desc(0))
                        found = offsets.offsets[layer, 0, plane, : len(expected)]
                        assert (found == np.where(expected < 0, 0, expected)).all()


def test_offsets_without_values_and_with_scales():
    layers = [AttentionLayerConfig(LayerId(i), [BufferConfig("key", 64), BufferConfig("key_scale", 8)]) for i in range(3)]
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(1 << 14)], layers)
    with KVCacheManager(config, device=HostDevice()) as manager:
        table = BatchPageTable(manager, 2, 8)
        offsets = table.add_offset_table(value_role=None, scale_role="key_scale")
        assert offsets.kv_factor == 1 and offsets.pool_mapping.tolist() == [[0, 0], [0, 1], [0, 2]]
        assert offsets.pool_pointers.tolist() == [
            [[manager.get_mem_pool_base_address(0, role, PER_LAYER) for role in ("key", "key_scale")], [0, 0]]
        ]
        with pytest.raises(ValueError):
            table.add_offset_table("key", "key_scale")
        with pytest.raises(ValueError):
            table.add_offset_table("nothing")


@pytest.mark.parametrize(
    "small",
    [
        # Layer 1's scales change places: those of its keys lie where the offsets say that those of its values are.
        [("key_scale", "value_scale"), ("value_scale", "key_scale")],
        # Layer 1 has no scales for its values, so that layer 2's stand there; counted together they would fit layer 0 only.
        [("key_scale", "value_scale"), ("key_scale",), ("value_scale", "key_scale", "value_scale2")],
    ],
)
def test_scales_that_do_not_lie_as_their_keys_do(small):
    """The same offsets count in both pools, so a table that is right for the first layer only is refused."""
    layers = [
        AttentionLayerConfig(
            LayerId(index), [BufferConfig("key", 64), BufferConfig("value", 64), *[BufferConfig(role, 8) for role in roles]]
        )
        for index, roles in enumerate(small)
    ]
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(1 << 14)], layers)
    with KVCacheManager(config, device=HostDevice()) as manager:
        table = BatchPageTable(manager, 2, 8)
        with pytest.raises(ValueError, match="key_scale"):
            table.add_offset_table(scale_role="key_scale")


def test_vacant_rows_of_a_list_have_a_valid_last_page():
    """Graphs are captured for all rows: a vacant one has no pages, and the last page length of a row that never was."""
    with KVCacheManager(config_of(), device=HostDevice()) as manager:
        table = BatchPageTable(manager, 3, 8)
        csr = table.add_csr(StridedPages(0))
        sequences = [manager.create_kv_cache() for _ in range(2)]
        for kv_cache in sequences:
            assert kv_cache.resume() and kv_cache.resize(3)
            table.add(kv_cache)
        table.update()
        assert csr.last_page_len.tolist() == [3, 3, 1]
        table.remove(sequences[0])
        table.update()
        assert csr.last_page_len.tolist() == [3, 1, 1]
        for kv_cache in sequences:
            kv_cache.close()


def test_decode_steps_touch_only_what_changed():
    """After the prefill, entries that a step did not change are not written again: a mark put over them stays."""
    with KVCacheManager(config_of([None, 8], num_slots=300), device=HostDevice()) as manager:
        table = BatchPageTable(manager, 2, 200)
        blocks = [table.add_block_table(StridedPages(group)) for group in (0, 1)]
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(400, 399)
            table.add(kv_cache)
            table.update()
            # 401 tokens: block 100 comes. Group 1's window of 8 begins in block floor((H + 1 - 8) / 4): 98 from history
            # 399 on, 99 at 403, when block 98 goes.
            for history, expected in ((400, [[100], [100]]), (401, [[], []]), (402, [[], []]), (403, [[], [98]])):
                for block_table in blocks:
                    block_table.array[:] = 77777
                assert kv_cache.resize(history + 1, history)
                table.update()
                assert [np.flatnonzero(block_table.array[0] != 77777).tolist() for block_table in blocks] == expected
