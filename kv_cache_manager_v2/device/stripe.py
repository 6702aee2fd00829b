"""How the bytes of one file of slots lie in several folders: pure arithmetic, the same in every process.

The file is cut into *units* of whole slots. Units go to the folders in turn, each as often as its share says:

    shares 2 and 1      unit     0    1    2    3    4    5
                        folder   0    1    0    0    1    0
                        there    0    0    1    2    1    3     the unit's position in that folder's file
"""

import os
from typing import Final, final

from mypy_extensions import mypyc_attr

@final
@mypyc_attr(native_class=True)
class Stripe:
    """``folders`` and their ``shares``; ``unit_bytes`` is a multiple of the slots' size."""

    __slots__ = ("folders", "shares", "unit_bytes", "_pattern", "_ranks")

    folders: Final[list[str]]
    shares: Final[list[int]]
    unit_bytes: Final[int]
    _pattern: Final[list[int]]
    """The folder of each unit, for one round of all shares; then it repeats."""
    _ranks: Final[list[int]]
    """How many units of the round lie in the same folder before it."""

    def __init__(self, folders: list[str], shares: list[int], unit_bytes: int) -> None:
        self.folders = folders
        self.shares = shares
        self.unit_bytes = unit_bytes
        self._pattern = []
        self._ranks = []
        given = [0] * len(shares)
        for _unit in range(sum(shares)):
            part = _least_served(given, shares)
            self._pattern.append(part)
            self._ranks.append(given[part])
            given[part] += 1

    def find(self, offset: int) -> tuple[int, int, int]:
        """Where that byte of the whole file is: the folder, the offset in its file, and how many bytes follow there in one piece."""
        unit, inside = divmod(offset, self.unit_bytes)
        num_rounds, position = divmod(unit, len(self._pattern))
        part = self._pattern[position]
        there = num_rounds * self.shares[part] + self._ranks[position]
        return part, there * self.unit_bytes + inside, self.unit_bytes - inside

    def count_bytes(self, part: int, num_bytes: int) -> int:
        """How many of the first ``num_bytes`` of the whole file lie in that folder."""
        unit, inside = divmod(num_bytes, self.unit_bytes)
        num_rounds, position = divmod(unit, len(self._pattern))
        units = num_rounds * self.shares[part] + self._pattern[:position].count(part)
        return units * self.unit_bytes + (inside if self._pattern[position] == part else 0)

    def first_missing(self, part: int, num_bytes: int) -> int:
        """The first byte of the whole file that lies in that folder and is not among the first ``num_bytes`` of its file there."""
        there, inside = divmod(num_bytes, self.unit_bytes)
        num_rounds, rank = divmod(there, self.shares[part])
        positions = [index for index in range(len(self._pattern)) if self._pattern[index] == part]
        return (num_rounds * len(self._pattern) + positions[rank]) * self.unit_bytes + inside

    def path_at(self, name: str, offset: int) -> str:
        """The path of the file that has that byte."""
        return os.path.join(self.folders[self.find(offset)[0]], name)


def _least_served(given: list[int], shares: list[int]) -> int:
    """The folder that has the least of its share with one unit more; the first of several."""
    best = 0
    for index in range(1, len(shares)):
        if (given[index] + 1) * shares[best] < (given[best] + 1) * shares[index]:
            best = index
    return best
