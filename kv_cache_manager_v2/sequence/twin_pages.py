"""Twin pages of one manager: pages that active sequences keep although the tree has equal ones, so that their indices stay.

    event                                                 the twin
    commit meets a published page that others have locked add: the sequence keeps its page, in a private block
    the published page loses its last lock                take_over: the oldest twin goes on under the published row
    its sequence suspends, ends, or its window passes     remove: the sequence holds the published page instead, or nothing

So a published page that has a twin is locked, and never evicted: of a sequence that holds a page further down the path, and a twin here,
the ancestor stays for as long. A sequence finds its page by `SequenceState.page_of`.
"""

from typing import Final, final

from mypy_extensions import i64

from ..storage.page_handover import replace_page
from ..storage.page_storage import PageStorage
from ..storage.page_owner import TwinOwner
from .transfer_leases import TransferLeases


@final
class TwinPages(TwinOwner):
    """Conservation: a twin is listed here as long as a sequence uses it and the published page is another one."""

    __slots__ = ("_storage", "_leases", "_twins_of", "_page_of", "_num_users")

    def __init__(self, storage: PageStorage, leases: TransferLeases) -> None:
        self._storage: Final = storage
        self._leases: Final = leases
        self._twins_of: Final[dict[int, list[int]]] = {}
        """By published page, its twins, the oldest first."""
        self._page_of: Final[dict[int, int]] = {}
        """By twin, the published page."""
        self._num_users: Final[dict[int, int]] = {}
        """By twin, the sequences that use it: more than one after a fork."""

    def add(self, page: i64, twin: i64) -> None:
        """One more sequence keeps ``twin`` beside the locked ``page``."""
        key = int(twin)
        if key in self._num_users:
            self._num_users[key] += 1
            return
        self._num_users[key] = 1
        self._page_of[key] = int(page)
        self._twins_of.setdefault(int(page), []).append(key)

    def remove(self, twin: i64) -> None:
        """One sequence less uses it."""
        key = int(twin)
        self._num_users[key] -= 1
        if self._num_users[key] == 0:
            self._forget(key)

    def _forget(self, twin: int) -> None:
        page = self._page_of.pop(twin)
        del self._num_users[twin]
        twins = self._twins_of[page]
        twins.remove(twin)
        if len(twins) == 0:
            del self._twins_of[page]

    def has_twin(self, page: i64) -> bool:
        return int(page) in self._twins_of

    def take_over(self, page: i64) -> bool:
        twins = self._twins_of.get(int(page))
        if twins is None:
            return False
        twin = twins[0]
        self._forget(twin)
        storage = self._storage
        with storage.changes:
            replace_page(storage, twin, page, storage.pool_group_of_page(page), True)
            self._leases.record_moved(twin, page, (page - storage.rows.first_page_of_blocks) % storage.rows.num_life_cycles)
        return True

    def twins_of(self, page: i64) -> list[int]:
        """In the order in which they would go on as ``page``."""
        return list(self._twins_of.get(int(page), []))

    def count_users(self, page: i64) -> i64:
        """The sequences that use a twin of that page; leases not counted."""
        return sum([self._num_users[twin] for twin in self.twins_of(page)])

    def users(self) -> dict[int, int]:
        """By twin, how many sequences use it: for checks."""
        return dict(self._num_users)

    def pages(self) -> dict[int, int]:
        """By twin, the published page: for checks."""
        return dict(self._page_of)
