"""Which endpoint has a key: consistent hashing, so that a server more or less moves the keys of its own share only."""

from bisect import bisect_right
from hashlib import sha256
from typing import Final

_POINTS: Final = 128
"""Of each endpoint on the ring: shares differ by some 10 %."""


class HashRing:
    """The points of all endpoints, in order."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        points = [
            (int.from_bytes(sha256(f"{endpoint}#{number}".encode()).digest()[:8], "big"), endpoint)
            for endpoint in endpoints
            for number in range(_POINTS)
        ]
        points.sort()
        self._places: Final = [place for place, _endpoint in points]
        self._endpoints: Final = [endpoint for _place, endpoint in points]

    def endpoint_of(self, digest: bytes) -> str:
        """The endpoint that has what is named by a digest."""
        position = bisect_right(self._places, int.from_bytes(digest[:8], "big"))
        return self._endpoints[position % len(self._endpoints)]
