"""Aligned host memory for one extent in transfer, allocated when first needed."""

from typing import Final, final


from .host_memory import PAGE_BYTES, commit_memory, decommit_memory, release_addresses, reserve_addresses


@final
class StagingMemory:
    """``num_bytes`` is a multiple of the page. Who creates it calls `close`."""

    __slots__ = ("num_bytes", "_address")

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes: Final = num_bytes
        self._address = 0

    def address(self) -> int:
        if self._address == 0:
            address = reserve_addresses(self.num_bytes, PAGE_BYTES)
            commit_memory(address, self.num_bytes)
            self._address = address
        return self._address

    def close(self) -> None:
        if self._address != 0:
            decommit_memory(self._address, self.num_bytes)
            release_addresses(self._address, self.num_bytes)
            self._address = 0
