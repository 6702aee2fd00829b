"""Page indices by hand: both modes, expansion, scratch, and every kind of input and refusal."""

import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kv_cache_manager_v2.base.ids import BAD_PAGE_INDEX, PageIndexMode
from kv_cache_manager_v2.base.ranges import HalfOpenRange
from kv_cache_manager_v2.layout.page_index import PageIndexConverter
from kv_cache_manager_v2.layout.scratch_desc import ScratchDesc

SHARED, PER_LAYER = PageIndexMode.SHARED, PageIndexMode.PER_LAYER

# A slot of six sub-pages; the layer has two of them, this buffer is number 3.
CONVERTER = PageIndexConverter(6, 1, 3, 2)


def scratch(beg: int, end: int, slot_ids: Sequence[int]) -> ScratchDesc:
    return ScratchDesc(HalfOpenRange(beg, end), slot_ids)


def test_shared_leaves_the_offset_to_the_base_address() -> None:
    assert CONVERTER([0, 4, BAD_PAGE_INDEX, 1]).tolist() == [0, 24, -1, 6]
    assert CONVERTER([0, 4], SHARED).tolist() == [0, 24]


def test_scratch_blocks_fill_a_slot_before_the_next() -> None:
    # 6 // 2 = 3 blocks to a slot. Blocks 1, 2, 3 in slot 7: sub-pages 0 + 3, 2 + 3, (4 + 3) % 6 = 1. Block 4 in slot 2.
    base = [0, -1, -1, -1, -1, 9]
    expected = [3, 42 + 3, 42 + 5, 42 + 1, 12 + 3, 57]
    assert CONVERTER(base, PER_LAYER, scratch(1, 5, [7, 2])).tolist() == expected


def test_scratch_with_expansion() -> None:
    # Block 0 in slot 4, sub-page 1; block 1 in slot 4, sub-page (1 + 1) % 2 = 0.
    converter = PageIndexConverter(2, 2, 1, 1)
    assert converter([-1, -1, 3], PER_LAYER, scratch(0, 2, [4])).tolist() == [18, 19, 16, 17, 14, 15]


@pytest.mark.parametrize(
    "base",
    [
        [1, -1, 2],
        (1, -1, 2),
        np.array([1, -1, 2], np.int32),
        np.array([1, -1, 2], np.int64),
        np.array([1, 0, -1, 0, 2], np.int32)[::2],
        array.array("i", [1, -1, 2]),
        memoryview(array.array("i", [1, -1, 2])),
        np.array([1, -1, 2], np.int32).data,
    ],
)
def test_any_sequence_or_buffer(base: Any) -> None:
    pages = CONVERTER(base, PER_LAYER)
    assert pages.dtype == np.int32 and pages.tolist() == [9, -1, 15]


def test_inputs_stay_as_they_were() -> None:
    base = np.array([1, -1, 2], np.int32)
    CONVERTER(base)
    CONVERTER(base, PER_LAYER, scratch(1, 2, [5]))
    assert base.tolist() == [1, -1, 2]


def test_into_the_front_of_a_buffer() -> None:
    out = array.array("i", [77] * 5)
    assert PageIndexConverter(2, 2, 0, 1).convert_into([3, -1], out) == 4
    assert out.tolist() == [12, 13, -1, -1, 77]


def test_a_batch() -> None:
    base = np.array([[0, 1, -1], [-1, -1, 2]], np.int32)
    out = np.full((3, 4), 77, np.int32)
    assert CONVERTER.convert_batch_into(base, out, PER_LAYER, [None, scratch(0, 2, [5])]) == 3
    assert out.tolist() == [[3, 9, -1, 77], [33, 35, 15, 77], [77] * 4]
    assert CONVERTER.convert_batch_into(base, out) == 3
    assert out[:2, :3].tolist() == [[0, 6, -1], [-1, -1, 12]]


@pytest.mark.parametrize(
    ("base", "mode", "desc"),
    [
        ([-1], None, scratch(0, 1, [1])),  # the mode must be given along with scratch
        ([-1], SHARED, scratch(0, 1, [1])),  # scratch needs PER_LAYER
        ([-1], PER_LAYER, scratch(0, 2, [1])),  # more blocks than base indices
        ([-1] * 4, PER_LAYER, scratch(0, 4, [1])),  # 4 blocks, 3 to a slot
        ([2], PER_LAYER, scratch(0, 1, [1])),  # a block with a page of its own
        ([-1], PER_LAYER, scratch(0, 1, [-1])),
        ([-2], PER_LAYER, None),
        ([[1]], PER_LAYER, None),
        ([2**31], PER_LAYER, None),
        ([2**70], PER_LAYER, None),
        ([-1], PER_LAYER, scratch(0, 1, [2**31])),
    ],
)
def test_bad_values_leave_the_output_alone(base: Any, mode: PageIndexMode | None, desc: ScratchDesc | None) -> None:
    out = np.full(8, 77, np.int32)
    with pytest.raises(ValueError):
        CONVERTER(base, mode, desc)
    with pytest.raises(ValueError):
        CONVERTER.convert_into(base, out, mode, desc)
    assert (out == 77).all()


@pytest.mark.parametrize("base", [[1.0], ["1"], np.array([True])])
def test_wrong_types(base: Any) -> None:
    with pytest.raises(TypeError):
        CONVERTER(base)


def test_bad_outputs() -> None:
    not_int32: list[Any] = [np.zeros(4, np.int64), np.zeros((2, 2), np.int32), [0, 0, 0]]
    for out in not_int32:
        with pytest.raises(TypeError):
            CONVERTER.convert_into([1], out)
    read_only = np.zeros(4, np.int32)
    read_only.flags.writeable = False
    for out in (np.zeros(0, np.int32), read_only):
        with pytest.raises(ValueError):
            CONVERTER.convert_into([1], out)
    for rows in ([None], [None] * 3):
        with pytest.raises(ValueError):
            CONVERTER.convert_batch_into(np.zeros((2, 1), np.int32), np.zeros((2, 1), np.int32), PER_LAYER, rows)


def test_int32_is_used_to_its_end() -> None:
    # (2**31 - 1) // 6 = 357913941: that slot's last page index would be 2147483651, its predecessor's is 2147483645.
    assert CONVERTER([357913940], PER_LAYER).tolist() == [2147483643]
    with pytest.raises(ValueError):
        CONVERTER([357913941], PER_LAYER)
    with pytest.raises(ValueError):
        CONVERTER([357913941])
    assert PageIndexConverter(1, 2**20, 0, 1)([2047])[-1] == 2**31 - 1
    with pytest.raises(ValueError):
        PageIndexConverter(1, 2**20, 0, 1)([2048])


def test_bad_converters() -> None:
    for scale, expansion, offset, pages_per_block in (
        (0, 1, 0, 1),
        (1, 0, 0, 1),
        (4, 1, 4, 1),
        (4, 1, -1, 1),
        (4, 1, 0, 0),
        (4, 1, 0, 5),
        (2**16, 2**15, 0, 1),
    ):
        with pytest.raises(ValueError):
            PageIndexConverter(scale, expansion, offset, pages_per_block)


def test_converters_and_descs_are_values() -> None:
    assert CONVERTER == PageIndexConverter(6, 1, 3, 2) and hash(CONVERTER) == hash(PageIndexConverter(6, 1, 3, 2))
    assert CONVERTER != PageIndexConverter(6, 1, 2, 2)
    assert (CONVERTER.scale, CONVERTER.expansion) == (6, 1)
    assert (CONVERTER.layer_offset, CONVERTER.scratch_pages_per_block) == (3, 2)
    assert CONVERTER.scratch_blocks_per_slot == 3
    slot_ids = [1, 2]
    desc = scratch(0, 4, slot_ids)
    slot_ids.append(3)
    assert desc == scratch(0, 4, (1, 2)) and desc != scratch(0, 4, (1, 3)) and desc.slot_ids == (1, 2)
    assert desc != scratch(0, 5, (1, 2)) and hash(desc) == hash(scratch(0, 4, (1, 2)))
    others: list[object] = [3, (6, 1, 3, 2), None]
    assert not any(value == other or not value != other for value in (CONVERTER, desc) for other in others)
    for changed in (PageIndexConverter(7, 1, 3, 2), PageIndexConverter(6, 2, 3, 2), PageIndexConverter(6, 1, 3, 1)):
        assert CONVERTER != changed
