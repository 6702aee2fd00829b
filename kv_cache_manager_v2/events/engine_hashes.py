"""TensorRT-LLM's names of blocks, bit for bit.

    v2 root     SHA-256 of a mask byte (bit 0: there is a lora_id; bit 1: a salt), then each as 8 bytes, little-endian
    v2 block    SHA-256 of the parent's digest, then each token as 4 bytes, little-endian; a multimodal digest as the tag 0xFFFFFFFF
                and its bytes. Shown as 64 hex digits ("v2_sha256") or as the integer of the first 8 bytes, big-endian
                ("v2_sha256_64")
    v1 block    64-bit mixing of the parent's hash (0 above the first block), the number of tokens, the salt (in the first block
                only), each token, and the lora_id ("v1_block_key"). A block with a digest, and each one below it, is named by the
                first 8 bytes of its v2 digest instead

A salt that is a text counts as the first 8 bytes of its SHA-256, little-endian. What a node keeps of v1 is its hash as 8 bytes, and,
where that is a v2 digest's beginning, the digest behind it.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from ..base.ids import TokenIdExt

_WORD: Final = (1 << 64) - 1
_HALF: Final = (1 << 32) - 1

V1_BYTES: Final = 8
V1_ROOT: Final = bytes(V1_BYTES)


def to_salt_word(salt: int | str | None) -> int | None:
    if salt is None or isinstance(salt, int):
        return salt
    return int.from_bytes(hashlib.sha256(salt.encode("utf-8", "surrogatepass")).digest()[:8], "little")


def encode_v2_scope(lora_id: int | None, salt: int | str | None) -> bytes:
    """The bytes that the v2 root is the SHA-256 of: 1, 9 or 17 bytes."""
    mask = 0
    words = b""
    for bit, value in enumerate((lora_id, to_salt_word(salt))):
        if value is not None:
            mask |= 1 << bit
            words += (value & _WORD).to_bytes(8, "little")
    return bytes([mask]) + words


def compute_v2_root(lora_id: int | None, salt: int | str | None) -> bytes:
    return hashlib.sha256(encode_v2_scope(lora_id, salt)).digest()


def compute_v1_hash(tokens: Sequence[TokenIdExt], parent_hash: int, lora_id: int | None, salt: int | str | None) -> int:
    """Of tokens that are all ids; ``parent_hash`` 0 is that of the first block."""
    seed = len(tokens) ^ (parent_hash * 0xBF58476D1CE4E5B9 & _WORD)
    word = to_salt_word(salt)
    if parent_hash == 0 and word is not None:
        seed = _mix_word(word, seed)
    for token in tokens:
        assert isinstance(token, int), "a digest has no v1 hash"
        seed = _mix_half(token, seed)
    return seed if lora_id is None else _mix_word(lora_id, seed)


def _mix_half(value: int, seed: int) -> int:
    value &= _HALF
    value = (value >> 16 ^ value) * 0x45D9F3B & _HALF
    value = (value >> 16 ^ value) * 0x45D9F3B & _HALF
    value = value >> 16 ^ value
    return _combine((value + 0x9E3779B9) & _HALF, seed)


def _mix_word(value: int, seed: int) -> int:
    value &= _WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    value = value ^ value >> 31
    return _combine(value + 0x9E3779B9, seed)


def _combine(value: int, seed: int) -> int:
    return seed ^ (value + (seed << 6) + (seed >> 2)) & _WORD
