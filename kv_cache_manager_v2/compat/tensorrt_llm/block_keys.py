"""The keys of a prompt's blocks as TensorRT-LLM's router and connectors compute them: the chain behind "v2_sha256"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import SupportsIndex, TypeAlias

from ...base.checks import to_count
from ...base.ids import TokenIdExt
from ...events.block_digest import compute_block_digest, encode_key, encode_tokens
from ...events.engine_hashes import compute_v2_root
from ...reuse.digest_table import DigestTable
from ...reuse.reuse_scope import ReuseScope
from ...reuse.token_packing import TOKEN_BYTES, has_digest, pack_tokens, unpack_tokens
from .multimodal_items import ItemNames, has_items
from .scope_tuple import to_core_scope

BlockKey: TypeAlias = tuple[list[TokenIdExt], bytes]


def sequence_to_blockchain_keys(tokens_per_block: SupportsIndex, reuse_scope: object, tokens: object) -> Iterator[BlockKey]:
    """The chain of keys of ``tokens`` in that scope, an iterator of (tokens, key of 32 bytes): first no tokens and the scope's key,
    then each block, of which the last may be partial. A block is hashed when it is asked for.

    `ValueError` for a block of no tokens, or tokens out of range.
    """
    size = int(to_count(tokens_per_block, "tokens_per_block"))
    if size == 0:
        raise ValueError("tokens_per_block is 0; a block has at least one token")
    scope = to_core_scope(reuse_scope)
    digests = DigestTable()
    plain: object = ItemNames().to_plain_tokens(tokens) if has_items(tokens) else tokens
    return _hash_blocks(pack_tokens(plain, digests, True), digests, scope, size * TOKEN_BYTES)


def _hash_blocks(packed: bytes, digests: DigestTable, scope: ReuseScope, block_bytes: int) -> Iterator[BlockKey]:
    name = compute_v2_root(scope.lora_id, scope.salt)
    yield [], name
    for start in range(0, len(packed), block_bytes):
        key = packed[start : start + block_bytes]
        tokens = unpack_tokens(key, digests)
        name = compute_block_digest(name, encode_tokens(tokens, False) if has_digest(key) else encode_key(key))
        yield tokens, name


def compute_block_key(tokens: object, tokens_per_block: int, scope: ReuseScope, ordinal: int) -> bytes | None:
    """The key of that block; None if the tokens do not fill it."""
    keys = sequence_to_blockchain_keys(tokens_per_block, scope, tokens)
    position = -1
    for block_tokens, key in keys:
        if position == ordinal:
            return key if len(block_tokens) == tokens_per_block else None
        position += 1
    return None
