"""Trees of drafts: one step computes all nodes, and the accepted branch, wherever its nodes are, is committed."""

from dataclasses import replace
from random import Random
from typing import Final

from ...base.errors import LogicError
from ...base.ids import TokenIdExt
from ...config.manager_config import KVCacheManagerConfig
from ...manager.kv_cache_manager import KVCacheManager
from ..fake_engine import FakeEngine
from ..reference_model import NO_SNAPSHOT, ReferenceModel
from ..step_batch import Step
from .simulated_sequence import SimulatedSequence
from .state_checks import require_unchanged
from .text_source import TextSource

_SHARE_OF_SCENARIOS: Final = 0.15
_SHARE_OF_ACCEPTED: Final = 0.5


def grows_trees(seed: int) -> bool:
    """Whether the scenario has trees; drawn with its own random numbers, so that all others stay the same without trees."""
    return Random(31 * seed + 2).random() < _SHARE_OF_SCENARIOS


def without_scratch(config: KVCacheManagerConfig) -> KVCacheManagerConfig:
    """The configuration without scratch slots, whose shared bytes a tree would move. Recurrent models have no trees at all."""
    return replace(config, swa_scratch_reuse=None)


def may_grow_tree(sequence: SimulatedSequence, num_nodes: int) -> bool:
    """Whether a step of that many inputs may be a tree: all tokens before it may be committed, and none have to be computed next."""
    return (
        num_nodes > 1
        and sequence.model.is_committing
        and len(sequence.other_texts) == 0
        and len(sequence.to_compute) == 0
        and len(sequence.text) <= sequence.max_committed
    )


def grow_tree(
    manager: KVCacheManager,
    engine: FakeEngine,
    model: ReferenceModel,
    texts: TextSource,
    sequence: SimulatedSequence,
    num_nodes: int,
    random: Random,
) -> None:
    """Run the step, and commit a branch; the pages of the other nodes' tokens are overwritten later."""
    begin = len(sequence.text)
    num_committed = len(sequence.model.committed)
    nodes: list[TokenIdExt] = [texts.draw_token(random) for _node in range(num_nodes)]
    accepted = [node for node in range(num_nodes) if random.random() < _SHARE_OF_ACCEPTED]
    del accepted[sequence.max_committed - begin :]
    parents: list[int] = []
    tip = -1
    for node in range(num_nodes):
        if node in accepted:
            parents.append(tip)
            tip = node
        else:
            parents.append(int(random.random() * (node + 1)) - 1)
    engine.execute([Step(sequence.handle, nodes, list(sequence.text), parents)])
    accepted_tokens = [nodes[node] for node in accepted]
    tokens = sequence.text[num_committed:] + accepted_tokens
    positions = [*range(num_committed, begin), *[begin + node for node in accepted]]
    dump = manager.describe()
    try:
        sequence.handle.commit_tree(tokens, positions)
    except (LogicError, ValueError):
        # A fork has the block too, or a token is a digest.
        require_unchanged(dump, manager.describe())
        return
    sequence.text.extend(accepted_tokens)
    sequence.num_computed = max(sequence.num_computed, len(sequence.text))
    model.commit(sequence.model, tokens, NO_SNAPSHOT)
    texts.keep(random, tuple(sequence.model.committed))
