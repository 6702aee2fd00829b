"""The tokens of a batch's step, one for each row, packed; from a list, or any array of one dimension."""

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
from mypy_extensions import i64
from rawref import pack_int32

from ..base.checks import has_attribute, is_bytes, shown, to_int, to_list
from ..reuse.token_packing import MAX_TOKEN_ID, TOKEN_BYTES, view_of

_ARRAY: Final[Any] = np.ndarray
_INT32: Final[Any] = np.dtype(np.int32)


def pack_step_tokens(tokens: object, num_rows: i64) -> bytes:
    """As native int32, not looked at where they are int32 already; nothing for None.

    `TypeError` if they are no integers, `ValueError` unless there is one for each row, each from -1 to 2**31 - 1.
    """
    if tokens is None:
        return b""
    packed: bytes | None = None
    given: Any = tokens
    # What engines give. Few questions: each look into numpy costs a microsecond and more where a model's step has emptied the caches.
    if type(tokens) is _ARRAY and given.dtype is _INT32 and given.ndim == 1:
        packed = given.tobytes()
    elif type(tokens) is list:
        packed = pack_int32(cast("list[object]", tokens), 0, len(tokens), -1)
    if packed is None:
        packed = _pack_list(tokens) if _is_list(tokens) else _pack_array(tokens)
    if len(packed) // TOKEN_BYTES != num_rows:
        raise ValueError(f"step: tokens has {len(packed) // TOKEN_BYTES} ids for {num_rows} members; give -1 where there is none")
    return packed


def _is_list(tokens: object) -> bool:
    """Whether it is a sequence of ints that is no array of them."""
    return isinstance(tokens, (list, tuple)) or (view_of(tokens) is None and isinstance(tokens, Sequence) and not isinstance(tokens, str))


def _pack_list(tokens: object) -> bytes:
    # A bool is a token here too, as in `commit`.
    numbers = [int(token) if isinstance(token, bool) else to_int(token, "one of tokens") for token in to_list(tokens, "tokens")]
    for position, number in enumerate(numbers):
        if not -1 <= number <= MAX_TOKEN_ID:
            raise ValueError(_out_of_range(position, number))
    return np.array(numbers, np.int32).tobytes()


def _pack_array(tokens: object) -> bytes:
    if isinstance(tokens, str) or is_bytes(tokens) or not (has_attribute(tokens, "__array__") or view_of(tokens) is not None):
        raise TypeError(f"tokens must be a sequence of ids or an array of integers, not {type(tokens).__name__}")
    array: Any = np.asarray(tokens)
    if array.ndim == 0:
        raise TypeError(f"tokens must be a sequence of ids or an array of integers, not {shown(tokens)}")
    if array.ndim != 1:
        raise ValueError(f"tokens must have one dimension, not {array.ndim}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"tokens must be integers, not {array.dtype}")
    wrong = (array < -1) | (array > MAX_TOKEN_ID)
    if np.logical_or.reduce(wrong):
        position = int(wrong.argmax())
        raise ValueError(_out_of_range(position, int(array[position])))
    converted: bytes = array.astype(np.int32).tobytes()
    return converted


def _out_of_range(position: int, number: int) -> str:
    return f"step: tokens[{position}] is {number}; ids are 0 <= id < 2**31, -1 says that there is none"
