"""Format of a value in a shared store: one page, with everything that says whose it is.

    record   = head, payload
    head     = MAGIC (8 bytes), bytes of the head (4), bytes of the payload (8), life cycle (2), form of the tokens (1), 0 (1), bytes
               of the tokens (4), identity (32), name of the parent (32), tokens, checksums of the payload (8 each, per MiB), 0 ..,
               checksum of the head before it (8)
               with a key of the fleet: a MAC (32) before that checksum, HMAC-SHA256 over the record's key, the head before the MAC,
               and the payload; and another MAGIC
    payload  = the page's bytes in each pool of its group, one after another
    key      = "kvcm2/<9 bytes of the identity>/g<life cycle>/<16 bytes of the block's name>", both in base64 for URLs

All numbers are little-endian; checksums, and tokens in their forms, are those of a durable level. Head and payload have one size for all
pages of a life cycle, so that a record is received where it belongs. A block whose tokens do not fit into the head is not shared.
"""

import hmac
import struct
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Final

from ..device.checksum import hash_bytes, hash_memory
from .block_names import DIGEST_BYTES, BlockName

MAGIC: Final = b"KVCMSHR1"
_MAGIC_OF_KEYED: Final = b"KVCMSHK1"
_MAC_BYTES: Final = 32
CHUNK_BYTES: Final = 1 << 20
_FIXED: Final = struct.Struct("<8sIQHBxI32s32s")
_IDENTITY_KEY_BYTES: Final = 9
_NAME_KEY_BYTES: Final = 16
"""Equal ones of different blocks are misses: heads have all of it, and the tokens."""
_CHECKSUM_BYTES: Final = 8
_ALIGNMENT: Final = 64
_MOST_TOKEN_BYTES: Final = 4 + DIGEST_BYTES
"""Of a digest of usual length, with the length before it."""


def describe_identity_bytes(identity: str, layout: str) -> bytes:
    """What the keys and heads of a model and its layout have in common; of the texts that a durable level compares."""
    return sha256(f"{identity}\n{layout}".encode()).digest()


class RecordLayout:
    """The sizes of the records of one life cycle, and their heads."""

    def __init__(self, identity: bytes, life_cycle: int, payload_bytes: int, block_tokens: int, key: bytes | None = None) -> None:
        self._mac_key: Final = None if key is None else hmac.digest(key, b"records", "sha256")
        self._mac_bytes: Final = 0 if key is None else _MAC_BYTES
        self._magic: Final = MAGIC if key is None else _MAGIC_OF_KEYED
        self.life_cycle: Final = life_cycle
        self.payload_bytes: Final = payload_bytes
        self.num_chunks: Final = (payload_bytes + CHUNK_BYTES - 1) // CHUNK_BYTES
        self.most_token_bytes: Final = block_tokens * _MOST_TOKEN_BYTES
        used = _FIXED.size + self.most_token_bytes + (self.num_chunks + 1) * _CHECKSUM_BYTES + self._mac_bytes
        self.head_bytes: Final = (used + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self.num_bytes: Final = self.head_bytes + payload_bytes
        self._identity: Final = identity
        self._prefix: Final = b"kvcm2/%b/g%d/" % (urlsafe_b64encode(identity[:_IDENTITY_KEY_BYTES]), life_cycle)

    def key(self, name: BlockName) -> bytes:
        """The key of the block's page of this life cycle: short, as a server keeps each in memory, and text, as object stores want it."""
        return self._prefix + urlsafe_b64encode(name.digest[:_NAME_KEY_BYTES]).rstrip(b"=")

    def fits(self, name: BlockName) -> bool:
        """Whether the block's tokens fit into the head."""
        return len(name.tokens) <= self.most_token_bytes

    def _begin_head(self, name: BlockName) -> bytes:
        """What is known before the payload is."""
        return (
            _FIXED.pack(
                self._magic,
                self.head_bytes,
                self.payload_bytes,
                self.life_cycle,
                name.form,
                len(name.tokens),
                self._identity,
                name.parent,
            )
            + name.tokens
        )

    def write_head(self, record: memoryview, address: int, name: BlockName) -> None:
        """Put the head before the payload, which is there. ``address``: of the record."""
        head = self._begin_head(name) + struct.pack(f"<{self.num_chunks}q", *self._hash_payload(address))
        head = head.ljust(self.head_bytes - _CHECKSUM_BYTES - self._mac_bytes, b"\0")
        head += self._authenticate(head, record, name)
        record[: self.head_bytes] = head + hash_bytes(head).to_bytes(_CHECKSUM_BYTES, "little", signed=True)

    def find_fault(self, record: memoryview, address: int, name: BlockName) -> str:
        """Why the record is not the page of that block; "" if it is, with every byte as it was stored."""
        head = bytes(record[: self.head_bytes])
        expected = self._begin_head(name)
        if not head.startswith(self._magic):
            return "it does not begin like a record" + ("" if self._mac_key is None else " of a fleet with a key")
        if hash_bytes(head[:-_CHECKSUM_BYTES]) != int.from_bytes(head[-_CHECKSUM_BYTES:], "little", signed=True):
            return "its head has another checksum"
        if not head.startswith(expected):
            return "it is of another block, model or layout"
        if struct.unpack_from(f"<{self.num_chunks}q", head, len(expected)) != tuple(self._hash_payload(address)):
            return "its bytes have another checksum"
        end = self.head_bytes - _CHECKSUM_BYTES
        begin = end - self._mac_bytes
        if not hmac.compare_digest(head[begin:end], self._authenticate(head[:begin], record, name)):
            return "it was altered, or written without the fleet's key"
        return ""

    def _authenticate(self, head: bytes, record: memoryview, name: BlockName) -> bytes:
        """The MAC of a record; b"" without a key."""
        if self._mac_key is None:
            return b""
        mac = hmac.new(self._mac_key, self.key(name), "sha256")
        mac.update(head)
        mac.update(record[self.head_bytes : self.num_bytes])
        return mac.digest()

    def _hash_payload(self, address: int) -> list[int]:
        begin = address + self.head_bytes
        size = self.payload_bytes
        return [hash_memory(begin + offset, min(CHUNK_BYTES, size - offset)) for offset in range(0, size, CHUNK_BYTES)]
