"""Which pool group should have some of another's memory, by the tokens that each byte more would save (`RoomLosses`).

A pool group's *value* is the best of its parts: the tokens that prompts missed for want of so much room, over its bytes. Bytes move from
the pool group of least value to that of most, where that is over three times as much, and what it saves is more than a 256th of all
prompt tokens: as many as were missed for, at most an eighth of the giver, and none that open sequences need. The taker's value falls with
each move, and the giver's rises. After a move in the other direction the next one is half as large, a 64th at least; else twice as large
again: so they settle even where a small step too far costs much.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from ..reuse.room_losses import EIGHTH, NUM_PARTS

_STEPS: Final = 64
_MOST_STEP: Final = 8
_LEAST_SHARE: Final = 256
_LEAST_RATIO: Final = 3


@final
@mypyc_attr(native_class=True)
class RoomMove:
    __slots__ = ("giver", "taker", "num_bytes", "step")

    giver: Final[int]
    taker: Final[int]
    num_bytes: Final[int]
    step: Final[int]
    """The most of the giver's bytes, in 64ths."""

    def __init__(self, giver: int, taker: int, num_bytes: int, step: int) -> None:
        self.giver = giver
        self.taker = taker
        self.num_bytes = num_bytes
        self.step = step


@final
@mypyc_attr(native_class=True)
class RoomMoves:
    __slots__ = ("_slot_bytes", "_last")

    _slot_bytes: Final[list[int]]
    _last: RoomMove | None

    def __init__(self, slot_bytes: list[int]) -> None:
        """``slot_bytes``, and all lists below, are by pool group."""
        self._slot_bytes = slot_bytes
        self._last = None

    def find(self, room: list[int], least: list[int], tokens: list[int], num_tokens: int) -> RoomMove | None:
        """The next move, of ``room`` bytes, of which open sequences need ``least``; None if nothing clearly pays.

        ``tokens``, ``num_tokens``: as `RoomLosses` has them.
        """
        missed: list[int] = []
        needed: list[int] = []
        for pool_group, num_bytes in enumerate(room):
            most, at = _compute_value(tokens[pool_group * NUM_PARTS : (pool_group + 1) * NUM_PARTS], num_bytes)
            missed.append(most)
            needed.append(at)
        taker = 0
        for pool_group in range(1, len(room)):
            if missed[pool_group] * needed[taker] > missed[taker] * needed[pool_group]:
                taker = pool_group
        giver = -1
        for pool_group in range(len(room)):
            if pool_group == taker or room[pool_group] <= least[pool_group]:
                continue
            if giver < 0 or missed[pool_group] * needed[giver] < missed[giver] * needed[pool_group]:
                giver = pool_group
        if giver < 0 or missed[taker] * _LEAST_SHARE <= num_tokens:
            return None
        if missed[taker] * needed[giver] <= _LEAST_RATIO * missed[giver] * needed[taker]:
            return None
        step = self._next_step(giver, taker)
        num_bytes = min(needed[taker], room[giver] * step // _STEPS, room[giver] - least[giver])
        if num_bytes < max(self._slot_bytes[taker], self._slot_bytes[giver]):
            return None
        return RoomMove(giver, taker, num_bytes, step)

    def _next_step(self, giver: int, taker: int) -> int:
        last = self._last
        if last is None:
            return _MOST_STEP
        if giver == last.taker and taker == last.giver:
            return max(last.step // 2, 1)
        return min(last.step * 2, _MOST_STEP)

    def record(self, move: RoomMove) -> None:
        """That move was made."""
        self._last = move


def _compute_value(tokens: list[int], num_bytes: int) -> tuple[int, int]:
    """Tokens, and the bytes that would have saved them: the most tokens per byte of any number of parts, from the first one on."""
    best = 0
    at = max(num_bytes, 1)
    missed = 0
    for part, num_tokens in enumerate(tokens):
        missed += num_tokens
        needed = max((num_bytes << part) // EIGHTH, 1)
        if missed * at > best * needed:
            best = missed
            at = needed
    return best, at
