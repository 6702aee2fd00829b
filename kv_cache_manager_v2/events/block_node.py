"""A published block as consumers of events see it: tokens, parent, and digest.

A root stands for a reuse scope and has no tokens. A node never changes, except that its digest is computed on first use and kept:
naming a path of n blocks costs n hashes, however often it is done.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..base.ids import TokenIdExt
from .block_digest import compute_block_digest, compute_root_digest, encode_key, encode_tokens


@final
@mypyc_attr(native_class=True)
class BlockNode:
    __slots__ = ("block", "parent", "root", "_key", "_mixed", "_lora_id", "_salt", "_digest")

    block: Final[i64]
    """The number of its block; -1 for a root."""
    parent: Final[BlockNode | None]
    """None for a root."""
    root: Final[BlockNode | None]
    """None for a root."""
    _key: Final[bytes]
    _mixed: Final[list[TokenIdExt] | None]
    _lora_id: Final[int | None]
    _salt: Final[int | str | None]
    _digest: bytes | None

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
        self.block = block
        self.parent = parent
        self.root = root
        self._key = key
        self._mixed = mixed
        self._lora_id = lora_id
        self._salt = salt
        self._digest = None

    @property
    def lora_id(self) -> int | None:
        return self._lora_id if self.root is None else self.root._lora_id

    def tokens(self) -> list[TokenIdExt]:
        """The tokens as the user gave them; a new list."""
        if self._mixed is not None:
            return list(self._mixed)
        tokens: list[TokenIdExt] = []
        tokens.extend(memoryview(self._key).cast("i").tolist())
        return tokens

    def digest(self) -> bytes:
        nameless: list[BlockNode] = []
        node = self
        while node._digest is None and node.parent is not None:
            nameless.append(node)
            node = node.parent
        digest = node._digest
        if digest is None:
            digest = compute_root_digest(node._lora_id, node._salt)
            node._digest = digest
        while len(nameless) > 0:
            node = nameless.pop()
            content = encode_key(node._key) if node._mixed is None else encode_tokens(node._mixed)
            digest = compute_block_digest(digest, content)
            node._digest = digest
        return digest
