"""Names of blocks that mean the same in all processes: a SHA-256 chain over the tokens, from the scope's root on.

With a secret key of the fleet the root is an HMAC, so that a process without the key cannot try out which prompts have names.

A name is not trusted to be unique: each record says its tokens and its parent's name, and both are compared when it is loaded. Digests
are in the chain in full. The names of another model, layout or salt domain are others, since their `SharedIdentity` begins each key; those
of another epoch too, since their roots are others.
"""

import hmac
import json
from collections import deque
from hashlib import sha256
from time import sleep
from typing import Final

from ..base.ids import TokenIdExt
from ..base.package_log import PackageLog
from ..base.value import Value
from ..durable.record_format import MIXED, PACKED, encode_mixed
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import TOKEN_BYTES

DIGEST_BYTES: Final = 32
_BLOCKS_AT_ONCE: Final = 64
"""About 50 us of work, after which another thread may run."""
_LEAST_KEY_BYTES: Final = 16
_MOST_KEY_BYTES: Final = 64

_logger: Final = PackageLog("kv_cache_manager_v2")


def require_key(key: object) -> None:
    """No message has its bytes."""
    if key is None:
        _logger.warning("the shared level has no key: a process that reaches its store can guess names of prompts and forge values")
        return
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes or None, not {type(key).__name__}")
    if not _LEAST_KEY_BYTES <= len(key) <= _MOST_KEY_BYTES:
        raise ValueError(f"key has {len(key)} bytes; it must have from {_LEAST_KEY_BYTES} to {_MOST_KEY_BYTES}, as secrets.token_bytes(32)")


class BlockName(Value):
    """A full block: its digest, its parent's, and its tokens as a durable level records them."""

    __slots__ = ("digest", "form", "parent", "tokens")

    def __init__(self, parent: bytes, form: int, tokens: bytes) -> None:
        self.parent: Final = parent
        self.form: Final = form
        self.tokens: Final = tokens
        self.digest: Final = sha256(b"%b%c%b" % (parent, form, tokens)).digest()


def name_root(scope: ReuseScope, key: bytes | None = None, epoch: int = 0) -> bytes:
    """What the first block of the scope has as its parent's digest."""
    parts: list[object] = ["scope", scope.lora_id, scope.salt]
    text = json.dumps(parts if epoch == 0 else [*parts, epoch]).encode()
    return sha256(text).digest() if key is None else hmac.digest(key, b"names" + text, "sha256")


def name_blocks(parent: bytes, tokens: bytes | list[TokenIdExt], block_tokens: int) -> list[BlockName]:
    """The full blocks of ``tokens``: packed ones, or a list where some are digests. Lets other threads run now and then."""
    names: list[BlockName] = []
    count = (len(tokens) // TOKEN_BYTES if isinstance(tokens, bytes) else len(tokens)) // block_tokens
    for ordinal in range(count):
        begin = ordinal * block_tokens
        if isinstance(tokens, bytes):
            name = BlockName(parent, PACKED, tokens[begin * TOKEN_BYTES : (begin + block_tokens) * TOKEN_BYTES])
        else:
            name = _name_mixed(parent, tokens[begin : begin + block_tokens])
        names.append(name)
        parent = name.digest
        if ordinal % _BLOCKS_AT_ONCE == _BLOCKS_AT_ONCE - 1:
            sleep(0)
    return names


class NameChain:
    """The names of one path's blocks, made by a thread of tokens that the caller has added. ``num_blocks``: that were added."""

    def __init__(self, scope: ReuseScope, block_tokens: int, key: bytes | None, epoch: int) -> None:
        self.names: Final[list[BlockName]] = []
        self.num_blocks = 0
        self.scope: Final = scope
        self.epoch: Final = epoch
        self._block_tokens: Final = block_tokens
        self._key: Final = key
        self._waiting: Final[deque[bytes | list[TokenIdExt]]] = deque()

    def add(self, tokens: bytes | list[TokenIdExt], num_blocks: int) -> None:
        """Those of the next whole blocks."""
        self._waiting.append(tokens)
        self.num_blocks += num_blocks

    def extend(self) -> None:
        """On the thread: name all that was added."""
        while len(self._waiting) > 0:
            parent = self.names[-1].digest if len(self.names) > 0 else name_root(self.scope, self._key, self.epoch)
            self.names.extend(name_blocks(parent, self._waiting.popleft(), self._block_tokens))


def _name_mixed(parent: bytes, tokens: list[TokenIdExt]) -> BlockName:
    ids = [token for token in tokens if isinstance(token, int)]
    if len(ids) == len(tokens):
        return BlockName(parent, PACKED, b"".join([token.to_bytes(TOKEN_BYTES, "little") for token in ids]))
    return BlockName(parent, MIXED, encode_mixed(list(tokens)))
