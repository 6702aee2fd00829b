"""`FailedWrites` against a dictionary of bytes."""

import ctypes
import random

import pytest

from kv_cache_manager_v2.device.failed_writes import FailedWrites

SPACE = 60


@pytest.mark.parametrize("seed", range(6))
def test_against_a_dictionary(seed: int) -> None:
    generator = random.Random(seed)
    table = FailedWrites()
    expected: dict[int, int | None] = {}
    memory = ctypes.create_string_buffer(SPACE)
    address = ctypes.addressof(memory)
    for _ in range(500):
        beg = generator.randrange(SPACE)
        end = generator.randrange(beg + 1, SPACE + 1)
        choice = generator.random()
        if choice < 0.3:
            data = generator.randbytes(end - beg)
            ctypes.memmove(address, data, len(data))
            table.keep(beg, address, end - beg)
            expected.update(zip(range(beg, end), data, strict=True))
        elif choice < 0.4:
            table.lose(beg, end - beg)
            expected.update(dict.fromkeys(range(beg, end)))
        elif choice < 0.6:
            (table.forget if choice < 0.5 else table.forget_unmapped)(beg, end - beg)
            for position in range(beg, end):
                expected.pop(position, None)
        else:
            ctypes.memset(address, 0, SPACE)
            missing = table.load(beg, address, end - beg)
            absent = [position for low, high in missing for position in range(low, high)]
            assert absent == [position for position in range(beg, end) if expected.get(position) is None]
            for position in range(beg, end):
                assert memory.raw[position - beg] == (expected.get(position) or 0)
        has_lost = any(position in expected and expected[position] is None for position in range(beg, end))
        assert table.has_lost(beg, end - beg) == has_lost
        assert table.is_empty == (not expected)
        assert table.num_bytes() == sum(value is not None for value in expected.values())
