"""A snapshot over the wire: for a consumer that comes late, or that has missed batches.

    request     ``[b"", b"snapshot"]``; or ``[b"", b"identity"]``, for the header alone
    answer      ``[b"", topic, number, header]``
                ``[b"", topic, number, batch]``, as often as the header says; a batch is as in the stream, and the first event clears
                ``[b"", b"", -1, b""]``

The number, 8 bytes, big-endian, is that of the first batch of the stream that is not in the snapshot. A consumer subscribes first, asks
then, drops what it knew, applies the batches, and goes on with the stream from that number on. The header is a msgpack map; a consumer
that finds another ``publisher_id`` in it than before knows that the publisher has begun anew.
"""

from typing import Any, Final

SNAPSHOT: Final = b"snapshot"
IDENTITY: Final = b"identity"
SNAPSHOT_REQUESTS: Final = (SNAPSHOT, IDENTITY)


def write_header(
    pack: Any, publisher_id: str, resume_sequence: int, num_batches: int, heartbeat_seconds: float | None, data_parallel_rank: int
) -> bytes:
    """``heartbeat_seconds``: after so long a silence the publisher is gone, or a batch was lost; None: it may be silent.

    ``pack``: msgspec's encoder."""
    fields: dict[str, object] = {
        "publisher_id": publisher_id,
        "resume_sequence": resume_sequence,
        "num_batches": num_batches,
        "heartbeat_seconds": heartbeat_seconds,
        "data_parallel_rank": data_parallel_rank,
    }
    packed: bytes = pack.encode(fields)
    return packed
