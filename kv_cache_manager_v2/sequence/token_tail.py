"""The committed tokens of a sequence that do not fill a block yet."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

@final
@mypyc_attr(native_class=True)
class TokenTail:
    __slots__ = ("_tokens", "count")

    _tokens: Final[vec[i32]]
    count: i64

    def __init__(self, tokens_per_block: i64) -> None:
        self._tokens = vec[i32]([0] * tokens_per_block)
        self.count = 0

    def append(self, token: i32) -> None:
        self._tokens[self.count] = token
        self.count += 1

    def extend(self, packed: bytes) -> None:
        tokens = self._tokens
        count = self.count
        for token in vec[i32](memoryview(packed).cast("i")):
            tokens[count] = token
            count += 1
        self.count = count

    def packed(self) -> bytes:
        if self.count == len(self._tokens):
            return bytes(memoryview(self._tokens))
        return bytes(memoryview(self._tokens)[: self.count])

    def clear(self) -> None:
        self.count = 0
