"""The port of every eviction policy: the pages of one pool group at one level that may be evicted, and which is next.

A page is in the queue from when its last user releases it until a sequence needs it again, or it leaves its slot:

    from       to         by
    elsewhere  queued     push, push_first
    queued     queued     requeue (its priority is another one), defer (another page must go before it)
    queued     in use     use: a sequence reuses it; it will be pushed again
    queued     held       hold_run: a sequence that has no room yet has found it; pushed again, it is as it was
    held       in use     use_held_run: that sequence, or another one, has got room
    queued     gone       remove (dropped), evict (dropped for another page: a policy may remember its content)
    queued     moving     take_out (to another level), take_victim (offloaded for another page); it is pushed again when it has arrived

Lower priorities (`PageRows`) go first whatever the policy; the policy decides among pages of one priority. A call costs
O(1) for each page of it, whatever is queued.
"""

from abc import ABCMeta, abstractmethod
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

NUM_PRIORITIES: Final = 101
NO_VICTIM: Final = -1
NOT_KNOWN: Final = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class VictimQueue(metaclass=ABCMeta):
    __slots__ = ("num_pages",)

    num_pages: i64

    @abstractmethod
    def push(self, page: i64) -> None:
        """The page's last user has released it."""

    def push_run(self, pages: vec[i64], count: i64) -> None:
        """`push` the first ``count`` of the pages, in order."""
        for position in range(count):
            self.push(pages[position])

    @abstractmethod
    def push_first(self, page: i64) -> None:
        """`push` a page that is to go before all others of its priority."""

    def push_run_first(self, pages: vec[i64], count: i64) -> None:
        """`push_first` the first ``count`` of the pages, in order: the last one is before all others."""
        for position in range(count):
            self.push_first(pages[position])

    @abstractmethod
    def use(self, page: i64) -> None:
        """The page is reused."""

    def hold_run(self, pages: vec[i64], count: i64) -> None:
        """The first ``count`` of the pages are found, in order: a use only once `use_held_run` says so. A policy that remembers nothing but
        an order may renew their places."""
        for position in range(count):
            self.use(pages[position])

    def use_held_run(self, pages: vec[i64], count: i64) -> None:
        """A sequence that holds the first ``count`` of the pages uses them, none of which is queued; those in use already stay so."""

    @abstractmethod
    def remove(self, page: i64) -> None:
        """The page leaves its slot."""

    @abstractmethod
    def evict(self, page: i64) -> None:
        """The page leaves its slot, which another page is to have."""

    def evict_run(self, pages: vec[i64], count: i64) -> None:
        """`evict` the first ``count`` of the pages, in order."""
        for position in range(count):
            self.evict(pages[position])

    def take_out(self, page: i64) -> None:
        """The page leaves its slot, mostly for a slot on another level; pushed again, it is as old as it was."""
        self.remove(page)

    def take_victim(self, page: i64) -> None:
        """The page is offloaded to the next level for another page."""
        self.evict(page)

    @abstractmethod
    def forget(self, page: i64) -> None:
        """The page, which is not queued, will not come back from its use: it has left its slot."""

    @abstractmethod
    def requeue(self, page: i64) -> None:
        """The priority of the page's row has changed. Not a use."""

    @abstractmethod
    def defer(self, page: i64, below: i64) -> None:
        """The page, which is the next victim, goes after ``below``, whose priority is not lower."""

    def stands_first(self, page: i64) -> bool:
        """Whether a queued page was put before all others of its priority, as far as the policy knows that still."""
        return False

    @abstractmethod
    def first(self) -> i64:
        """The next victim, or NO_VICTIM."""

    def first_to_drop(self) -> i64:
        """The next victim where it is dropped, though a level below could take it."""
        return self.first()

    def list_following(self, page: i64, pages: vec[i64], begin: i64, end: i64) -> i64:
        """The victims after ``page``, if all before it go and then ``page``, into ``pages[begin:end]``: how many, 0 where only their going
        tells.

        Only a policy whose choice does not depend on what went before knows them in advance; what it remembers of that may.
        """
        return 0

    def reserve_capacity(self, num_slots: i64) -> None:
        """Take the memory that `set_capacity` of that number needs. Changes nothing else."""

    @abstractmethod
    def set_capacity(self, num_slots: i64) -> None:
        """How many pages there can be; bounds what the policy remembers of those that are gone."""

    @abstractmethod
    def collect(self) -> list[int]:
        """All queued pages, for checks and pictures; those of lower priority first."""

    def describe_all(self) -> list[tuple[int, int, int]]:
        """Of all queued pages, those that go first before the others: when it was used last, NOT_KNOWN if the policy does not know, the
        page, and what the policy knows of it, in 39 bits."""
        return [(NOT_KNOWN, page, 0) for page in self.collect()]

    def push_described(self, page: i64, description: i64, passed: i64) -> None:
        """`push` a page that was described in another process, where so much time had passed since the one before it was used."""
        self.push(page)

    def check(self) -> None:
        """Assert the laws of what the policy counts and remembers beside the pages in line; O(1)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ContentKeys(metaclass=ABCMeta):
    """Who knows which content a page holds."""

    __slots__ = ()

    @abstractmethod
    def content_key(self, page: i64) -> i64:
        """A number from 1 to 2**62 - 1 that depends on the page's tokens and on all before them, and on nothing else."""
