"""The array arithmetic of `PageIndexConverter`: its formulas on whole numpy arrays, and the checks of input and output.

The last axis of an array counts blocks. All arithmetic is in int32, after a check that the largest slot id's last page
index fits. Importing this module imports numpy, so it is imported on first use.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..base.checks import shown
from ..base.ids import BAD_PAGE_INDEX, INT32_MAX
from .scratch_desc import ScratchDesc

Int32s: TypeAlias = npt.NDArray[np.int32]
Integers: TypeAlias = npt.NDArray[np.integer[Any]]


def to_base_array(base_indices: object, num_dimensions: int) -> Integers:
    """The indices as an array of ints; no copy where they are one already."""
    try:
        array = np.asarray(base_indices)
    except ValueError as error:
        raise ValueError(
            f"base_indices makes no array of {num_dimensions} dimensions; shorter rows are filled up with {BAD_PAGE_INDEX}: {error}"
        ) from error
    if array.ndim != num_dimensions:
        if array.dtype.kind not in ("i", "u") or array.ndim == 0:
            raise TypeError(f"base_indices must be a sequence or a buffer of ints, not {type(base_indices).__name__}")
        raise ValueError(f"base_indices has the shape {array.shape}; it must have {num_dimensions} dimensions")
    if array.size == 0:
        return np.empty(array.shape, np.int32)
    if array.dtype.kind == "O":
        if all([isinstance(item, int) for item in array.ravel().tolist()]):
            raise ValueError(f"base_indices has {shown(max(array.ravel().tolist()))} in it; they must be ints from -1 to 2**31 - 1")
        raise TypeError(f"base_indices must be ints, not {type(base_indices).__name__} of {type(array.ravel()[0]).__name__}")
    if array.dtype.kind not in ("i", "u"):
        raise TypeError(f"base_indices must be ints, not {type(base_indices).__name__} of {array.dtype}")
    return array


def to_output_array(out: Any, pages: Int32s) -> Int32s:
    """The part of ``out`` to write: its front, or the fronts of its first rows."""
    try:
        array: npt.NDArray[Any] = np.asarray(memoryview(out))  # not of a list: it would be copied and the copy written; a TypeError here
    except TypeError:
        raise TypeError(f"out must be a writable int32 buffer, not {type(out).__name__}") from None
    if array.ndim != pages.ndim or array.dtype != np.int32:
        raise TypeError(f"out has the dtype {array.dtype} and {array.ndim} dimensions; it must be of int32 and have {pages.ndim}")
    if not array.flags.writeable:
        raise ValueError("out is read-only; it must be writable")
    for axis in range(pages.ndim):
        if array.shape[axis] < pages.shape[axis]:
            raise ValueError(f"out has the shape {array.shape}; it must be at least {pages.shape}")
    front: Int32s = array[tuple([slice(0, length) for length in pages.shape])]
    return front


def compute_page_indices(base: Integers, scale: int, expansion: int, offset: int) -> Int32s:
    """``base * scale + offset``, expanded; `BAD_PAGE_INDEX` stays."""
    if base.size == 0:
        return np.empty((*base.shape[:-1], base.shape[-1] * expansion), np.int32)
    smallest = int(base.min())
    _validate_slot_ids(smallest, int(base.max()), scale, expansion, BAD_PAGE_INDEX)
    pages: Int32s = base.astype(np.int32)  # a copy
    pages *= scale
    pages += offset
    pages = _expand(pages, expansion)
    if smallest < 0:
        is_bad = base < 0
        pages[is_bad if expansion == 1 else np.repeat(is_bad, expansion, axis=-1)] = BAD_PAGE_INDEX
    return pages


def fill_scratch_indices(
    base: Integers, pages: Int32s, scratch: ScratchDesc, scale: int, expansion: int, layer_offset: int, pages_per_block: int
) -> None:
    """Fill in one sequence's page indices of the scratch blocks, which its base indices leave out."""
    beg, end = scratch.range.beg, scratch.range.end
    if beg < 0 or end > base.size:
        raise ValueError(f"the scratch blocks are [{beg}, {end}), but there are base indices for {base.size} blocks")
    if int(base[beg:end].max()) != BAD_PAGE_INDEX:
        raise ValueError(
            f"scratch blocks [{beg}, {end}) have base page indices of their own; base indices and scratch must be taken"
            f" from the sequence after the same resize"
        )
    blocks_per_slot = scale // pages_per_block
    num_slots = (end - beg + blocks_per_slot - 1) // blocks_per_slot
    if len(scratch.slot_ids) < num_slots:
        raise ValueError(
            f"{end - beg} scratch blocks, {blocks_per_slot} to a slot, take {num_slots} slots; scratch has {len(scratch.slot_ids)}"
        )
    slot_ids = np.asarray(scratch.slot_ids[:num_slots], dtype=np.int64)
    _validate_slot_ids(int(slot_ids.min()), int(slot_ids.max()), scale, expansion, 0)
    block = np.arange(end - beg, dtype=np.int64)
    sub_page = (block % blocks_per_slot * pages_per_block + layer_offset) % scale
    filled = (slot_ids[block // blocks_per_slot] * scale + sub_page).astype(np.int32)
    pages[beg * expansion : end * expansion] = _expand(filled, expansion)


def _expand(pages: Int32s, expansion: int) -> Int32s:
    if expansion == 1:
        return pages
    expanded: Int32s = np.empty((*pages.shape, expansion), np.int32)
    np.add((pages * expansion)[..., np.newaxis], np.arange(expansion, dtype=np.int32), out=expanded)
    return expanded.reshape((*pages.shape[:-1], pages.shape[-1] * expansion))


def _validate_slot_ids(smallest: int, largest: int, scale: int, expansion: int, minimum: int) -> None:
    if smallest < minimum:
        raise ValueError(f"one of base_indices, a slot id, is {smallest}, less than {minimum}")
    pages_per_slot = scale * expansion
    if (largest + 1) * pages_per_slot - 1 > INT32_MAX:
        raise ValueError(
            f"slot id {largest} of base_indices has page indices up to {(largest + 1) * pages_per_slot - 1}, which int32 cannot hold:"
            f" at {pages_per_slot} pages per slot it can address {(INT32_MAX + 1) // pages_per_slot} slots"
        )
