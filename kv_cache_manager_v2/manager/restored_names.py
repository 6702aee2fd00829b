"""Names of what a durable level has brought back: equal ones mean the same page, written at the same point of equal histories.

A name is the beginning of a SHA-256: of the tokens from the scope's root on (as a chain, block by block), the layer group, the pool group,
the slot, the generation and what the policy said of it. Which slot a page has, and in what order pages were written and used, are
decisions, too, and the next ones depend on them. What the policies had learned has a name of its own, the last one.
"""

import json
import struct
from hashlib import sha256
from typing import Final, final

from mypy_extensions import i64

from ..base.checks import to_list
from ..durable.index_state import IndexState
from ..journal.journal_format import NAME_BYTES
from .durable_restore import DurableRestore

_PLACE: Final = struct.Struct("<qqqqq")
_SHOWN: Final = 3


@final
class RestoredNames:
    """``names``: of each page in the order of `DurableRestore.pages`, then of the weights, if there are any."""

    __slots__ = ("names", "_num_pages", "_weights_name")

    def __init__(self, restore: DurableRestore | None) -> None:
        """None: of nothing."""
        self.names: Final[list[bytes]] = []
        self._num_pages: i64 = 0
        self._weights_name = b""
        """Empty where nothing that was learned is restored."""
        if restore is None:
            return
        state = restore.state
        chain = _Chain(state)
        for page in restore.pages:
            kind = (state.life_cycle_of(page), state.pool_group_of(page))
            place = _PLACE.pack(*kind, state.slots[page], state.generations[page], state.description_of(page))
            self.names.append(sha256(chain.find(state.page_nodes[page]) + place).digest()[:NAME_BYTES])
        self._num_pages = len(self.names)
        if restore.has_weights:
            self._weights_name = sha256(b"weights" + state.weights).digest()[:NAME_BYTES]
            self.names.append(self._weights_name)

    def find(self, given: list[bytes]) -> set[int]:
        """The positions of these names among the pages; `ValueError` for one that is not there."""
        positions = {name: position for position, name in enumerate(self.names)}
        unknown = [name for name in given if name not in positions]
        if len(unknown) > 0:
            raise ValueError(
                f"names has {len(unknown)} of {len(given)} that restored() does not have, such as "
                f"{', '.join([name.hex() for name in unknown[:_SHOWN]])}; give those that restored() of all ranks have in common"
            )
        return set([positions[name] for name in given if positions[name] < self._num_pages])

    def has_weights(self, given: list[bytes]) -> bool:
        """Whether the name of what was learned is among them."""
        return len(self._weights_name) > 0 and self._weights_name in given


@final
class _Chain:
    """Digests of paths, each block's once."""

    __slots__ = ("_state", "_digests")

    def __init__(self, state: IndexState) -> None:
        self._state: Final = state
        self._digests: Final[dict[int, bytes]] = {}
        """By node."""

    def find(self, node: i64) -> bytes:
        above = self._digests.get(int(node))
        if above is not None:
            return above
        state = self._state
        path: list[int] = []
        while above is None:
            parent = state.parents[node]
            if parent < 0:
                lora_id, salt = state.scopes[int(node)]
                above = sha256(json.dumps(["scope", lora_id, salt]).encode()).digest()
                self._digests[int(node)] = above
            else:
                path.append(int(node))
                node = parent
                above = self._digests.get(int(node))
        for below in reversed(path):
            above = sha256(above + (b"m" if state.is_mixed(below) else b"p") + state.tokens_of(below)).digest()
            self._digests[below] = above
        return above


def to_names(names: object) -> list[bytes]:
    """As the user gives them, those of a set sorted; `TypeError` for what is no bytes."""
    found: list[bytes] = []
    given: list[object] = list(names) if isinstance(names, (set, frozenset)) else to_list(names, "names")
    for name in given:
        if not isinstance(name, bytes):
            place = f"item {len(found)} is" if isinstance(names, (list, tuple)) else f"the {type(names).__name__} has"
            raise TypeError(f"names must be bytes, as restored() has them; {place} a {type(name).__name__}")
        found.append(name)
    if isinstance(names, (set, frozenset)):
        # The order decides nothing, but is in the journal.
        found.sort()
    return found
