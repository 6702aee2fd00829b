"""Block hashes: the chained SHA-256 by which consumers of events name a block.

    root     SHA-256 of the reuse scope: `encode_scope`
    block    SHA-256 of the parent's digest, then each token as 4 bytes, little-endian; a multimodal digest as the tag
             0xFFFFFFFF, which no token id can be, its length as 8 bytes, little-endian, and its bytes

A hash covers the whole prefix up to the end of its block, and the scope. It is shown as 64 hex digits (``"sha256"``), or as the
integer of its first 8 bytes, big-endian (``"sha256_64"``), which most routers take. The manager itself never compares hashes.
TensorRT-LLM names blocks in three other ways (`engine_hashes`).
"""

import hashlib
import sys
from collections.abc import Sequence
from typing import Final, TypeAlias

from ..base.checks import to_int, to_text
from ..base.ids import TokenIdExt

BlockHash: TypeAlias = int | str
"""An int with "sha256_64", "v2_sha256_64" and "v1_block_key", else hex digits."""

SHA256: Final = "sha256"
SHA256_64: Final = "sha256_64"
V2_SHA256: Final = "v2_sha256"
V2_SHA256_64: Final = "v2_sha256_64"
V1_BLOCK_KEY: Final = "v1_block_key"
HASH_ALGORITHMS: Final = (SHA256, SHA256_64, V2_SHA256, V2_SHA256_64, V1_BLOCK_KEY)
"""The last three are TensorRT-LLM's: `engine_hashes`."""
DIGEST_TAG: Final = b"\xff\xff\xff\xff"


def to_block_hash(value: object, name: str) -> BlockHash:
    """A block hash as it is shown: an int or hex digits."""
    if isinstance(value, str):
        return value
    return to_int(value, f"{name}, unless a str,")


def to_hash_algorithm(value: object, name: str) -> str:
    """A name of `HASH_ALGORITHMS`; any other is a `ValueError`."""
    algorithm = to_text(value, name)
    if algorithm not in HASH_ALGORITHMS:
        raise ValueError(f"{name} is {algorithm!r}; there are {', '.join(HASH_ALGORITHMS)}")
    return algorithm


def encode_scope(lora_id: int | None, salt: int | str | None) -> bytes:
    """The fields in a row, each with its type and length: no two scopes have the same bytes."""
    return _encode_field(lora_id) + _encode_field(salt)


def _encode_field(value: int | str | None) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, str):
        # A lone surrogate is a valid salt.
        text = value.encode("utf-8", "surrogatepass")
        return b"s" + str(len(text)).encode() + b":" + text
    return b"i" + str(int(value)).encode() + b";"


def compute_root_digest(lora_id: int | None, salt: int | str | None) -> bytes:
    return hashlib.sha256(encode_scope(lora_id, salt)).digest()


def encode_tokens(tokens: Sequence[TokenIdExt], has_lengths: bool = True) -> bytes:
    """The bytes of the tokens that are hashed. Two different token lists never have the same bytes: each item says where it ends.

    ``has_lengths``: False for TensorRT-LLM's v2 names, in which digests have no lengths.
    """
    parts: list[bytes] = []
    for token in tokens:
        if isinstance(token, bytes):
            parts.append(DIGEST_TAG + (len(token).to_bytes(8, "little") if has_lengths else b"") + token)
        else:
            parts.append(token.to_bytes(4, "little"))
    return b"".join(parts)


def encode_key(key: bytes) -> bytes:
    """`encode_tokens` of packed native int32 tokens without multimodal digests."""
    if sys.byteorder == "little":
        return key
    tokens: list[TokenIdExt] = []
    for token in memoryview(key).cast("i"):
        tokens.append(token)
    return encode_tokens(tokens)


def compute_block_digest(parent: bytes, content: bytes) -> bytes:
    """The block's digest; ``content``: its tokens as encoded by `encode_tokens` or `encode_key`."""
    return hashlib.sha256(parent + content).digest()


def show_digest(digest: bytes, algorithm: str) -> BlockHash:
    if algorithm in (SHA256_64, V2_SHA256_64, V1_BLOCK_KEY):
        return int.from_bytes(digest[:8], "big")
    return digest.hex()
