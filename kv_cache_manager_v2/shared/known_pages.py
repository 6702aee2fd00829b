"""Which pages this process knows to be in the store: those that it has stored or found, and has not seen missing since.

Known pages are not stored again, and routers are told of them. A store may have evicted them long since: then a load finds that out.
"""

from typing import Final

from ..publishing.event_publisher import KVCacheEventPublisher
from .block_names import BlockName

_MOST: Final = 1 << 18


class KnownPages:
    """By key. ``publisher``: tells routers; None: they are not told."""

    def __init__(self, publisher: KVCacheEventPublisher | None, most: int = _MOST) -> None:
        self._publisher: Final = publisher
        self._keys: Final[dict[bytes, None]] = {}
        self._most: Final = most

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def expect(self, keys: list[bytes]) -> None:
        """They are on their way into the store, and are not stored a second time meanwhile."""
        for key in keys:
            self._keys[key] = None
        excess = len(self._keys) - self._most
        if excess > 0:
            oldest = list(self._keys)[:excess]
            self.forget(oldest)

    def confirm(self, salt: int | str | None, names: list[BlockName], pages: list[tuple[int, int, bytes]]) -> None:
        """They are in the store. ``pages``: (life cycle, ordinal in ``names``, key); ``names``: of the path from its root on."""
        self.expect([key for _life_cycle, _ordinal, key in pages])
        if self._publisher is None:
            return
        told = [page for page in pages if page[2] in self._keys]
        if len(told) > 0:
            end = 1 + max([ordinal for _life_cycle, ordinal, _key in told])
            self._publisher._tell_shared(salt, lambda: [(name.form, name.tokens) for name in names[:end]], told, [])

    def forget_all(self) -> None:
        """Nothing is loaded from the store any more."""
        self.forget(list(self._keys))

    def forget(self, keys: list[bytes]) -> None:
        """They are not in the store, as far as is known."""
        gone = [key for key in keys if key in self._keys]
        for key in gone:
            del self._keys[key]
        if self._publisher is not None and len(gone) > 0:
            self._publisher._tell_shared(None, None, [], gone)
