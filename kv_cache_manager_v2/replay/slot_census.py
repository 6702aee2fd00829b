"""A census of the slots that running sequences use, per layer group, and its peak.

A page that several sequences share counts once; scratch slots count as well; droppable pages, which no sequence uses, do not.
So the peak is what a layer group needs, while the pool group's own peak says how far the cache has filled up.

Each sequence is counted as of its last `look`. Its slots change only in steps with more than one input and
where a token begins a block or leaves a window (`must_look`); the many steps in between cost nothing.
"""

from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from .. import AttentionLayerConfig, KVCache, KVCacheManager, LayerGroupId

SlotArray: TypeAlias = npt.NDArray[np.int64]


@final
@mypyc_attr(native_class=True)
class _GroupCensus:
    """One layer group: how many sequences use each slot."""

    __slots__ = ("num_users", "num_used", "peak_used")

    num_users: SlotArray
    num_used: int
    peak_used: int

    def __init__(self) -> None:
        self.num_users = np.zeros(64, dtype=np.int64)
        self.num_used = 0
        self.peak_used = 0

    def add(self, slots: SlotArray) -> None:
        highest = int(slots.max(initial=-1))
        if highest >= len(self.num_users):
            longer = np.zeros(2 * highest + 1, dtype=np.int64)
            longer[: len(self.num_users)] = self.num_users
            self.num_users = longer
        # A sequence has no slot twice, so the sum is right.
        self.num_used += int(np.count_nonzero(self.num_users[slots] == 0))
        self.num_users[slots] += 1

    def remove(self, slots: SlotArray) -> None:
        self.num_users[slots] -= 1
        self.num_used -= int(np.count_nonzero(self.num_users[slots] == 0))


@final
@mypyc_attr(native_class=True)
class SlotCensus:
    """``num_used == slots with a user``, per layer group."""

    __slots__ = ("_tokens_per_block", "_groups", "_steps_that_move", "_slots_of", "_state_group")

    def __init__(self, manager: KVCacheManager) -> None:
        self._tokens_per_block: Final[int] = manager.tokens_per_block
        self._groups: Final[list[_GroupCensus]] = [_GroupCensus() for _ in manager.layer_grouping]
        self._steps_that_move: Final[set[int]] = {0}
        """Positions, modulo a block, at which a block begins or one leaves a window."""
        for layer in manager.init_config.layers:
            if isinstance(layer, AttentionLayerConfig) and layer.window_size is not None:
                self._steps_that_move.add((layer.window_size - 1) % self._tokens_per_block)
        self._slots_of: Final[dict[int, list[SlotArray]]] = {}
        groups = range(len(manager.layer_grouping))
        states = [group for group in groups if not manager.life_cycle_of_group(group).has_page_per_block]
        self._state_group: Final[int] = states[0] if states else -1

    def must_look(self, ticket: int, position: int) -> bool:
        """Whether a step of one token at ``position`` may have changed the slots of that sequence."""
        return position % self._tokens_per_block in self._steps_that_move or ticket not in self._slots_of

    def look(self, ticket: int, kv_cache: KVCache) -> None:
        """Count the active sequence as it is now."""
        self.leave(ticket)
        slots_of: list[SlotArray] = []
        for group, census in enumerate(self._groups):
            if group == self._state_group:
                indices = np.array([kv_cache.get_ssm_block_base_index(LayerGroupId(group))], dtype=np.int64)
            else:
                indices = np.array(kv_cache.get_base_page_indices(LayerGroupId(group)), dtype=np.int64)
            slots = indices[indices >= 0]
            scratch = kv_cache.get_scratch_desc(LayerGroupId(group))
            if scratch is not None:
                slots = np.append(slots, np.array(scratch.slot_ids, dtype=np.int64))
            census.add(slots)
            slots_of.append(slots)
        self._slots_of[ticket] = slots_of

    def leave(self, ticket: int) -> None:
        """Remove the sequence; it may be unknown."""
        slots_of = self._slots_of.pop(ticket, None)
        if slots_of is not None:
            for census, slots in zip(self._groups, slots_of, strict=True):
                census.remove(slots)

    def record_peak(self) -> None:
        """Record the peak; every sequence that changed has been counted anew."""
        for census in self._groups:
            census.peak_used = max(census.peak_used, census.num_used)

    @property
    def num_used(self) -> tuple[int, ...]:
        return tuple([census.num_used for census in self._groups])

    @property
    def peak_used(self) -> tuple[int, ...]:
        return tuple([census.peak_used for census in self._groups])
