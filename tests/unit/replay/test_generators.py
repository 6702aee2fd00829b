"""Made workloads: seeded, in order, and with what makes them worth caching."""

import pytest

from kv_cache_manager_v2.replay.generators import WORKLOAD_NAMES, make_workload
from kv_cache_manager_v2.replay.prefix_ledger import LedgerCursor, PrefixLedger
from kv_cache_manager_v2.replay.tokens import answer_segment
from kv_cache_manager_v2.replay.workload import Request


def requests_of(name: str, seed: int = 0, num_requests: int = 300) -> list[Request]:
    return list(make_workload(name, seed, num_requests).requests())


def as_values(requests: list[Request]) -> list[object]:
    return [
        (
            one.id, one.arrival_ms, one.segment_codes.tolist(), one.segment_lengths.tolist(), one.num_output_tokens,
            one.after, one.pause_steps,
        )
        for one in requests
    ]  # fmt: skip


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_the_seed_decides(name: str) -> None:
    assert as_values(requests_of(name, 5)) == as_values(requests_of(name, 5))
    assert as_values(requests_of(name, 5)) != as_values(requests_of(name, 6))


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_requests_are_in_order_and_add_up(name: str) -> None:
    workload = make_workload(name, 1, 250)
    requests = list(workload.requests())
    summary = workload.summary()
    assert summary.num_requests == len(requests) == 250
    assert summary.num_prompt_tokens == sum(one.num_prompt_tokens for one in requests)
    assert summary.num_output_tokens == sum(one.num_output_tokens for one in requests)
    assert [one.arrival_ms for one in requests] == sorted(one.arrival_ms for one in requests)
    seen: set[int] = set()
    for one in requests:
        assert one.id not in seen
        assert one.after is None or one.after in seen
        assert one.num_output_tokens >= 1
        assert int(one.segment_lengths.min()) >= 1
        seen.add(one.id)


@pytest.mark.parametrize("name", ["chat", "agents", "mix"])
def test_a_later_turn_begins_with_the_earlier_prompt_and_its_answer(name: str) -> None:
    by_id = {one.id: one for one in requests_of(name)}
    turns = [one for one in by_id.values() if one.after is not None]
    assert len(turns) > 50
    for turn in turns:
        assert turn.after is not None
        earlier = by_id[turn.after]
        codes = [*earlier.segment_codes.tolist(), answer_segment(earlier.id)]
        lengths = [*earlier.segment_lengths.tolist(), earlier.num_output_tokens]
        assert turn.segment_codes.tolist()[: len(codes)] == codes
        assert turn.segment_lengths.tolist()[: len(lengths)] == lengths
        assert turn.num_prompt_tokens > earlier.num_prompt_tokens + earlier.num_output_tokens


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_much_of_it_can_be_reused(name: str) -> None:
    ledger = PrefixLedger()
    reusable = prompt = 0
    for one in requests_of(name):
        reusable += ledger.match(one)
        prompt += one.num_prompt_tokens
        ledger.publish(LedgerCursor(one), one.num_computed_tokens)
    # Retrieval shares least: only the first documents of a prompt are likely the same.
    assert reusable / prompt > 0.3


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError):
        make_workload("nonsense")
    with pytest.raises(ValueError):
        make_workload("chat", 0, 0)
