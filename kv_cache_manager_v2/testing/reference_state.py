"""The rules of recurrent state, for the reference model: slots, matches, snapshots.

Written from the design: a sequence has its slots from its first resume on. A prefix of ``n`` tokens can be matched if its attention
can and there is a snapshot of exactly ``n`` tokens; or, if the state may be replayed, all of the attention if a snapshot is not
too far behind, and no window has moved past a block in between.
"""

from collections.abc import Sequence, Set
from typing import Any, Final, final


from ..config.layer_config import SsmLayerConfig
from ..config.manager_config import KVCacheManagerConfig
from ..config.snapshot_policy import SnapshotPolicy
from .reference_sequence import ReferenceSequence
from .reference_tree import GroupRule, Page, ReferenceMatch, ReferenceTree, Scope, Text


def group_layers(config: KVCacheManagerConfig) -> list[list[Any]]:
    """The configured layers by layer group: equal windows, sinks and parts, or recurrent, in order of first appearance."""
    groups: dict[object, list[Any]] = {}
    division = config.divide_into_equal_slots()
    for layer in config.layers:
        key = _key_of(layer, config.tokens_per_block)
        if key is not None and division is not None:
            key = (key[0], key[1], division.part_of[layer.layer_id])
        groups.setdefault(key, []).append(layer)
    return list(groups.values())


def make_rules(config: KVCacheManagerConfig) -> list[GroupRule]:
    """The rule of each layer group."""
    rules: list[GroupRule] = []
    for members in group_layers(config):
        key = _key_of(members[0], config.tokens_per_block)
        rules.append(GroupRule(None, 0, True) if key is None else GroupRule(key[0], key[1], False))
    return rules


def _key_of(layer: Any, tokens_per_block: int) -> tuple[int | None, int, int] | None:
    """(window, sink blocks, part), or None for recurrent state."""
    if isinstance(layer, SsmLayerConfig):
        return None
    num_sink_tokens: int = layer.num_sink_tokens or 0
    return layer.sliding_window_size, -(-num_sink_tokens // tokens_per_block), layer.part


@final
class StateRule:
    """``group``: the layer group of the recurrent layers, negative if there are none."""

    __slots__ = ("group", "num_slots", "max_replay_tokens", "_policy", "_tokens_per_block", "_rules", "_tree")

    def __init__(self, config: KVCacheManagerConfig, rules: Sequence[GroupRule], tree: ReferenceTree) -> None:
        groups = [group for group, rule in enumerate(rules) if rule.is_state]
        self.group: Final[int] = groups[0] if groups else -1
        self.num_slots: Final[int] = config.state_checkpoints + 1 if groups else 0
        # Without attention, replaying saves nothing.
        self.max_replay_tokens: Final[int] = config.max_state_replay_tokens if len(groups) < len(rules) else 0
        self._policy: Final[SnapshotPolicy] = config.snapshot_policy
        self._tokens_per_block: Final[int] = config.tokens_per_block
        self._rules: Final = rules
        self._tree: Final = tree

    # -- slots --------------------------------------------------------------------------------------------------------

    def num_private_slots(self, sequences: Sequence[ReferenceSequence], group: int, active_only: bool) -> int:
        if group != self.group:
            return 0
        return self.num_slots * len([s for s in sequences if s.has_state and (s.is_active or not active_only)])

    def count_resume(self, sequence: ReferenceSequence, newly_locked: list[int], least: list[int], most: list[int]) -> None:
        """Count a resume: the first one allocates the slots, beside the snapshot that it copies; later ones lock them."""
        if sequence.has_state:
            newly_locked[self.group] += self.num_slots
            return
        least[self.group] += self.num_slots
        most[self.group] += self.num_slots
        if sequence.snapshot_node is not None:
            newly_locked[self.group] += 1

    def leaves_state_at_close(self, sequence: ReferenceSequence) -> bool:
        """Whether its own slot becomes a snapshot: it is active, and nothing beyond its committed tokens can have been computed."""
        num_committed = len(sequence.committed)
        is_certain = sequence.peak_capacity - num_committed < self.num_slots
        return self._policy.at_close and sequence.is_active and num_committed > sequence.num_matched and is_certain

    @property
    def thins_paths(self) -> bool:
        return self._policy.max_per_path is not None

    def held_snapshot(self, sequence: ReferenceSequence) -> Page | None:
        """The snapshot from which a sequence will start at its first resume."""
        if sequence.snapshot_node is None or sequence.has_state:
            return None
        return (sequence.snapshot_node, self.group)

    # -- matching -----------------------------------------------------------------------------------------------------

    def narrow(self, match: ReferenceMatch, scope: Scope, text: Text, present: Set[Page]) -> ReferenceMatch:
        """The part of an attention match that the state allows."""
        if self.group < 0:
            return match
        lengths = {length for length in match.lengths if self.has_snapshot(scope, text, length, present)}
        is_certain = match.least == match.best
        best = self._best_of(match.best, lengths, scope, text, present)
        if is_certain:
            return ReferenceMatch(best, best, {best})
        for length in match.lengths:
            lengths.add(self._best_of(length, lengths, scope, text, present))
        return ReferenceMatch(best, 0, lengths)

    def _best_of(self, attention_tokens: int, lengths: set[int], scope: Scope, text: Text, present: Set[Page]) -> int:
        if self.find_replay_start(scope, text, attention_tokens, present) is not None:
            return attention_tokens
        return max([length for length in lengths if length <= attention_tokens])

    def has_snapshot(self, scope: Scope, text: Text, num_tokens: int, present: Set[Page]) -> bool:
        """Whether there is a snapshot at that length; at length 0 there always is one: zeros."""
        if num_tokens == 0:
            return True
        node = self._tree.find_exact(scope, text[:num_tokens])
        return node is not None and (node, self.group) in present

    def find_replay_start(self, scope: Scope, text: Text, attention_tokens: int, present: Set[Page]) -> int | None:
        """The latest snapshot from which a match of so many tokens may replay its state; itself, if it has one."""
        for start in range(attention_tokens, max(0, attention_tokens - self.max_replay_tokens - 1), -1):
            if self.max_replay_tokens > 0 and self.has_snapshot(scope, text, start, present):
                if not self._moves_window(start, attention_tokens):
                    return start
        return None

    def _moves_window(self, num_tokens: int, later_tokens: int) -> bool:
        size = self._tokens_per_block
        for rule in self._rules:
            # Replayed tokens attend to each other as well: blocks that they fill and that are out of window at their end are missing.
            for ordinal in range(-(-later_tokens // size)):
                if not rule.is_stale(ordinal, num_tokens, size) and rule.is_stale(ordinal, later_tokens, size):
                    return True
        return False
