"""Which pages this process knows to be in the store: those that it has stored or found, and has not seen missing since.

Known pages are not stored again, and routers are told of them. A store may have evicted them since: a look-up or a load that misses them
finds that out, and each look-up also asks for some that were not seen for long. Where this process has a known page itself,
its row is *offered*: it is not copied out again.
"""

from itertools import islice
from time import monotonic
from typing import Final

from ..publishing.event_publisher import KVCacheEventPublisher
from .block_names import BlockName

MOST_ASKED: Final = 64
SIGN_SECONDS: Final = 0.5
_MOST: Final = 1 << 18


class _Known:
    """``seen_at``: when the store last had it, ``endpoint``: where. ``row``: of this process, with that content; -1 for none."""

    __slots__ = ("content", "endpoint", "row", "seen_at")

    def __init__(self, endpoint: str = "") -> None:
        self.endpoint = endpoint
        self.seen_at = monotonic()
        self.row = -1
        self.content = 0


class KnownPages:
    """By key, those that were seen least recently first. ``publisher``: tells routers; None: they are not told.

    ``claim_seconds``: how long a page counts as there without having been seen. ``offered``: by row, the content that it had.
    """

    def __init__(self, publisher: KVCacheEventPublisher | None, claim_seconds: float, most: int = _MOST) -> None:
        self._publisher: Final = publisher
        self._keys: Final[dict[bytes, _Known]] = {}
        self.offered: Final[dict[int, int]] = {}
        self._claim_seconds: Final = claim_seconds
        self._most: Final = most

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def expect(self, key: bytes) -> None:
        """It is on its way into the store, and is not stored a second time meanwhile. From any thread."""
        if key not in self._keys:
            self._keys[key] = _Known()

    def place(self, key: bytes, row: int, content: int) -> None:
        """That row of this process has what the key names, which is in the store."""
        known = self._keys.get(key)
        if known is None:
            known = _Known()
            self._keys[key] = known
        known.row = row
        known.content = content
        self.offered[row] = content

    def withdraw(self, row: int, content: int) -> None:
        """What the row has is not in the store after all."""
        if self.offered.get(row) == content:
            del self.offered[row]

    def confirm(
        self, salt: int | str | None, names: list[BlockName], pages: list[tuple[int, int, bytes]], places: dict[bytes, str]
    ) -> None:
        """They are in the store. ``pages``: (life cycle, ordinal in ``names``, key); ``names``: of the path from its root on; ``places``:
        the endpoints by key."""
        self.see([key for _life_cycle, _ordinal, key in pages])
        for _life_cycle, _ordinal, key in pages:
            self._keys[key].endpoint = places[key]
        excess = len(self._keys) - self._most
        if excess > 0:
            self.forget(list(self._keys)[:excess])
        if self._publisher is None:
            return
        told = [page for page in pages if page[2] in self._keys]
        if len(told) > 0:
            end = 1 + max([ordinal for _life_cycle, ordinal, _key in told])
            self._publisher._tell_shared(salt, lambda: [(name.form, name.tokens) for name in names[:end]], told, [])

    def see(self, keys: list[bytes]) -> None:
        """The store has them just now."""
        now = monotonic()
        for key in keys:
            known = self._keys.pop(key, None) or _Known()
            known.seen_at = now
            self._keys[key] = known

    def list_unseen(self) -> list[tuple[bytes, str]]:
        """Up to `MOST_ASKED` of those that were not seen for ``claim_seconds``, with their endpoints; and of each endpoint one that was not
        seen for `SIGN_SECONDS`: so a server that has lost everything is noticed."""
        now = monotonic()
        # In one go: a thread may add keys meanwhile.
        first = [(key, known) for key, known in list(islice(self._keys.items(), MOST_ASKED)) if known.endpoint != ""]
        signs = {known.endpoint: key for key, known in reversed(first) if known.seen_at <= now - SIGN_SECONDS}
        unseen = {key: known.endpoint for key, known in first if known.seen_at <= now - self._claim_seconds}
        return list({**unseen, **{key: endpoint for endpoint, key in signs.items()}}.items())

    def forget_endpoint(self, endpoint: str) -> None:
        """It has lost everything."""
        self.forget([key for key, known in list(self._keys.items()) if known.endpoint == endpoint])

    def forget_all(self) -> None:
        """Nothing is loaded from the store any more, or under other names."""
        self.forget(list(self._keys))
        self.offered.clear()

    def forget(self, keys: list[bytes]) -> None:
        """They are not in the store, as far as is known."""
        gone = [key for key in dict.fromkeys(keys) if key in self._keys]
        for key in gone:
            known = self._keys.pop(key)
            if known.row >= 0:
                self.withdraw(known.row, known.content)
        if self._publisher is not None and len(gone) > 0:
            self._publisher._tell_shared(None, None, [], gone)
