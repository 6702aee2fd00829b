"""Drafts, beams and hand-overs: the same answers, every byte right, whatever room there is."""

from typing import Any

import pytest
from unit.replay.serving import BYTES_PER_BLOCK, MODELS, replay, request_of

from kv_cache_manager_v2.replay.decoding import Decoding
from kv_cache_manager_v2.replay.presets import ModelPreset
from kv_cache_manager_v2.replay.workload import Request

WAYS = {
    "drafts": {"decoding": Decoding(num_drafts=5)},
    "beams": {"decoding": Decoding(beam_width=3)},
    "elsewhere": {"disaggregate": True},
    "drafts and scratch": {"scratch": True, "decoding": Decoding(num_drafts=5)},
    "beams and scratch": {"scratch": True, "decoding": Decoding(beam_width=3)},
    "elsewhere with scratch": {"scratch": True, "disaggregate": True},
    "drafts elsewhere": {"disaggregate": True, "decoding": Decoding(num_drafts=3)},
    "beams elsewhere": {"disaggregate": True, "decoding": Decoding(beam_width=2)},
}


def requests_of(num_requests: int) -> list[Request]:
    """They share a beginning of 9 tokens; answers of 1 to 13 tokens."""
    return [request_of(id, [(1, 9), (100 + id, 1 + id * 5 % 17)], 1 + id * 3 % 13) for id in range(num_requests)]


def by_name(model: ModelPreset) -> str:
    return model.name


@pytest.mark.parametrize("model", MODELS, ids=by_name)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_blocks", [400, 24])
def test_answers_and_bytes_are_right(way: str, model: ModelPreset, num_blocks: int) -> None:
    """24 blocks are not enough for all at once: requests wait, are preempted, start over."""
    requests = requests_of(10)
    settings: dict[str, Any] = WAYS[way]
    report = replay(
        requests, model=model, verify=True, device="host", memory_bytes=num_blocks * BYTES_PER_BLOCK, **settings
    )
    assert report.mismatches == 0, report.first_mismatches
    assert report.requests + report.requests_refused == 10
    if num_blocks == 400:
        assert report.requests == 10
        assert report.generated_tokens == sum(request.num_output_tokens for request in requests)


def test_right_drafts_save_steps() -> None:
    requests = requests_of(10)
    plain = replay(requests, memory_bytes=400 * BYTES_PER_BLOCK)
    drafted = replay(requests, memory_bytes=400 * BYTES_PER_BLOCK, decoding=Decoding(num_drafts=5))
    assert drafted.generated_tokens == plain.generated_tokens
    assert drafted.steps < plain.steps


def test_drafts_and_beams_do_not_go_together() -> None:
    for arguments in ((1, 2), (-1, 1), (0, 0)):
        with pytest.raises(ValueError):
            Decoding(*arguments)
