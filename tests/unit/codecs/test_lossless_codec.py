"""The lossless codec: every byte comes back, whatever the bytes are, and a packed page is never longer than its slot."""

import zlib
from typing import Any

import numpy as np
import pytest
from small_models import attention_layers
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import HostDevice
from kv_cache_manager_v2.codecs.lossless_codec import LosslessCodec
from kv_cache_manager_v2.testing import SimulatedDevice

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}


def rows_of(seed: int, count: int, num_bytes: int) -> np.ndarray[Any, Any]:
    """From one value in all bytes to random ones."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (count, num_bytes), np.uint8)
    for number, row in enumerate(rows):
        row[:] = row % (1 + 254 * number // max(1, count - 1)) if number % 3 else np.sort(row)
    return rows


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("num_numbers", [1, 2, 3, 64, 1000])
def test_every_byte_comes_back(dtype: str, num_numbers: int) -> None:
    codec = LosslessCodec(dtype)
    num_bytes = num_numbers * DTYPES[dtype]
    for seed in range(5):
        rows = rows_of(seed, 20, num_bytes)
        packed = codec.pack(rows)
        assert packed.shape == (20, codec.packed_bytes("key", num_bytes)) == (20, 4 + num_bytes)
        assert (codec.unpack(packed) == rows).all()
        # By the length of what zlib itself makes: what does not shrink is as it was.
        planes = [zlib.compress(row.reshape(-1, DTYPES[dtype]).T.tobytes(), 1) for row in rows]
        for row, one, data in zip(rows, packed, planes):
            length = int.from_bytes(one[:4].tobytes(), "little")
            assert length == (0 if len(data) >= num_bytes else len(data))
            assert one[4:].tobytes() == (row.tobytes() if length == 0 else data.ljust(num_bytes, b"\0"))


def test_keys_of_one_sign_shrink_and_noise_does_not() -> None:
    codec = LosslessCodec("float32")
    random = np.random.default_rng(3)
    numbers = random.uniform(1, 2, (1, 4096)).astype(np.float32).view(np.uint8)
    noise = random.integers(0, 256, numbers.shape, np.uint8)
    lengths = [int.from_bytes(codec.pack(rows)[0, :4].tobytes(), "little") for rows in (numbers, noise)]
    # Of four planes that of the exponents is one value.
    assert 0 < lengths[0] < 0.9 * numbers.size and lengths[1] == 0


def test_damaged_pages_are_named() -> None:
    codec = LosslessCodec("bfloat16")
    packed = codec.pack(np.zeros((1, 4096), np.uint8))
    for begin, value, text in ((4, 255, "damaged: Error"), (0, 1, "damaged"), (2, 255, "damaged")):
        altered = packed.copy()
        altered[0, begin] = value
        with pytest.raises(ValueError, match=text):
            codec.unpack(altered)
    longer = packed.copy()
    data = zlib.compress(bytes(1 << 24))
    longer[0, :4] = np.frombuffer(len(data).to_bytes(4, "little"), np.uint8)
    with pytest.raises(ValueError, match="damaged"):
        codec.unpack(longer)


def test_wrong_arguments_are_named() -> None:
    for arguments, error, text in (
        (("int8",), ValueError, "float32, float16, bfloat16"),
        (("float16", 0), ValueError, "level"),
        (("float16", 10), ValueError, "level"),
        (("float16", "fast"), TypeError, "level"),
    ):
        with pytest.raises(error, match=text):
            LosslessCodec(*arguments)
    with pytest.raises(ValueError, match="3 bytes in a page, which are no whole numbers of type float16"):
        LosslessCodec("float16").packed_bytes("key", 3)
    assert LosslessCodec("float16").is_lossless and LosslessCodec("float16", 9).identity == LosslessCodec("float16", 1).identity


@pytest.mark.parametrize("lower", [[("host", 9)], [("disk", 9)], [("host", 5), ("disk", 9)]])
@pytest.mark.parametrize("device_of", [HostDevice, lambda: SimulatedDevice(5)], ids=["host", "simulated"])
def test_tiers_keep_their_promises_byte_for_byte(device_of: Any, lower: list[tuple[str, int]]) -> None:
    """Every byte that is read is checked; no level has a slot more or less for it, but for the bytes that say how long a page is."""
    windows = (None, 6)
    assert all([buffer.size % 4 == 0 for layer in attention_layers(windows, TOKENS_PER_BLOCK) for buffer in layer.buffers])
    with Bench(tiered_config(8, lower, windows=windows), device_of(), codec=LosslessCodec("bfloat16")) as bench:
        held = [bench.suspended(number, 2 * TOKENS_PER_BLOCK, commit=number == 1) for number in range(3)]
        for _ in range(3):
            for kv_cache in held:
                assert kv_cache.resume()
                bench.check(kv_cache)
                kv_cache.suspend()
        assert bench.num_copied(1, 0) + bench.num_copied(0, 1) > 0
