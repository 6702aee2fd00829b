"""A client as Mooncake's, in this process: its codes, its registered memory, and calls that hang as they are told."""

import ctypes
import threading
from collections.abc import Sequence

NOT_FOUND, TOO_SMALL, NO_ROOM, UNREACHABLE = -704, -600, -200, -900


class FakeMooncake:
    """``failing``: a code that every call answers. ``thawed``: unset, calls hang. ``room``: values that fit."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.registered: dict[int, int] = {}
        self.failing: int | None = None
        self.thawed = threading.Event()
        self.thawed.set()
        self.room = 1 << 30
        self.is_closed = False
        self.most_keys = 0

    def register_buffer(self, address: int, num_bytes: int) -> int:
        self.registered[address] = num_bytes
        return 0

    def unregister_buffer(self, address: int) -> int:
        return 0 if self.registered.pop(address, None) is not None else -1

    def _begin(self, keys: Sequence[str]) -> None:
        self.most_keys = max(self.most_keys, len(keys))
        self.thawed.wait()

    def _require_registered(self, address: int, num_bytes: int) -> None:
        assert any(begin <= address and address + num_bytes <= begin + size for begin, size in self.registered.items())

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        self._begin(keys)
        return [int(key in self.values) if self.failing is None else self.failing for key in keys]

    def batch_get_into(self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]) -> list[int]:
        self._begin(keys)
        codes = []
        for key, address, size in zip(keys, addresses, sizes, strict=True):
            self._require_registered(address, size)
            value = self.values.get(key)
            if self.failing is not None:
                codes.append(self.failing)
            elif value is None:
                codes.append(NOT_FOUND)
            elif len(value) > size:
                codes.append(TOO_SMALL)
            else:
                ctypes.memmove(address, value, len(value))
                codes.append(len(value))
        return codes

    def batch_upsert_from(self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]) -> list[int]:
        self._begin(keys)
        codes = []
        for key, address, size in zip(keys, addresses, sizes, strict=True):
            self._require_registered(address, size)
            if self.failing is not None:
                codes.append(self.failing)
            elif key not in self.values and len(self.values) >= self.room:
                codes.append(NO_ROOM)
            else:
                self.values[key] = ctypes.string_at(address, size)
                codes.append(0)
        return codes

    def batch_remove(self, keys: Sequence[str], force: bool) -> list[int]:
        self._begin(keys)
        assert force
        return [0 if self.values.pop(key, None) is not None else NOT_FOUND for key in keys]

    def close(self) -> None:
        self.is_closed = True
