"""What the learned policies are told of a request as it ends: its blocks, those that it generated, and what the caller has said of it."""

from random import Random

import pytest
from small_models import manager_of

from kv_cache_manager_v2 import RetentionConfig, TokenRangeRetention
from kv_cache_manager_v2.sequence.residency import _describe_request
from kv_cache_manager_v2.storage.eviction.segment_traits import CONTINUES, ENDS, NO_HINT

T = 4


@pytest.mark.parametrize("seed", range(20))
def test_blocks_and_tokens_that_were_generated(seed: int) -> None:
    """Generated are the tokens behind the prompt, and the whole blocks that begin behind its last one; of no prompt nothing is."""
    random = Random(seed)
    with manager_of(tokens_per_block=T, num_slots=64) as manager:
        facts = manager._shared.storage.learning.request
        for number in range(6):
            prompt = [1000 * number + position for position in range(random.choice((0, 1, 4, 5, 11, 16)))]
            total = max(len(prompt) - 2, 0) + random.choice((1, 2, 3, 6, 9, 20))
            tokens = prompt + [500 + position for position in range(40)]
            has_kind = random.random() < 0.5 and len(prompt) > 0
            retention = RetentionConfig([TokenRangeRetention(0, None, 50, kind=3)]) if has_kind else None
            with manager.create_kv_cache(input_tokens=prompt, retention=retention) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(total)
                kv_cache.commit(tokens[kv_cache.num_committed_tokens : total])
                state = kv_cache._state_for_batch()
                state.request.continues = random.choice((NO_HINT, CONTINUES, ENDS))
                _describe_request(state)
                is_longer = 0 < len(prompt) < total
                num_blocks = total // T
                first_generated = -(-len(prompt) // T)
                assert facts.num_blocks == num_blocks and facts.continues == state.request.continues
                assert facts.num_generated_tokens == (total - len(prompt) if is_longer else 0)
                assert facts.num_generated_blocks == (max(num_blocks - first_generated, 0) if is_longer else 0)
                assert len(facts.kinds) == (num_blocks if has_kind else 0)
                facts.end()
