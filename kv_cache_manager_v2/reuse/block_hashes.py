"""The names of blocks in events, computed from tokens: so a router finds out which of a prompt's blocks a worker has."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from ..base.checks import to_count, to_plain_bytes
from ..base.given import Given
from ..base.ids import TokenIdExt
from ..events.block_digest import (
    SHA256,
    SHA256_64,
    BlockHash,
    compute_block_digest,
    compute_root_digest,
    encode_key,
    encode_tokens,
    show_digest,
    to_hash_algorithm,
)
from ..events.block_node import BlockNode
from .digest_table import DigestTable
from .reuse_scope import ReuseScope, to_scope
from .token_packing import TOKEN_BYTES, has_digest, pack_tokens, unpack_tokens

if TYPE_CHECKING:
    from .token_forms import Tokens


def compute_block_hashes(
    tokens: Tokens, tokens_per_block: SupportsIndex, reuse_scope: Given[ReuseScope | None] = None, hash_algo: Given[str] = SHA256
) -> list[BlockHash]:
    """The hash of each full block of ``tokens``, as events of a manager with that block size name it."""
    size = to_count(tokens_per_block, "tokens_per_block")
    if size == 0:
        raise ValueError("tokens_per_block is 0; a block has at least one token")
    algorithm = to_hash_algorithm(hash_algo, "hash_algo")
    scope = to_scope(reuse_scope)
    digests = DigestTable()
    packed = pack_tokens(tokens, digests, True)
    if algorithm not in (SHA256, SHA256_64):
        return [show_digest(node.digest(algorithm), algorithm) for node in _make_path(packed, digests, size, scope)]
    digest = compute_root_digest(scope.lora_id, scope.salt)
    hashes: list[BlockHash] = []
    block_bytes = size * TOKEN_BYTES
    for begin in range(0, len(packed) - block_bytes + 1, block_bytes):
        key = packed[begin : begin + block_bytes]
        content = encode_tokens(unpack_tokens(key, digests)) if has_digest(key) else encode_key(key)
        digest = compute_block_digest(digest, content)
        hashes.append(show_digest(digest, algorithm))
    return hashes


def _make_path(packed: bytes, digests: DigestTable, size: int, scope: ReuseScope) -> list[BlockNode]:
    """The full blocks, each below the one before."""
    above = BlockNode(-1, None, b"", None, scope.lora_id, scope.salt)
    nodes: list[BlockNode] = []
    block_bytes = size * TOKEN_BYTES
    for begin in range(0, len(packed) - block_bytes + 1, block_bytes):
        key = packed[begin : begin + block_bytes]
        mixed = unpack_tokens(key, digests) if has_digest(key) else None
        above = BlockNode(len(nodes), above, key, mixed)
        nodes.append(above)
    return nodes


def gen_multimodal_cache_key_tokens(
    id_offset: SupportsIndex, multimodal_data_digest: Given[bytes], num_tokens: SupportsIndex
) -> list[TokenIdExt]:
    """The tokens of a multimodal item for matching: its digest, then ids that no vocabulary has, one for each further token.

    ``id_offset``: the size of the vocabulary; the ids are ``id_offset + 1``, ``id_offset + 2``, ... A prefix of the item is thus
    a prefix of these, and no other item begins alike.
    """
    offset = to_count(id_offset, "id_offset")
    count = to_count(num_tokens, "num_tokens")
    if not isinstance(multimodal_data_digest, bytes):
        raise TypeError(f"multimodal_data_digest must be bytes, not {type(multimodal_data_digest).__name__}")
    if len(multimodal_data_digest) == 0:
        raise ValueError("multimodal_data_digest is empty")
    if count == 0:
        raise ValueError("num_tokens is 0; an item has at least one token")
    if offset + count > 2**31:
        raise ValueError(f"id_offset {offset} and {count} tokens give ids of 2**31 and more; ids are 0 <= id < 2**31")
    tokens: list[TokenIdExt] = [to_plain_bytes(multimodal_data_digest)]
    tokens.extend(range(offset + 1, offset + count))
    return tokens
