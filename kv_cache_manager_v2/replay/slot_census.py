"""A census of the slots that running sequences use, per layer group, and its peak.

A page that several sequences share counts once; scratch slots count as well; droppable pages, which no sequence uses, do not.
So the peak is what a layer group needs, while the pool group's own peak says how far the cache has filled up.

Each sequence is counted as of its last `look`. Its slots change only in steps with more than one input and
where a token begins a block or leaves a window (`must_look`); the many steps in between cost nothing.
"""

from typing import Final, final


from .. import AttentionLayerConfig, HalfOpenRange, KVCache, KVCacheManager, LayerGroupId


@final
class _GroupCensus:
    """One layer group: how many sequences use each slot."""

    __slots__ = ("num_users", "peak_used")

    def __init__(self) -> None:
        self.num_users: Final[dict[int, int]] = {}
        self.peak_used = 0

    def count(self, counted: list[int], begin: int, slots: list[int]) -> None:
        """A sequence has these slots, -1 for none, in the places from ``begin`` on. ``counted``: its slots as they were counted."""
        for place, slot in enumerate(slots, begin):
            if place == len(counted):
                counted.append(-1)
            self._add(slot, 1)
            self._add(counted[place], -1)
            counted[place] = slot

    def cut(self, counted: list[int], num_places: int) -> None:
        """The sequence has so many places left."""
        while len(counted) > num_places:
            self._add(counted.pop(), -1)

    def _add(self, slot: int, num_users: int) -> None:
        if slot >= 0:
            self.num_users[slot] = self.num_users.get(slot, 0) + num_users
            if self.num_users[slot] == 0:
                del self.num_users[slot]


@final
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
        self._slots_of: Final[dict[int, list[tuple[list[int], list[int]]]]] = {}
        """By ticket and layer group: the slots of its blocks, and others."""
        states = [group for group in range(len(self._groups)) if not manager.life_cycle_of_group(group).has_page_per_block]
        self._state_group: Final[int] = states[0] if states else -1

    def must_look(self, ticket: int, position: int) -> bool:
        """Whether a step of one token at ``position`` may have changed the slots of that sequence."""
        return position % self._tokens_per_block in self._steps_that_move or ticket not in self._slots_of

    def look(self, ticket: int, kv_cache: KVCache) -> None:
        """Count the active sequence as it is now. Costs what has changed since the last look, all of it the first time."""
        is_new = ticket not in self._slots_of
        if is_new:
            self._slots_of[ticket] = [([], []) for _ in self._groups]
        for group, (census, (of_blocks, others)) in enumerate(zip(self._groups, self._slots_of[ticket])):
            group_id = LayerGroupId(group)
            if group == self._state_group:
                census.count(others, 0, [kv_cache.get_ssm_block_base_index(group_id)])
                continue
            indices = kv_cache.get_base_page_indices(group_id)
            changed = kv_cache.take_changed_blocks(group_id)
            census.cut(of_blocks, len(indices))
            for blocks in [HalfOpenRange(0, len(indices))] if is_new else changed:
                census.count(of_blocks, blocks.beg, indices[blocks.beg : blocks.end].tolist())
            scratch = kv_cache.get_scratch_desc(group_id)
            census.cut(others, 0)
            census.count(others, 0, [] if scratch is None else list(scratch.slot_ids))

    def leave(self, ticket: int) -> None:
        """Remove the sequence; it may be unknown."""
        for census, (of_blocks, others) in zip(self._groups, self._slots_of.pop(ticket, ())):
            census.cut(of_blocks, 0)
            census.cut(others, 0)

    def record_peak(self) -> None:
        """Record the peak; every sequence that changed has been counted anew."""
        for census in self._groups:
            census.peak_used = max(census.peak_used, len(census.num_users))

    @property
    def num_used(self) -> tuple[int, ...]:
        return tuple([len(census.num_users) for census in self._groups])

    @property
    def peak_used(self) -> tuple[int, ...]:
        return tuple([census.peak_used for census in self._groups])
