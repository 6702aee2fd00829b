"""Continuous batching over the real manager: everything is served, hits are exact, room that runs out is got over."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from unit.replay.serving import BYTES_PER_BLOCK, FULL, MODELS, WINDOWED, replay, request_of

from kv_cache_manager_v2.replay.decoding import Decoding
from kv_cache_manager_v2.replay.generators import WORKLOAD_NAMES, make_workload
from kv_cache_manager_v2.replay.presets import ModelPreset
from kv_cache_manager_v2.replay.report import ReplayReport
from kv_cache_manager_v2.replay.serving_limits import ServingLimits
from kv_cache_manager_v2.replay.tokens import answer_segment, make_tokens
from kv_cache_manager_v2.replay.workload import ListedWorkload, Request

ONE_AT_A_TIME = ServingLimits(max_running=1, token_budget=64, chunk_tokens=16)
FEW_AT_A_TIME = ServingLimits(max_running=4, token_budget=32, chunk_tokens=8)


def by_model(model: ModelPreset) -> str:
    return model.name


def chats(seed: int, num_sessions: int = 8) -> list[Request]:
    """Small sessions that share beginnings: 3 to 60 tokens a prompt, later turns hold the answers before them."""
    random = Random(seed)
    requests: list[Request] = []
    sessions: list[tuple[list[tuple[int, int]], int | None]] = [
        ([(random.randrange(3), random.choice([3, 8, 9]))], None) for _ in range(num_sessions)
    ]  # fmt: skip
    next_code = 10
    for _ in range(3 * num_sessions):
        place = random.randrange(num_sessions)
        prompt, after = sessions[place]
        if after is not None:
            prompt = [*prompt, (answer_segment(after), requests[after].num_output_tokens)]
        prompt = [*prompt, (next_code, random.randint(1, 9))]
        next_code += 1
        id = len(requests)
        requests.append(request_of(id, prompt, random.choice([0, 1, 2, 5, 11]), after, random.randint(0, 4)))
        if requests[-1].num_output_tokens > 0:
            sessions[place] = (prompt, id)
        else:
            sessions[place] = (sessions[place][0], None)
    return requests


def brute_force_hits(requests: list[Request]) -> int:
    """One after the other, nothing forgotten: the longest common prefix with any earlier run of tokens."""
    earlier: list[list[int]] = []
    total = 0
    for request in requests:
        tokens = make_tokens(request.codes_with_answer(), request.lengths_with_answer()).tolist()
        prompt = tokens[: request.num_prompt_tokens - 1]
        best = 0
        for other in earlier:
            length = min(len(prompt), len(other))
            same = next((i for i in range(length) if prompt[i] != other[i]), length)
            best = max(best, same)
        total += best
        earlier.append(tokens)
    return total


def assert_all_served(report: ReplayReport, requests: list[Request]) -> None:
    assert report.requests == len(requests)
    assert report.requests_refused == 0
    assert report.prompt_tokens == sum(one.num_prompt_tokens for one in requests)
    assert report.generated_tokens == sum(one.num_output_tokens for one in requests)
    assert report.mismatches == 0, report.first_mismatches


@pytest.mark.parametrize("model", MODELS, ids=by_model)
@pytest.mark.parametrize("seed", range(3))
def test_hits_one_at_a_time_equal_brute_force(model: ModelPreset, seed: int) -> None:
    # Without followers, so that the order of service is the order of the list.
    requests = [
        Request(one.id, one.arrival_ms, one.segment_codes, one.segment_lengths, one.num_output_tokens)
        for one in chats(seed)
    ]  # fmt: skip
    report = replay(requests, model=model, memory_bytes=None, limits=ONE_AT_A_TIME, verify=True, device="host")
    assert_all_served(report, requests)
    assert report.hit_tokens == brute_force_hits(requests) > 0
    assert report.reusable_tokens == report.hit_tokens
    # What was not hit was computed; of each answer all but the last token.
    answers = sum(max(one.num_output_tokens - 1, 0) for one in requests)
    assert report.computed_tokens == report.prompt_tokens - report.hit_tokens + answers
    assert (report.preemptions, report.restarts, report.refusals, report.evicted_pages) == (0, 0, 0, 0)


@pytest.mark.parametrize("model", MODELS, ids=by_model)
@pytest.mark.parametrize("seed", range(3))
def test_hits_side_by_side_lack_what_was_computed_at_the_same_time(model: ModelPreset, seed: int) -> None:
    """What is possible is the log's, whatever runs side by side; what that costs is a cause of its own."""
    requests = chats(seed)
    report = replay(requests, model=model, memory_bytes=None, limits=FEW_AT_A_TIME, verify=True, device="host")
    assert_all_served(report, requests)
    one_by_one = replay(requests, model=model, memory_bytes=None, limits=ONE_AT_A_TIME)
    assert report.reusable_tokens == one_by_one.reusable_tokens > 0
    # Requests are not always served in the log's order: what one of them lacks for that another one may get.
    same_time = report.missed_tokens.get("computed at the same time", 0)
    assert report.reusable_tokens - same_time <= report.hit_tokens <= report.reusable_tokens


def test_requests_of_one_step_share_what_it_computes() -> None:
    """Twenty requests with one prompt of 25 blocks and a token: with all running in the first step as with one."""
    requests = [request_of(number, [(1, 100), (10 + number, 5)]) for number in range(20)]
    reports = [
        replay(requests, memory_bytes=None, verify=True, device="host", limits=ServingLimits(max_running=running)) for running in (64, 1)
    ]
    # The first request computes its 105 tokens, each other one its own 5. A block has 4 tokens: the 26th is never whole in the step.
    assert [report.hit_tokens for report in reports] == [19 * 100, 19 * 100]
    assert [report.reusable_tokens for report in reports] == [19 * 100, 19 * 100]
    assert reports[0].steps == 1 and reports[1].steps == 20
    assert [call.count for call in reports[0].calls if call.name == "publish_planned"] == [20]


def test_a_shared_part_of_a_block_is_computed_at_the_same_time() -> None:
    """26 blocks of 4 and two tokens more are shared: in one step the whole blocks alone, and the two tokens have their cause."""
    requests = [request_of(number, [(1, 106), (10 + number, 5)]) for number in range(2)]
    report = replay(requests, memory_bytes=None, limits=ServingLimits(max_running=64))
    assert (report.hit_tokens, report.reusable_tokens) == (104, 106)
    # 111 and 111 - 106 tokens are new.
    assert report.missed_tokens == {"new": 116, "computed at the same time": 2}


@pytest.mark.parametrize("model", MODELS, ids=by_model)
@pytest.mark.parametrize("seed", range(3))
def test_scarce_memory_is_got_over(model: ModelPreset, seed: int) -> None:
    requests = chats(seed, 20)
    longest = max(one.num_prompt_tokens + one.num_output_tokens for one in requests)
    # Room for the longest request and little more: a copied last block, and one in hand.
    memory_bytes = (-(-longest // 4) + 2) * BYTES_PER_BLOCK
    report = replay(requests, model=model, memory_bytes=memory_bytes, limits=FEW_AT_A_TIME, verify=True, device="host")
    assert_all_served(report, requests)
    assert report.evicted_pages > 0
    # A windowed layer gives back so much that few ever find no room.
    assert report.refusals > 0 or model is not FULL
    assert report.hit_tokens <= report.reusable_tokens


def long_answers_in_little_room(decoding: Decoding) -> tuple[ReplayReport, list[Request]]:
    """Six requests of 20 + 40 tokens (15 blocks of 4) in 40 blocks: four could get in, and no more than two can end together."""
    requests = [request_of(id, [(id, 20)], 40) for id in range(6)]
    limits = ServingLimits(max_running=6, token_budget=64, chunk_tokens=20)
    report = replay(requests, memory_bytes=40 * BYTES_PER_BLOCK, limits=limits, decoding=decoding, verify=True, device="host")
    assert_all_served(report, requests)
    return report, requests


def test_no_request_starts_again_where_an_order_is_known() -> None:
    # A request computes its prompt and all of its answer but the last token, once.
    report, requests = long_answers_in_little_room(Decoding())
    assert (report.restarts, report.computed_tokens) == (0, len(requests) * (20 + 40 - 1))


def test_preempted_sequences_resume_or_restart() -> None:
    # Drafts come and go: no order is asked for.
    report, _ = long_answers_in_little_room(Decoding(1))
    assert report.preemptions > 0
    # With one tier the pages of a suspended sequence have nowhere to go, so some had to be closed.
    assert report.restarts > 0


def test_the_youngest_waits_and_goes_on() -> None:
    # Request 0 needs 5 + 9 tokens = 13 computed, 4 blocks; request 1 the same. In 7 blocks they start with 2 each; when
    # both want their 4th block, there is one: request 1 waits until request 0 is done, without a token computed twice.
    requests = [request_of(id, [(id, 5)], 9) for id in range(2)]
    limits = ServingLimits(max_running=2, token_budget=10, chunk_tokens=5)
    report = replay(requests, memory_bytes=7 * BYTES_PER_BLOCK, limits=limits, verify=True, device="host")
    assert_all_served(report, requests)
    assert report.restarts == 0
    assert report.computed_tokens == 26


@pytest.mark.parametrize("model", MODELS, ids=by_model)
def test_what_cannot_fit_even_alone_is_refused_and_the_others_served(model: ModelPreset) -> None:
    # 12 blocks are 48 tokens; request 1 would need 100, request 3 grows out of them while it generates.
    requests = [
        request_of(0, [(0, 10)], 3), request_of(1, [(1, 100)], 3), request_of(2, [(2, 30)], 3),
        request_of(3, [(3, 10)], 200), request_of(4, [(4, 10)], 3),
        request_of(5, [(3, 10), (answer_segment(3), 5)], 2, 3),
    ]  # fmt: skip
    report = replay(requests, model=model, memory_bytes=12 * BYTES_PER_BLOCK, limits=FEW_AT_A_TIME, verify=True, device="host")
    assert report.requests == 4
    assert report.requests_refused == 2
    assert report.mismatches == 0


def test_a_turn_starts_after_its_pause_and_reuses_the_answer() -> None:
    # Turn 0: 8 prompt + 9 answer tokens, 16 of them computed. Turn 1 holds all of it and 3 more: 16 hits.
    requests = [request_of(0, [(0, 8)], 9), request_of(1, [(0, 8), (answer_segment(0), 9), (1, 3)], 2, after=0, pause_steps=50)]
    report = replay(requests, memory_bytes=None, verify=True, device="host")
    assert_all_served(report, requests)
    assert report.hit_tokens == 16
    # 9 steps for turn 0 and 2 for turn 1; the pause passes without steps.
    assert report.steps == 11


def test_prompts_go_in_chunks_one_after_the_other() -> None:
    # Two prompts of 20 in chunks of 8 with 12 tokens a step: 8, 8, then 4 + 8, 8, 4.
    requests = [request_of(id, [(id, 20)], 1) for id in range(2)]
    limits = ServingLimits(max_running=4, token_budget=12, chunk_tokens=8)
    report = replay(requests, memory_bytes=None, limits=limits, verify=True, device="host")
    assert report.steps == 5


def test_a_follower_reuses_what_a_running_prompt_has_published() -> None:
    # Request 0: 16 tokens in steps of 8. Request 1 is admitted in step 2, when 2 blocks of 4 are published.
    requests = [request_of(0, [(0, 16)], 4), request_of(1, [(0, 16), (1, 2)], 1)]
    limits = ServingLimits(max_running=2, token_budget=8, chunk_tokens=8)
    report = replay(requests, memory_bytes=None, limits=limits, verify=True, device="host")
    # Step 1: all budget to request 0; step 2: 8 more for request 0, no budget left; step 3: request 0 generates and
    # request 1 comes in, when 16 tokens are published.
    assert report.hit_tokens == 16


def test_the_same_replay_twice() -> None:
    requests = chats(7, 10)
    reports = [replay(requests, model=WINDOWED, memory_bytes=30 * BYTES_PER_BLOCK, limits=FEW_AT_A_TIME, device="none") for _ in range(2)]
    first, second = [replace(one, wall_seconds=0.0, manager_seconds=0.0, calls=()) for one in reports]
    assert first == second


def test_bookkeeping_serves_as_the_host_does() -> None:
    requests = chats(8, 10)
    with_bytes, without = [
        replay(requests, model=WINDOWED, memory_bytes=30 * BYTES_PER_BLOCK, limits=FEW_AT_A_TIME, device=device)
        for device in ("host", "none")
    ]
    assert with_bytes.device != without.device
    first, second = [replace(one, wall_seconds=0.0, manager_seconds=0.0, calls=(), device="") for one in (with_bytes, without)]
    assert first == second


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_made_workloads_run_through(name: str) -> None:
    workload = make_workload(name, 3, 25)
    report = replay(workload, memory_bytes=None, tokens_per_block=32, check_invariants=False)
    assert_all_served(report, list(workload.requests()))
    same_time = report.missed_tokens.get("computed at the same time", 0)
    assert 0 < report.reusable_tokens - same_time <= report.hit_tokens <= report.reusable_tokens


@pytest.mark.parametrize("model", MODELS, ids=by_model)
def test_invariants_hold_after_every_step_of_a_mixed_workload(model: ModelPreset) -> None:
    workload = make_workload("mix", 4, 16)
    # The longest request and 8 blocks more; a block of both layers is 32 tokens of 2 * 2 * 8 bytes.
    memory_bytes = (-(-workload.summary().longest_tokens // 32) + 8) * 1024
    report = replay(workload, model=model, memory_bytes=memory_bytes, tokens_per_block=32, verify=True, device="host")
    assert_all_served(report, list(workload.requests()))
    assert report.invariants_checked
    assert report.evicted_pages > 0


def test_nothing_to_serve() -> None:
    report = replay(ListedWorkload("empty", []), memory_bytes=None)
    assert (report.requests, report.steps, report.hit_rate) == (0, 0, 0.0)


def test_a_prompt_that_is_all_there_still_computes_its_last_token() -> None:
    requests = [request_of(id, [(0, 12)], 1) for id in range(3)]
    report = replay(requests, memory_bytes=None, limits=ONE_AT_A_TIME, verify=True, device="host")
    assert report.hit_tokens == 2 * 11
    assert report.computed_tokens == 12 + 1 + 1


@pytest.mark.parametrize(("max_running", "budget", "chunk"), [(0, 8, 8), (4, 3, 8), (4, 8, 0)])
def test_impossible_limits_are_refused(max_running: int, budget: int, chunk: int) -> None:
    with pytest.raises(ValueError):
        ServingLimits(max_running, budget, chunk)


def test_peak_slots_are_counted() -> None:
    # One request of 8 + 5 tokens, 12 computed: 3 blocks of 4, and nothing is ever given back.
    report = replay([request_of(0, [(0, 8)], 5)], model=FULL, memory_bytes=20 * BYTES_PER_BLOCK)
    assert [group.peak_slots for group in report.pool_groups] == [3]
    assert [group.total_slots for group in report.pool_groups] == [20]
    assert np.prod([group.slot_bytes for group in report.pool_groups]) == BYTES_PER_BLOCK
