"""The ledger's matches equal those of brute force over the tokens themselves."""

from random import Random

import numpy as np
import pytest

from kv_cache_manager_v2.replay.prefix_ledger import LedgerCursor, PrefixLedger
from kv_cache_manager_v2.replay.tokens import Tokens, answer_segment, make_tokens
from kv_cache_manager_v2.replay.workload import Request


def request_of(id: int, segments: list[tuple[int, int]], num_output_tokens: int = 1) -> Request:
    codes = np.array([code for code, _ in segments], dtype=np.int64)
    lengths = np.array([length for _, length in segments], dtype=np.int64)
    return Request(id, 0.0, codes, lengths, num_output_tokens)


def all_tokens(request: Request) -> Tokens:
    return make_tokens(request.codes_with_answer(), request.lengths_with_answer())


def common_prefix(a: Tokens, b: Tokens) -> int:
    length = min(len(a), len(b))
    different = np.nonzero(a[:length] != b[:length])[0]
    return int(different[0]) if len(different) > 0 else length


def test_a_prompt_is_reused_but_for_its_last_token() -> None:
    ledger = PrefixLedger()
    first = request_of(0, [(1, 512), (2, 100)])
    assert ledger.match(first) == 0
    ledger.publish(LedgerCursor(first), 612)
    assert ledger.match(first) == 611
    assert ledger.match(request_of(1, [(1, 512), (3, 9)])) == 512
    assert ledger.match(request_of(2, [(3, 9), (1, 512)])) == 0


def test_a_cut_block_counts_as_far_as_it_goes() -> None:
    ledger = PrefixLedger()
    ledger.publish(LedgerCursor(request_of(0, [(1, 512), (2, 100)])), 612)
    # The same block in full, then more: 100 of its tokens are known.
    assert ledger.match(request_of(1, [(1, 512), (2, 512), (5, 10)])) == 612
    # Cut earlier: 40 of them, and what follows is another text.
    assert ledger.match(request_of(2, [(1, 512), (2, 40), (6, 10)])) == 552


def test_what_is_not_published_yet_is_not_matched() -> None:
    ledger = PrefixLedger()
    running = request_of(0, [(1, 512), (2, 512)])
    cursor = LedgerCursor(running)
    follower = request_of(1, [(1, 512), (2, 512), (3, 1)])
    for published in (0, 32, 512, 544, 1024):
        ledger.publish(cursor, published)
        assert ledger.match(follower) == published


def test_an_answer_is_reused_but_for_its_last_token() -> None:
    ledger = PrefixLedger()
    turn = request_of(0, [(1, 100)], num_output_tokens=20)
    ledger.publish(LedgerCursor(turn), turn.num_computed_tokens)
    # The next turn has all 20 tokens of the answer; the keys and values of the last one were never computed.
    assert ledger.match(request_of(1, [(1, 100), (answer_segment(0), 20), (2, 30)])) == 119


@pytest.mark.parametrize("seed", range(20))
def test_matches_equal_brute_force(seed: int) -> None:
    random = Random(seed)
    ledger = PrefixLedger()
    published: list[Tokens] = []
    for id in range(60):
        segments: list[tuple[int, int]] = []
        for _ in range(random.randint(1, 5)):
            # Few codes and few lengths, so that prefixes meet often; some segments are earlier answers.
            code = answer_segment(random.randrange(id)) if id > 0 and random.random() < 0.3 else random.randrange(3)
            segments.append((code, random.choice([1, 2, 7, 8])))
        request = request_of(id, segments, random.choice([0, 1, 2, 8]))
        tokens = all_tokens(request)
        prompt = tokens[: request.num_prompt_tokens - 1]
        assert ledger.match(request) == max([common_prefix(prompt, other) for other in published], default=0)
        cursor = LedgerCursor(request)
        for num_tokens in sorted(random.sample(range(len(tokens) + 1), min(2, len(tokens)))):
            ledger.publish(cursor, num_tokens)
            published.append(tokens[:num_tokens])
