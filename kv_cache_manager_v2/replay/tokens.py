"""Tokens of a request, made from the ids of its segments.

A prompt is a run of *segments*: 512-token blocks of a trace, a system prompt, a document, a user's message, an earlier
answer. A segment is a code and a length; equal codes mean equal tokens, as far as the shorter one goes. Nothing is
stored: tokens are computed from (code, offset) by integer mixing, whole prompts at a time.

The first token of a segment *is* its code, the others come from a range that no first token is in, and what a model
generated comes from ranges that no prompt segment uses:

    [0, 2**29)          first token of a prompt segment         [2**30, 3 * 2**29)   first token of an answer
    [2**29, 2**30)      its other tokens                        [3 * 2**29, 2**31)   its other tokens

So two token runs differ exactly where their segments do, never later by chance, and what is reusable follows from the
codes alone (`prefix_ledger`).
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.int32]
SegmentArray: TypeAlias = npt.NDArray[np.int64]

NUM_SEGMENT_IDS: Final = 1 << 29
"""Ids of prompt segments and of requests are under this."""

_REST_OFFSET: Final = 1 << 29
_REST_MASK: Final = (1 << 29) - 1
_ANSWER_OFFSET: Final = 1 << 30

_OFFSET_FACTOR: Final = np.uint32(0x9E3779B1)
_MIX_1: Final = np.uint32(0x7FEB352D)
_MIX_2: Final = np.uint32(0x846CA68B)
_SHIFT_15: Final = np.uint32(15)
_SHIFT_16: Final = np.uint32(16)


def answer_segment(request_id: int) -> int:
    """The code of what the model generates for this request."""
    return NUM_SEGMENT_IDS + request_id


def make_tokens(codes: SegmentArray, lengths: SegmentArray) -> Tokens:
    """The tokens of these segments, one after the other. Every length is at least 1."""
    if len(codes) == 0:
        return np.empty(0, dtype=np.int32)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    # One mixed number per token from code * A + offset * B; the start of each segment is taken out of the running
    # position beforehand, so that a single `repeat` per prompt is enough.
    bases = _mixed(codes.astype(np.uint32)) - starts.astype(np.uint32) * _OFFSET_FACTOR
    tokens = np.arange(int(ends[-1]), dtype=np.uint32)
    tokens *= _OFFSET_FACTOR
    tokens += np.repeat(bases, lengths)
    tokens = _mixed(tokens)
    tokens &= np.uint32(_REST_MASK)
    is_answer = codes >= NUM_SEGMENT_IDS
    rest_offsets = np.where(is_answer, _REST_OFFSET + _ANSWER_OFFSET, _REST_OFFSET).astype(np.uint32)
    if bool(is_answer.any()):
        tokens |= np.repeat(rest_offsets, lengths)
    else:
        tokens |= np.uint32(_REST_OFFSET)
    tokens[starts] = np.where(is_answer, codes - NUM_SEGMENT_IDS + _ANSWER_OFFSET, codes).astype(np.uint32)
    return tokens.view(np.int32)


def _mixed(numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    numbers = numbers ^ (numbers >> _SHIFT_16)
    numbers *= _MIX_1
    numbers ^= numbers >> _SHIFT_15
    numbers *= _MIX_2
    numbers ^= numbers >> _SHIFT_16
    return numbers
