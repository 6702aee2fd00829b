"""Errors of the reference codecs: as stated, made once, and none where a number is not packed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kv_cache_manager_v2 import BufferId, CoalescedBuffer, DataRole, ExternalDevice, HostDevice, LayerGroupId, LayerId, SlotDescVariant
from kv_cache_manager_v2.codecs.float8_codec import Float8Codec
from kv_cache_manager_v2.codecs.int4_codec import Int4Codec
from kv_cache_manager_v2.codecs.scaled_codec import ScaledCodec

RUN = 32
DTYPES = ("float32", "float16", "bfloat16")


def to_bytes(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Rounded to the type: bfloat16 by dropping bits."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return np.ascontiguousarray(values, dtype).view(np.uint8)


def to_floats(data: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bfloat16":
        return (np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(data).view(dtype).astype(np.float32)


def codecs() -> list[ScaledCodec]:
    return [make(dtype, RUN) for dtype in DTYPES for make in (Float8Codec, Int4Codec)]


def dtype_of(codec: ScaledCodec) -> str:
    return codec.identity.split(" ")[1]


def random_pages(dtype: str) -> np.ndarray[Any, Any]:
    """Runs of every magnitude that the type has, some of zeros, some with outliers."""
    random = np.random.default_rng(1)
    values = random.standard_normal((200, 4, RUN)).astype(np.float32)
    largest = 4.0 if dtype == "float16" else 37.0
    values *= (10.0 ** random.uniform(-largest - 1, largest, (200, 4, 1))).astype(np.float32)
    values[::7, 0] = 0
    values[::5, 1, 3] *= 100 if dtype == "float16" else 1
    with np.errstate(over="ignore"):
        return to_bytes(np.clip(values, -60000, 60000).reshape(200, -1) if dtype == "float16" else values.reshape(200, -1), dtype)


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.identity)
def test_the_error_is_as_stated(codec: ScaledCodec) -> None:
    dtype = dtype_of(codec)
    pages = random_pages(dtype)
    before = to_floats(pages, dtype).astype(np.float64).reshape(-1, RUN)
    packed = codec.pack(pages)
    assert packed.shape == (200, codec.packed_bytes("key", pages.shape[1]))
    after = to_floats(codec.unpack(packed), dtype).astype(np.float64).reshape(-1, RUN)
    most = np.abs(before).max(axis=1, keepdims=True)
    # The smallest numbers that the types have normally: below them a scale cannot fall.
    least = 2.0**-24 if dtype == "float16" else 2.0**-126
    share = np.where(most < (2.0**-17 if dtype == "float16" else 2.0**-119), 7, 13)
    if isinstance(codec, Float8Codec):
        bound = np.maximum(np.maximum(np.abs(before) / 16, most / 229376), 2.0**-127)
    else:
        bound = np.maximum(most / share, least)
    assert (np.abs(after - before) <= bound).all()
    assert (np.abs(after - before) > 0).mean() > 0.5


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.identity)
def test_the_error_is_made_once(codec: ScaledCodec) -> None:
    """What was unpacked packs to bytes that unpack to the same, also at the ends of the type's range."""
    dtype = dtype_of(codec)
    pages = random_pages(dtype)
    largest = 65504.0 if dtype == "float16" else float(np.float32(2.0**127 * (2 - 2.0**-7)))
    ends = np.array([[largest, -largest, 0.97 * largest, 1e-7] + [0.1 * largest] * (RUN - 4)] * 4).reshape(1, -1)
    tiny = np.array([[6e-8 if dtype == "float16" else 2e-38] * RUN] * 4).reshape(1, -1)
    once = codec.unpack(codec.pack(np.concatenate((pages, to_bytes(ends, dtype), to_bytes(tiny, dtype)))))
    assert np.isfinite(to_floats(once, dtype)).all()
    assert (codec.unpack(codec.pack(once)) == once).all()


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.identity)
def test_infinities_come_back_finite_and_no_number_stays_none(codec: ScaledCodec) -> None:
    dtype = dtype_of(codec)
    values = np.linspace(-1, 1, RUN, dtype=np.float32)[None]
    values[0, :3] = np.inf, -np.inf, np.nan
    after = to_floats(codec.unpack(codec.pack(to_bytes(values, dtype))), dtype)[0]
    assert after[0] >= 1 and after[1] <= -1 and np.isnan(after[2])
    assert (np.abs(after[3:] - values[0, 3:]) <= 1 / 13).all()


def page_of(*roles: str, size: int = 4 * RUN) -> SlotDescVariant:
    buffer_ids = tuple(BufferId(LayerId(index), DataRole(role)) for index, role in enumerate(roles))
    return SlotDescVariant(LayerGroupId(0), (CoalescedBuffer(size, buffer_ids),))


def test_a_packed_page_is_scales_codes_and_what_is_kept() -> None:
    """A buffer of 2 runs of bfloat16 has 128 bytes: packed 2 * (2 + 32) as float8 and 2 * (2 + 16) as int4; pages fill 16 bytes."""
    page = page_of("key", "rope")
    assert Float8Codec("bfloat16", RUN).cold_bytes(page) == -(-2 * 68 // 16) * 16
    assert Int4Codec("bfloat16").cold_bytes(page) == -(-2 * 36 // 16) * 16
    assert Float8Codec("bfloat16", RUN, ["key"]).cold_bytes(page) == -(-(68 + 128) // 16) * 16


def test_names_say_what_is_in_a_page() -> None:
    names = {codec.identity for codec in codecs()} | {Int4Codec("float16", 64).identity, Float8Codec("float16", RUN, ["key"]).identity}
    assert len(names) == 8
    one, two, three = (Int4Codec("float16", RUN, roles).identity for roles in (["key", "rope"], ["rope", "key", "key"], ["key,rope"]))
    assert one == two != three and Int4Codec("float16", RUN, ["all"]).identity != Int4Codec("float16", RUN).identity
    assert not any(codec.is_lossless for codec in codecs())


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("float64", RUN), ValueError, "float32, float16, bfloat16"),
        ((7, RUN), TypeError, "dtype must be a str"),
        (("float16", 0), ValueError, "values_per_scale"),
        (("float16", 3), ValueError, "must be even"),
        (("float16", RUN, "key"), TypeError, "roles must be a sequence"),
        (("float16", RUN, [3]), TypeError, "one of roles"),
        (("float16", RUN, []), ValueError, "roles is empty"),
    ],
)
def test_wrong_arguments_are_named(arguments: Sequence[Any], error: type[Exception], text: str) -> None:
    for make in (Float8Codec, Int4Codec):
        with pytest.raises(error, match=text):
            make(*arguments)


def test_buffers_without_whole_runs_say_the_way_out() -> None:
    with pytest.raises(ValueError, match="'key' has 48 bytes in a page, no multiple of values_per_scale=32 numbers of type bfloat16"):
        Float8Codec("bfloat16", RUN).cold_bytes(page_of("key", size=48))


def test_devices_that_run_no_host_kernels_are_refused() -> None:
    device = HostDevice()
    Float8Codec("bfloat16", RUN).validate(device)
    device.close()
    with pytest.raises(ValueError, match="give a HostDevice, or a ColdPageCodec of your own"):
        Float8Codec("bfloat16", RUN).validate(ExternalDevice())
