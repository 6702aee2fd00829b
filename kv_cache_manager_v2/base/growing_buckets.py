"""The buckets of a hash table that grows by one bucket at a time, so that no call moves more than the items of one (linear hashing)."""

from typing import final

from mypy_extensions import i64


@final
class GrowingBuckets:
    """Their numbers; at first there is one. ``count``: of buckets."""

    __slots__ = ("count", "_span")

    def __init__(self) -> None:
        self.count: i64 = 1
        self._span: i64 = 1
        """The least power of two of so many buckets or more."""

    def bucket_of(self, hash_value: i64) -> i64:
        """Of an item with that hash, 0 or more."""
        bucket = hash_value & (self._span - 1)
        return bucket if bucket < self.count else bucket - (self._span >> 1)

    def add(self) -> i64:
        """One more, the last; the one whose items `bucket_of` shares out among both from now on."""
        added = self.count
        self.count = added + 1
        if added == self._span:
            self._span = 2 * added
        return added - (self._span >> 1)
