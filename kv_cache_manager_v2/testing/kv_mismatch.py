"""The error for a wrong byte: the expected value, and what was found."""

from typing import Any

from mypy_extensions import mypyc_attr

from ..base.errors import KVCacheManagerError


@mypyc_attr(native_class=False)
class KVMismatch(KVCacheManagerError):
    """The bytes of one token in one buffer are not those that the model put there.

    ``token`` is the position in the sequence, ``block`` its block; ``found`` is None if the page
    table has no page for that block. For recurrent state ``token`` is the last one that the state must contain.
    """

    def __init__(
        self,
        layer: int,
        role: str,
        beam: int,
        block: int,
        token: int,
        expected: bytes,
        found: bytes | None,
        sequence: object = None,
        explanation: str = "",
    ) -> None:
        # All of them are arguments of the base class: pickling and copying an exception calls the class again with those.
        super().__init__(layer, role, beam, block, token, expected, found, sequence, explanation)
        self.layer: int = layer
        self.role: str = role
        self.beam: int = beam
        self.block: int = block
        self.token: int = token
        self.expected: bytes = expected
        self.found: bytes | None = found
        self.sequence: Any = sequence
        """The sequence's ``id``."""
        self.explanation: str = explanation
        """Whose bytes were found there, if known."""

    def __str__(self) -> str:
        found = "no page" if self.found is None else self.found[:16].hex()
        text = (
            f"layer {self.layer} {self.role!r}, beam {self.beam}, block {self.block}, token {self.token} of sequence "
            f"{self.sequence!r}: expected {self.expected[:16].hex()}, found {found}"
        )
        return f"{text} ({self.explanation})" if self.explanation else text
