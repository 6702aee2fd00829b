"""Why prompt tokens were missed: a replay knows what was published, so it tells new tokens from forgotten ones."""

import json

import pytest
from unit.replay.serving import BYTES_PER_BLOCK, replay, request_of

from kv_cache_manager_v2 import MissCause, PromptStatistics
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.decoding import Decoding
from kv_cache_manager_v2.replay.prompt_misses import MISS_MEANINGS, count_misses, words_of
from kv_cache_manager_v2.replay.report_rows import plain_report
from kv_cache_manager_v2.replay.serving_limits import ServingLimits


def test_new_and_forgotten_are_told_apart() -> None:
    # Of 100 tokens 99 are asked for: 30 hit, 20 evicted, 49 not remembered; 80 were published once, so that 19 and the last are new.
    prompt = PromptStatistics(99, (30,), {MissCause.EVICTED: 20, MissCause.NOT_REMEMBERED: 49})
    assert count_misses(prompt, 100, 80, 80, 4) == {"evicted": 20, "new": 20, "forgotten": 30}
    assert count_misses(prompt, 100, 50, 50, 4) == {"evicted": 20, "new": 50}
    # Of the 49 the 10 up to token 60 were published; other requests compute 15 up to token 75; 25 are new, with the last token.
    assert count_misses(prompt, 100, 60, 75, 4) == {"evicted": 20, "new": 25, "computed at the same time": 15, "forgotten": 10}
    # A request that comes later in the log was served before.
    assert count_misses(prompt, 100, 80, 75, 4) == {"evicted": 20, "new": 20, "forgotten": 30}


def test_published_tokens_in_a_part_of_a_block_went_with_those_before_them() -> None:
    """The manager records whole blocks that are gone. Three tokens behind eight evicted ones were published, and are no block of four."""
    prompt = PromptStatistics(15, (0,), {MissCause.EVICTED: 8, MissCause.NOT_REMEMBERED: 7})
    assert count_misses(prompt, 16, 11, 11, 4) == {"evicted": 11, "new": 5}
    assert count_misses(prompt, 16, 12, 12, 4) == {"evicted": 8, "new": 4, "forgotten": 4}
    alone = PromptStatistics(3, (0,), {MissCause.NOT_REMEMBERED: 3})
    assert count_misses(alone, 4, 3, 3, 4) == {"evicted": 3, "new": 1}


def test_nothing_is_forgotten_while_the_history_has_room() -> None:
    """Chats in memory for few of them: the history has four records a slot, more than all blocks that there ever were."""
    requests = []
    for turn in range(3):
        for chat in range(12):
            requests.append(request_of(len(requests), [(100 * chat + part, 13) for part in range(turn + 1)]))
    report = replay(requests, memory_bytes=40 * BYTES_PER_BLOCK, limits=one_at_a_time())
    assert report.missed_tokens["evicted"] > 0 and "forgotten" not in report.missed_tokens
    assert report.hit_tokens + sum(report.missed_tokens.values()) == report.prompt_tokens


def test_a_tiny_cache_forgets_what_was_here() -> None:
    """One long-gone prompt comes back: nothing of it is new."""
    # 4 blocks of 4 tokens remember 16 blocks. 150 other prompts of 2 blocks come before the first returns.
    requests = [request_of(0, [(0, 8)])]
    requests += [request_of(number, [(number, 8)]) for number in range(1, 151)]
    requests.append(request_of(151, [(0, 8)]))
    report = replay(requests, memory_bytes=4 * BYTES_PER_BLOCK, limits=one_at_a_time())
    # The first 151 prompts are new; of the last one 7 tokens were here, and the 8th must be computed. Its second block is never
    # published as a whole: 7 of 8 tokens of a prompt and the answer's token fill it.
    assert report.reusable_tokens == 7
    assert report.missed_tokens == {"new": 151 * 8 + 1, "forgotten": 7}
    assert report.hit_tokens + sum(report.missed_tokens.values()) == report.prompt_tokens


def test_requests_that_start_again_count_once() -> None:
    """Room for two of three, which draft: one is closed and comes back, and finds what it has published itself. That is no reuse."""
    requests = [request_of(number, [(number, 16)], 24) for number in range(3)]
    report = replay(requests, memory_bytes=18 * BYTES_PER_BLOCK, decoding=Decoding(1))
    assert report.restarts > 0
    assert report.prompt_tokens == 48 and report.hit_tokens == 0 and report.missed_tokens == {"new": 48}
    assert sum([tier.hit_tokens for tier in report.tiers]) == report.hit_tokens


def test_every_cause_has_a_word_with_a_meaning_in_the_table() -> None:
    assert {words_of(cause) for cause in MissCause} - {"not remembered"} < set(MISS_MEANINGS)
    report = replay([request_of(0, [(0, 12)])], memory_bytes=20 * BYTES_PER_BLOCK)
    assert f"100.0%, 12: {MISS_MEANINGS['new']}" in plain_report(report)


def one_at_a_time() -> ServingLimits:
    return ServingLimits(max_running=1)


def test_what_is_reusable_is_a_property_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """However many requests run at once; and in memory without bounds nothing is forgotten."""
    reusable = []
    for max_running in ("1", "64"):
        arguments = ["--workload", "shared-prompt", "--limit", "30", "--max-running", max_running, "--memory", "unlimited"]
        assert main(["replay", *arguments, "--json", "-", "--quiet"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["hit_tokens"] + sum(report["missed_tokens"].values()) == report["prompt_tokens"]
        assert report["missed_tokens"].get("forgotten", 0) == 0
        reusable.append(report["reusable_tokens"])
    assert reusable[0] == reusable[1] > 0
