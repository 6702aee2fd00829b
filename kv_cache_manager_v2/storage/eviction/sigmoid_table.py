"""The logistic function as a table of integers: the same numbers on every machine, without `exp` of a C library.

``table[(x + 16) * 128]`` is ``65536 / (1 + exp(-x))``, rounded, for x from -16 to 16; at least 1, as nothing is quite impossible.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

SIGMOID_BITS: Final = 16
ONE: Final = 1 << SIGMOID_BITS
LEAST_LOGIT: Final = -16.0
MOST_LOGIT: Final = 16.0
STEPS_PER_UNIT: Final = 128
NUM_ENTRIES: Final = 4097
_HALF: Final = NUM_ENTRIES // 2
_PRECISION: Final = 96
_NUM_TERMS: Final = 16


def make_sigmoid_table() -> vec[i64]:
    """Of Python's integers of any length: exp(-1/128) from its series, and powers of it, each to 96 bits."""
    one = 1 << _PRECISION
    step = 0
    term = one
    for number in range(1, _NUM_TERMS):
        step += term
        term = -term // (STEPS_PER_UNIT * number)
    table = vec[i64]([0] * NUM_ENTRIES)
    power = one
    for distance in range(_HALF + 1):
        # 1 / (1 + e**-x) for x below 0 is e**x / (1 + e**x).
        low = ((power << SIGMOID_BITS) + (one + power) // 2) // (one + power)
        if low < 1:
            low = 1
        table[_HALF - distance] = low
        table[_HALF + distance] = ONE - low
        power = (power * step) >> _PRECISION
    return table


SIGMOID_TABLE: Final = make_sigmoid_table()
