"""A snapshot over the wire: for a consumer that comes late, or that has missed batches.

    request     ``[b"", b"snapshot"]``; or ``[b"", b"identity"]``, for the header alone
    answer      ``[b"", topic, number, header]``
                ``[b"", topic, number, batch]``, as often as the header says; a batch is as in the stream, and the first event clears
                ``[b"", b"", -1, b""]``

The number, 8 bytes, big-endian, is that of the first batch of the stream that is not in the snapshot. A consumer subscribes first, asks
then, drops what it knew, applies the batches, and goes on with the stream from that number on. The header is a msgpack map; a consumer
that finds another ``publisher_id`` in it than before knows that the publisher has begun anew.
"""

from typing import Any, Final, final

from mypy_extensions import mypyc_attr

SNAPSHOT: Final = b"snapshot"
IDENTITY: Final = b"identity"
SNAPSHOT_REQUESTS: Final = (SNAPSHOT, IDENTITY)


@final
@mypyc_attr(native_class=True)
class SnapshotHeader:
    """``heartbeat_seconds``: after so long a silence the publisher is gone, or a batch was lost; None: it may be silent."""

    __slots__ = ("publisher_id", "resume_sequence", "num_batches", "heartbeat_seconds", "data_parallel_rank")

    publisher_id: Final[str]
    resume_sequence: Final[int]
    num_batches: Final[int]
    heartbeat_seconds: Final[float | None]
    data_parallel_rank: Final[int | None]

    def __init__(
        self,
        publisher_id: str,
        resume_sequence: int,
        num_batches: int,
        heartbeat_seconds: float | None,
        data_parallel_rank: int | None,
    ) -> None:
        self.publisher_id = publisher_id
        self.resume_sequence = resume_sequence
        self.num_batches = num_batches
        self.heartbeat_seconds = heartbeat_seconds
        self.data_parallel_rank = data_parallel_rank

    def write(self, pack: Any) -> bytes:
        """``pack``: msgspec's encoder."""
        fields: dict[str, object] = {
            "publisher_id": self.publisher_id,
            "resume_sequence": self.resume_sequence,
            "num_batches": self.num_batches,
            "heartbeat_seconds": self.heartbeat_seconds,
            "data_parallel_rank": self.data_parallel_rank,
        }
        packed: bytes = pack.encode(fields)
        return packed
