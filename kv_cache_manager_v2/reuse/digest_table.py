"""Content digests of multimodal items as negative int32 ids, so that the tokens of any block are one run of int32.

An id is unique to its digest while it is counted, and may name another digest afterwards. Each occurrence of a digest
in a published block, or in the tail that an open sequence has committed but not published, counts one. Conservation: the
counts of the table add up to the negative tokens in all of these.

A new digest gets the free id nearest to zero, so which one depends on the ids in use alone: a call that counted digests and was
then refused leaves no trace. Content keys, and with them decisions of eviction policies, depend on ids.
"""

import heapq
from typing import Final, final


UNKNOWN_DIGEST: Final = -1
"""Stands for a digest that no block holds; it is never stored, so it matches nothing."""


@final
class DigestTable:
    __slots__ = ("_ids", "_digests", "_counts", "_free_ids", "_next_id")

    def __init__(self) -> None:
        self._ids: Final[dict[bytes, int]] = {}
        self._digests: Final[dict[int, bytes]] = {}
        self._counts: Final[dict[int, int]] = {}
        self._free_ids: Final[list[int]] = []
        """A heap of their absolute values."""
        self._next_id: int = UNKNOWN_DIGEST - 1

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, digest: bytes) -> int:
        """The digest's id, or UNKNOWN_DIGEST."""
        return self._ids.get(digest, UNKNOWN_DIGEST)

    def acquire(self, digest: bytes) -> int:
        """The digest's id, counted once more."""
        token = self._ids.get(digest, 0)
        if token == 0:
            if len(self._free_ids) > 0:
                token = -heapq.heappop(self._free_ids)
            else:
                token = self._next_id
                self._next_id -= 1
            self._ids[digest] = token
            self._digests[token] = digest
            self._counts[token] = 0
        self._counts[token] += 1
        return token

    def acquire_again(self, packed: bytes) -> None:
        """Count every digest among packed tokens once more."""
        for token in memoryview(packed).cast("i"):
            if token < 0:
                self._counts[token] += 1

    def release(self, packed: bytes) -> None:
        """Count every digest among packed tokens once less; the last count frees the id."""
        for token in memoryview(packed).cast("i"):
            if token < 0:
                count = self._counts[token] - 1
                assert count >= 0, "a digest was released more often than acquired"
                self._counts[token] = count
                if count == 0:
                    del self._counts[token]
                    del self._ids[self._digests.pop(token)]
                    heapq.heappush(self._free_ids, -token)

    def digest_of(self, token: int) -> bytes:
        return self._digests[token]

    def total_count(self) -> int:
        """Sum of all counts, for checks."""
        return sum(list(self._counts.values()))
