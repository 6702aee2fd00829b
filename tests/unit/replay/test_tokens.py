"""Segments become tokens: equal codes equal tokens, different ones different from the first token on."""

import numpy as np

from kv_cache_manager_v2.replay.tokens import NUM_SEGMENT_IDS, Tokens, answer_segment, make_tokens


def tokens_of(*segments: tuple[int, int]) -> Tokens:
    codes = np.array([code for code, _ in segments], dtype=np.int64)
    lengths = np.array([length for _, length in segments], dtype=np.int64)
    return make_tokens(codes, lengths)


def test_equal_codes_give_equal_tokens_wherever_they_stand() -> None:
    alone = tokens_of((7, 512))
    behind = tokens_of((3, 100), (7, 300), (9, 5))
    assert behind[100:400].tolist() == alone[:300].tolist()


def test_tokens_are_valid_int32_ids() -> None:
    tokens = tokens_of((0, 512), (NUM_SEGMENT_IDS - 1, 512), (answer_segment(0), 99), (answer_segment(12345), 3))
    assert tokens.dtype == np.int32
    assert int(tokens.min()) >= 0
    assert len(tokens) == 512 + 512 + 99 + 3


def test_every_first_token_is_unlike_all_other_tokens() -> None:
    # 4,000 prompt segments and 4,000 answers: 8,000 first tokens, all different, and none is among the other tokens.
    segments = [(code, 20) for code in range(4000)] + [(answer_segment(id), 20) for id in range(4000)]
    tokens = tokens_of(*segments)
    firsts = set(tokens[::20].tolist())
    assert len(firsts) == 8000
    rest = np.delete(tokens, np.arange(0, len(tokens), 20))
    assert firsts.isdisjoint(rest.tolist())


def test_prompts_and_answers_have_no_token_in_common() -> None:
    prompts = set(tokens_of(*[(code, 50) for code in range(1000)]).tolist())
    answers = set(tokens_of(*[(answer_segment(id), 50) for id in range(1000)]).tolist())
    assert prompts.isdisjoint(answers)


def test_the_tokens_of_a_segment_vary() -> None:
    # 2**29 values: 2,000 draws without the first have 2000**2 / 2**30 = 0.004 equal pairs to expect.
    assert len(set(tokens_of((42, 2001)).tolist())) > 1990


def test_no_segments_no_tokens() -> None:
    assert len(tokens_of()) == 0
