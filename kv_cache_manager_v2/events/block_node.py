"""A published block as consumers of events see it: tokens, parent, and digest.

A root stands for a reuse scope and has no tokens. A node never changes, except that its digest is computed on first use and kept:
naming a path of n blocks costs n hashes, however often it is done.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64
from rawref import untrack_class

from ..base.ids import TokenIdExt
from .block_digest import (
    SHA256,
    V1_BLOCK_KEY,
    V2_SHA256,
    V2_SHA256_64,
    compute_block_digest,
    compute_root_digest,
    encode_key,
    encode_tokens,
)
from .engine_hashes import V1_BYTES, V1_ROOT, compute_v1_hash, compute_v2_root


@final
class BlockNode:
    __slots__ = ("block", "parent", "root", "_key", "_mixed", "_lora_id", "_salt", "_digest")

    def __init__(
        self,
        block: i64,
        parent: BlockNode | None,
        key: bytes,
        mixed: list[TokenIdExt] | None,
        lora_id: int | None = None,
        salt: int | str | None = None,
    ) -> None:
        """``mixed``: the tokens if a multimodal digest is among them; else ``key`` has them all, packed."""
        root = parent
        if parent is not None and parent.root is not None:
            root = parent.root
        self.block: Final = block
        """The number of its block; -1 for a root."""
        self.parent: Final = parent
        """None for a root."""
        self.root: Final[BlockNode | None] = root
        """None for a root."""
        self._key: Final = key
        self._mixed: Final = mixed
        self._lora_id: Final = lora_id
        self._salt: Final = salt
        self._digest: bytes | None = None

    @property
    def lora_id(self) -> int | None:
        return self._lora_id if self.root is None else self.root._lora_id

    @property
    def salt(self) -> int | str | None:
        return self._salt if self.root is None else self.root._salt

    def tokens(self) -> list[TokenIdExt]:
        """The tokens as the user gave them; a new list."""
        if self._mixed is not None:
            return list(self._mixed)
        tokens: list[TokenIdExt] = []
        tokens.extend(memoryview(self._key).cast("i").tolist())
        return tokens

    def digest(self, algorithm: str = SHA256) -> bytes:
        """The digest that `show_digest` shows; a node is always asked for the same algorithm's."""
        nameless: list[BlockNode] = []
        node = self
        while node._digest is None and node.parent is not None:
            nameless.append(node)
            node = node.parent
        digest = node._digest
        if digest is None:
            digest = node._compute_root(algorithm)
            node._digest = digest
        while len(nameless) > 0:
            node = nameless.pop()
            if algorithm == V1_BLOCK_KEY:
                digest = node._compute_v1(digest)
            elif algorithm == V2_SHA256 or algorithm == V2_SHA256_64:
                digest = compute_block_digest(digest, node._encode_v2())
            else:
                content = encode_key(node._key) if node._mixed is None else encode_tokens(node._mixed)
                digest = compute_block_digest(digest, content)
            node._digest = digest
        return digest

    def _compute_root(self, algorithm: str) -> bytes:
        if algorithm == V1_BLOCK_KEY:
            return V1_ROOT
        if algorithm == V2_SHA256 or algorithm == V2_SHA256_64:
            return compute_v2_root(self._lora_id, self._salt)
        return compute_root_digest(self._lora_id, self._salt)

    def _encode_v2(self) -> bytes:
        return encode_key(self._key) if self._mixed is None else encode_tokens(self._mixed, False)

    def _compute_v1(self, parent: bytes) -> bytes:
        """``parent``: what the parent node keeps."""
        above = self.parent
        root = self.root
        assert above is not None and root is not None, "a root has no v1 hash"
        tokens = self.tokens()
        if len(parent) == V1_BYTES and not any([isinstance(token, bytes) for token in tokens]):
            parent_hash = int.from_bytes(parent, "big")
            return compute_v1_hash(tokens, parent_hash, root._lora_id, root._salt).to_bytes(V1_BYTES, "big")
        above_digest = parent[V1_BYTES:] if len(parent) > V1_BYTES else above._compute_v2_digest()
        digest = compute_block_digest(above_digest, self._encode_v2())
        return digest[:V1_BYTES] + digest

    def _compute_v2_digest(self) -> bytes:
        path: list[BlockNode] = []
        node = self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        digest = compute_v2_root(node._lora_id, node._salt)
        while len(path) > 0:
            digest = compute_block_digest(digest, path.pop()._encode_v2())
        return digest


# One for each published block, without cycles: the garbage collector would look at each in every full collection.
untrack_class(BlockNode)
