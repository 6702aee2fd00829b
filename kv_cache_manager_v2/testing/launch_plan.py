"""Launch plans: from a batch of rows to the work of each layer; the part of an engine that reads page tables.

It calls what an engine's adapter calls on the manager and the sequences, and nothing else: base addresses, strides,
converters, base page indices, scratch descriptions, state slots. What several layers share (page tables,
spans, images) is made once per batch. The tokens that a layer reads are computed here from the window alone, deliberately
without the library's own arithmetic of stale blocks.
"""

from typing import Any, Final, final

import numpy as np

from ..base.ids import BeamIndex, LayerGroupId, LayerId, PageIndexMode
from ..base.integer_math import ceil_div
from .engine_memory import NUM_SCRATCH_PLACES, EngineMemory
from .kernel_buffer import KernelBuffer
from .layer_work import BufferWork, LayerWork
from .page_spans import Ints, PageSpans, cut_into_pages
from .paged_sequence import PagedManager, PagedSequence
from .span_image import SpanImage
from .step_batch import StepBatch
from .step_rows import StepRows


@final
class _BaseTable:
    """The base page indices of a layer group, row after row."""

    __slots__ = ("indices", "offset", "scratch")

    def __init__(self, indices: list[Any], scratch: list[Any]) -> None:
        self.indices: Final = indices
        """int32 per row."""
        lengths = np.array([len(row) for row in indices], dtype=np.int64)
        self.offset: Final[Ints] = np.cumsum(lengths) - lengths
        """By row: its first block in the concatenated table."""
        self.scratch: Final = scratch
        """ScratchDesc or None per row; empty if no row has one."""


@final
class LaunchPlan:
    """The work of one batch, layer by layer."""

    __slots__ = (
        "rows",
        "_manager",
        "_sequences",
        "_model",
        "_mode",
        "_has_scratch",
        "_memory",
        "_stream",
        "_bases",
        "_tables",
        "_spans",
        "_images",
    )

    def __init__(
        self, batch: StepBatch, model: list[list[KernelBuffer]], mode: PageIndexMode, has_scratch: bool, memory: EngineMemory | None
    ) -> None:
        self.rows: Final[StepRows] = batch.make_rows()
        self._manager: Final[PagedManager] = batch.manager
        self._sequences: Final[list[PagedSequence]] = batch.sequences
        self._model: Final[list[list[KernelBuffer]]] = model
        for kv_cache in batch.sequences:
            if memory is None and not kv_cache.supports_index_mode(mode):
                mode = PageIndexMode.PER_LAYER
        self._mode: Final[PageIndexMode] = mode
        self._has_scratch: Final[bool] = has_scratch
        self._memory: Final[EngineMemory | None] = memory
        self._stream: Final = int(batch.stream)
        self._bases: Final[dict[int, _BaseTable]] = {}
        self._tables: Final[dict[tuple[int, ...], Ints]] = {}
        self._spans: Final[dict[tuple[object, ...], PageSpans]] = {}
        self._images: Final[dict[tuple[object, ...], SpanImage]] = {}

    def layer(self, layer_index: int) -> LayerWork:
        buffers = self._model[layer_index]
        works = [self._buffer_work(buffer) for buffer in buffers]
        return LayerWork(self.rows, works, len(buffers) > 0 and buffers[0].is_state, self._model)

    def _buffer_work(self, buffer: KernelBuffer) -> BufferWork:
        manager = self._manager
        layer_id, role = LayerId(buffer.layer_id), buffer.role
        group = self._group_of(buffer)
        converter = manager.get_page_index_converter(layer_id, role)
        num_pages = max(int(manager.get_page_index_upper_bound(layer_id, role)), 0)
        pages_per_slot = converter.scale * converter.expansion
        num_slots = int(ceil_div(num_pages, pages_per_slot))
        base = self._base_table(group, buffer.num_state_slots if buffer.is_state else 0, num_slots)
        table = self._page_table(group, base, converter)
        if self._memory is not None:
            # The last slot to its end, as lists of copies take it.
            num_pages = (num_slots + (NUM_SCRATCH_PLACES if self._has_scratch else 0)) * pages_per_slot
        elif self._mode is PageIndexMode.PER_LAYER:
            # The upper bound counts from the layer's own offset; from the pool's base the last slot reaches to its end.
            num_pages = num_slots * pages_per_slot
        stride = int(manager.get_page_stride(layer_id, role))
        if self._memory is None:
            address = int(manager.get_mem_pool_base_address(layer_id, role, self._mode))
        else:
            address = self._memory.address_of(id(manager), buffer, num_pages * stride)
        write = self._image(buffer, True)
        check = self._image(buffer, False)
        page_offset = base.offset * converter.expansion
        return BufferWork(
            buffer,
            address,
            stride,
            num_pages,
            write,
            table[page_offset[write.spans.row] + write.spans.page],
            check,
            table[page_offset[check.spans.row] + check.spans.page],
        )

    def _group_of(self, buffer: KernelBuffer) -> LayerGroupId:
        manager, layer_id = self._manager, LayerId(buffer.layer_id)
        group = manager.get_layer_group_id(layer_id)
        if buffer.is_state:
            # A layer that has attention too is listed under that group; the other group that lists it has the state.
            for other, layer_ids in enumerate(manager.layer_grouping):
                if other != group and layer_id in layer_ids:
                    return LayerGroupId(other)
        return group

    def _base_table(self, group: LayerGroupId, num_state_slots: int, num_slots: int) -> _BaseTable:
        """The base table of a group. ``num_state_slots``: 0 for a layer group with pages per block. ``num_slots``: of the manager's."""
        found = self._bases.get(group)
        if found is not None:
            return found
        rows = self.rows
        indices: list[Any] = []
        scratch: list[Any] = []
        has_scratch = False
        num_own = 0
        for row in range(len(rows)):
            kv_cache: Any = self._sequences[row]
            beam = BeamIndex(rows.beams[row])
            if num_state_slots == 1:
                indices.append(np.array([kv_cache.get_ssm_block_base_index(group, beam)], dtype=np.int32))
                continue
            if num_state_slots > 1:
                ring = [kv_cache.get_ssm_block_base_index(group, beam, length) for length in range(num_state_slots)]
                indices.append(np.array(ring, dtype=np.int32))
                continue
            indices.append(np.array(kv_cache.get_base_page_indices(group, beam), dtype=np.int32))
            desc = kv_cache.get_scratch_desc(group) if self._has_scratch else None
            if desc and self._memory is not None:
                # Behind the manager's slots the engine has places of its own, for the time of the step.
                place = num_slots + self._memory.take_scratch(self._stream, num_own, len(desc.range))
                indices[row][desc.range.beg : desc.range.end] = np.arange(len(desc.range)) + place
                num_own += len(desc.range)
                desc = None
            scratch.append(desc if desc else None)
            has_scratch = has_scratch or bool(desc)
        table = _BaseTable(indices, scratch if has_scratch else [])
        self._bases[group] = table
        return table

    def _page_table(self, group: LayerGroupId, base: _BaseTable, converter: Any) -> Ints:
        """The rows' page indices for the buffers that share this conversion, concatenated."""
        key = (int(group), int(converter.scale), int(converter.expansion))
        if self._mode is PageIndexMode.PER_LAYER:
            key_of_layer = (int(converter.layer_offset), int(converter.scratch_pages_per_block))
        else:
            key_of_layer = (0, 0)
        found = self._tables.get(key + key_of_layer)
        if found is not None:
            return found
        if len(base.scratch) == 0:
            converted = np.asarray(converter(np.concatenate(base.indices), self._mode))
        else:
            # Scratch blocks are addressed by ordinal, so these rows are converted one by one.
            parts = [np.asarray(converter(base.indices[row], self._mode, base.scratch[row])) for row in range(len(self.rows))]
            converted = np.concatenate(parts)
        table: Ints = converted.astype(np.int64)
        self._tables[key + key_of_layer] = table
        return table

    def _image(self, buffer: KernelBuffer, is_write: bool) -> SpanImage:
        layout = buffer.layout
        key: tuple[object, ...] = (buffer.is_state, is_write, layout.page_bytes, layout.tokens_per_page)
        # Every layer writes all of the input; the tokens that it reads depend on its window.
        if not is_write:
            key += (buffer.window_size, buffer.num_sink_tokens)
        found = self._images.get(key)
        if found is None:
            found = self._state_image(buffer, is_write) if buffer.is_state else self._token_image(buffer, is_write)
            self._images[key] = found
        return found

    def _token_image(self, buffer: KernelBuffer, is_write: bool) -> SpanImage:
        rows, layout = self.rows, buffer.layout
        key: tuple[object, ...] = (is_write, layout.tokens_per_page)
        if not is_write:
            key += (buffer.window_size, buffer.num_sink_tokens)
        spans = self._spans.get(key)
        if spans is None:
            row_ids = np.arange(len(rows))
            if is_write:
                spans = cut_into_pages(layout.tokens_per_page, row_ids, rows.history, rows.end)
            else:
                window_beg = np.zeros_like(rows.history)
                if buffer.window_size is not None:
                    # The first query sits at `history` and its window includes it; later queries begin later.
                    window_beg = np.maximum(rows.history + (1 - buffer.window_size), 0)
                sink_end = np.minimum(buffer.num_sink_tokens, window_beg)
                spans = cut_into_pages(
                    layout.tokens_per_page,
                    np.concatenate((row_ids, row_ids)),
                    np.concatenate((np.zeros_like(sink_end), window_beg)),
                    np.concatenate((sink_end, rows.end)),
                )
            self._spans[key] = spans
        value_offset = rows.value_offset[spans.row] + spans.page * layout.tokens_per_page
        return SpanImage(spans, layout, rows.values, value_offset)

    def _state_image(self, buffer: KernelBuffer, is_write: bool) -> SpanImage:
        """The state's value is that of the whole prefix: the history's before the step, the input's end after it.

        With checkpoints, the values of the last input tokens are written too, each into the slot of its length.
        """
        rows = self.rows
        num_slots = buffer.num_state_slots
        if is_write:
            # No input: nothing is written.
            first = np.maximum(rows.history + 1, rows.end + 1 - num_slots)
            counts = np.maximum(rows.end + 1 - first, 0)
            changed = np.repeat(np.arange(len(rows)), counts)
            length = np.arange(len(changed)) - np.repeat(np.cumsum(counts) - counts, counts) + first[changed]
        else:
            # No history: the state is not read.
            changed = np.nonzero(rows.history > 0)[0]
            length = rows.history[changed]
        zero = np.zeros_like(changed)
        spans = PageSpans(1, changed, length % num_slots, zero, zero + 1)
        return SpanImage(spans, buffer.layout, rows.values, rows.value_offset[changed] + length - 1)
