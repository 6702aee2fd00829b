"""How the slots of one file lie in several folders: slot ``i`` in folder ``i mod n``, as the file's slot ``i div n`` there.

    slot      0    1    2    3    4    5
    folder    0    1    2    0    1    2
    there     0    0    0    1    1    1
"""

import os
from typing import Final, final



@final
class Stripe:
    __slots__ = ("folders", "slot_bytes")

    def __init__(self, folders: list[str], slot_bytes: int) -> None:
        self.folders: Final = folders
        self.slot_bytes: Final = slot_bytes

    def find(self, offset: int) -> tuple[int, int, int]:
        """The place of that byte of the whole file: the folder, the offset in its file, and how many bytes follow there in one piece."""
        slot, inside = divmod(offset, self.slot_bytes)
        there, part = divmod(slot, len(self.folders))
        return part, there * self.slot_bytes + inside, self.slot_bytes - inside

    def count_bytes(self, part: int, num_bytes: int) -> int:
        """How many of the first ``num_bytes`` of the whole file lie in that folder."""
        slot, inside = divmod(num_bytes, self.slot_bytes)
        there, last = divmod(slot, len(self.folders))
        return (there + (1 if part < last else 0)) * self.slot_bytes + (inside if part == last else 0)

    def first_missing(self, part: int, num_bytes: int) -> int:
        """The first byte of the whole file that lies in that folder and is not among the first ``num_bytes`` of its file there."""
        there, inside = divmod(num_bytes, self.slot_bytes)
        return (there * len(self.folders) + part) * self.slot_bytes + inside

    def path_at(self, name: str, offset: int) -> str:
        """The path of the file that has that byte."""
        return os.path.join(self.folders[self.find(offset)[0]], name)


def make_stripe(folders: list[str], slot_bytes: int) -> Stripe | None:
    """None for a single folder."""
    return Stripe(folders, slot_bytes) if len(folders) > 1 else None
