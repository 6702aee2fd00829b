"""Conversion of base page indices (slot ids) to a kernel's page indices, for one (layer, role).

A page index counts pages of the buffer from a base address, so that ``address = base + index * page_bytes``:

    SHARED      the base address has the layer's offset in it  index = slot * scale
    PER_LAYER   the base address is the pool's                 index = slot * scale + layer_offset
    scratch     PER_LAYER only; with n = scale // u blocks of the layer to a slot, the k-th scratch block has
                slot = slot_ids[k // n]                        index = slot * scale + (k % n * u + layer_offset) % scale

``u`` is `scratch_pages_per_block`, the sub-pages that the layer has in a slot. ``k % n * u`` moves them together by
whole multiples of ``u``, and ``n * u <= scale``, so no two (block, buffer) pairs of the layer meet. Where a kernel's
blocks are smaller, each index ``i`` becomes the run ``i * expansion .. i * expansion + expansion - 1``.
`BAD_PAGE_INDEX` stays as it is.

Conversions work on whole arrays; numpy is imported by the first one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, final


from ..base.checks import to_index_mode, to_instance, to_instance_or_none, to_int, to_list
from ..base.given import Given
from ..base.ids import INT32_MAX, PageIndexMode
from ..base.value import Value
from .buffer_placement import BufferPlacement
from .scratch_desc import ScratchDesc

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@final
class PageIndexConverter(Value):
    """Converts the base page indices of any sequence for one (layer, role). A value, shared by all sequences."""

    __slots__ = ("scale", "expansion", "layer_offset", "scratch_pages_per_block")

    def __init__(
        self, scale: SupportsIndex, expansion: SupportsIndex, layer_offset: SupportsIndex, scratch_pages_per_block: SupportsIndex
    ) -> None:
        scale = to_int(scale, "scale")
        expansion = to_int(expansion, "expansion")
        layer_offset = to_int(layer_offset, "layer_offset")
        scratch_pages_per_block = to_int(scratch_pages_per_block, "scratch_pages_per_block")
        if scale < 1 or expansion < 1 or scale * expansion > INT32_MAX:
            raise ValueError(f"scale is {scale}, expansion {expansion}; both must be at least 1, their product at most {INT32_MAX}")
        if not 0 <= layer_offset < scale:
            raise ValueError(f"layer_offset is {layer_offset}; it must be from 0 to {scale - 1}, less than scale")
        if not 1 <= scratch_pages_per_block <= scale:
            raise ValueError(f"scratch_pages_per_block is {scratch_pages_per_block}; it must be from 1 to {scale}, the scale")
        self.scale: Final[int] = scale
        self.expansion: Final[int] = expansion
        self.layer_offset: Final[int] = layer_offset
        self.scratch_pages_per_block: Final[int] = scratch_pages_per_block

    @property
    def scratch_blocks_per_slot(self) -> int:
        """Scratch blocks of this layer that one slot can hold in this buffer's pool."""
        return self.scale // self.scratch_pages_per_block

    def __call__(
        self, base_indices: object, index_mode: Given[PageIndexMode | None] = None, scratch: Given[ScratchDesc | None] = None
    ) -> "npt.NDArray[np.int32]":
        """A new int32 array of ``len(base_indices) * expansion`` page indices.

        ``base_indices`` is a sequence or a one-dimensional buffer of ints. The mode defaults to SHARED; it must be
        given where ``scratch`` is, and only PER_LAYER can address scratch blocks.
        """
        from . import page_index_arrays as arrays

        if scratch is not None:
            scratch = to_instance(scratch, ScratchDesc, "scratch")
        offset = self._compute_offset(index_mode, scratch is not None, scratch is not None and bool(scratch.range))
        base = arrays.to_base_array(base_indices, 1)
        pages = arrays.compute_page_indices(base, self.scale, self.expansion, offset)
        if scratch is not None:
            self._fill_scratch(base, pages, scratch)
        return pages

    def convert_into(
        self, base_indices: object, out: Any, index_mode: Given[PageIndexMode | None] = None, scratch: Given[ScratchDesc | None] = None
    ) -> int:
        """The conversion, written to the front of ``out``, a writable int32 buffer; returns how many entries were written."""
        from . import page_index_arrays as arrays

        pages = self(base_indices, index_mode, scratch)
        arrays.to_output_array(out, pages)[...] = pages
        return int(pages.size)

    def convert_batch_into(
        self,
        base_indices: object,
        out: Any,
        index_mode: Given[PageIndexMode | None] = None,
        scratch: Sequence[ScratchDesc | None] | None = None,
    ) -> int:
        """Many sequences at once: two-dimensional, a row per sequence, filled up with `BAD_PAGE_INDEX`.

        ``scratch`` has an item per row. Writes the front of each row of ``out`` and returns the entries per row.
        """
        from . import page_index_arrays as arrays

        base = arrays.to_base_array(base_indices, 2)
        given = [] if scratch is None else to_list(scratch, "scratch")
        descs = [to_instance_or_none(item, ScratchDesc, "each of scratch") for item in given]
        if scratch is not None and len(descs) != base.shape[0]:
            raise ValueError(f"scratch has {len(descs)} items for {base.shape[0]} rows of base indices; give one each")
        has_blocks = any([desc is not None and bool(desc.range) for desc in descs])
        offset = self._compute_offset(index_mode, scratch is not None, has_blocks)
        pages = arrays.compute_page_indices(base, self.scale, self.expansion, offset)
        for row, desc in enumerate(descs):
            if desc is not None:
                self._fill_scratch(base[row], pages[row], desc)
        arrays.to_output_array(out, pages)[...] = pages
        return int(pages.shape[1])

    def _compute_offset(self, index_mode: object, has_scratch: bool, has_scratch_blocks: bool) -> int:
        if index_mode is None:
            if has_scratch:
                raise ValueError("index_mode is None; it must be given where scratch is")
            return 0
        to_index_mode(index_mode, "index_mode")
        if index_mode == PageIndexMode.PER_LAYER:
            return self.layer_offset
        if has_scratch_blocks:
            raise ValueError("index_mode is SHARED; scratch blocks can be addressed with PageIndexMode.PER_LAYER only")
        return 0

    def _fill_scratch(self, base: "npt.NDArray[np.integer[Any]]", pages: "npt.NDArray[np.int32]", scratch: ScratchDesc) -> None:
        """Put the scratch blocks' page indices in their places; ``base`` and ``pages`` are those of one sequence."""
        from . import page_index_arrays as arrays

        if scratch.range:
            arrays.fill_scratch_indices(base, pages, scratch, self.scale, self.expansion, self.layer_offset, self.scratch_pages_per_block)

    def __repr__(self) -> str:
        return (
            f"PageIndexConverter(scale={self.scale}, expansion={self.expansion}, layer_offset={self.layer_offset},"
            f" scratch_pages_per_block={self.scratch_pages_per_block})"
        )


def compute_page_index_converter(placement: BufferPlacement) -> PageIndexConverter:
    return PageIndexConverter(placement.scale, placement.expansion, placement.layer_offset, placement.scratch_pages_per_block)
