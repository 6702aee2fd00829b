"""One sequence of a simulation: the user's handle, the model's view, and the tokens whose bytes are on the device."""

from typing import Final, final

import numpy as np
import numpy.typing as npt

from ...base.ids import TokenIdExt
from ...manager.kv_cache import KVCache
from ..reference_sequence import ReferenceSequence


@final
class SimulatedSequence:
    """``text``: the computed tokens; ``to_compute`` follows. ``buffers``: the user's own, by layer group.

    No more than ``max_committed`` tokens are ever committed: the rest is like a reasoning trace that no prompt repeats.
    """

    __slots__ = (
        "name", "model", "max_committed", "text", "to_compute", "buffers", "num_computed", "state_tokens", "prompt_length",
        "snapshot_positions", "other_texts", "told_indices", "given", "given_end", "has_shared", "_handle",
    )  # fmt: skip

    def __init__(
        self, name: int, handle: KVCache, model: ReferenceSequence, text: list[TokenIdExt], to_compute: list[TokenIdExt], max_committed: int
    ) -> None:
        self.name: Final = name
        self._handle: KVCache | None = handle
        self.model: Final = model
        self.max_committed: Final = max_committed
        self.text = text
        self.to_compute = to_compute
        self.buffers: Final[dict[int, npt.NDArray[np.int32]]] = {}
        self.num_computed: int = len(text)
        """The greatest length of ``text`` so far."""
        self.state_tokens: int = len(text)
        """The tokens that the recurrent state covers; less than all only before the first resume."""
        self.prompt_length = 0
        self.given: tuple[TokenIdExt, ...] = ()
        """The tokens that it was created with."""
        self.given_end: int = -1
        """How many of them were matched, or committed by `commit_input`; -1 once another call has committed, or may have."""
        self.snapshot_positions: list[int] = []
        """Lengths at which the user asked for a snapshot of the recurrent state."""
        self.other_texts: list[list[TokenIdExt]] = []
        """The tokens of further beams, each as long as ``text``."""
        self.told_indices: dict[int, list[int]] = {}
        """By layer group, the base page indices when `take_changed_blocks` was asked last."""
        self.has_shared = False
        """Whether blocks of it were forked, lent or planned."""

    @property
    def handle(self) -> KVCache:
        assert self._handle is not None, "a sequence was used after it was forgotten"
        return self._handle

    def forget_handle(self) -> None:
        """The user drops the handle, as if by mistake."""
        self._handle = None

    @property
    def num_unfinished(self) -> int:
        """Tokens that are still to be computed or committed."""
        return len(self.to_compute) + (max(self.num_uncommitted, 0) if self.model.is_committing else 0)

    @property
    def num_uncommitted(self) -> int:
        """Computed tokens that may be committed now."""
        return min(len(self.text), self.max_committed) - len(self.model.committed)

    def take_back(self, num_kept: int, comes_again: bool) -> None:
        """Drop the computed tokens from ``num_kept`` on; the same ones are computed again later, or others."""
        taken_back = self.text[num_kept:]
        for text in [self.text, *self.other_texts]:
            del text[num_kept:]
        if comes_again:
            self.to_compute[:0] = taken_back

    def set_texts(self, texts: list[list[TokenIdExt]]) -> None:
        """Set the tokens of all beams."""
        self.text = texts[0]
        self.other_texts = texts[1:]

    def fits_buffers(self, num_blocks: int) -> bool:
        return all([len(buffer) >= num_blocks for buffer in self.buffers.values()])
