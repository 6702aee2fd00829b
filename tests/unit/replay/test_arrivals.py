"""`--arrivals recorded`: requests come at their times, steps take time, and what is waited is what follows from both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.replay.serving import BYTES_PER_BLOCK, replay

from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.serving_limits import ServingLimits
from kv_cache_manager_v2.replay.service_clock import StepTime, parse_step_time
from kv_cache_manager_v2.replay.workload import Request

# 10 ms a step and 1 ms for each input.
STEP = StepTime(10_000, 1_000_000)


def request_at(
    id: int, arrival_ms: float, num_prompt: int, num_output: int, after: int | None = None, delay_ms: float = 0.0
) -> Request:
    return Request(id, arrival_ms, np.array([id]), np.array([num_prompt]), num_output, after, 0, delay_ms)


def serve(requests: list[Request], **settings: Any) -> dict[str, Any]:
    report = replay(requests, arrivals="recorded", step_time=STEP, **settings)
    assert report.service is not None and report.requests == len(requests)
    return report.service


def test_one_request_alone() -> None:
    service = serve([request_at(0, 5000.0, 7, 3)])
    # The prompt's step: 10 + 7 ms, and its output is the first token; two more steps of one input, 11 ms each.
    assert service["waiting_ms"]["max"] == 0.0
    assert service["first_token_ms"]["max"] == pytest.approx(17.0)
    assert service["between_tokens_ms"]["p50"] == pytest.approx(11.0, rel=0.01)
    assert service["simulated_seconds"] == pytest.approx(0.017 + 2 * 0.011)


def test_time_jumps_to_the_next_arrival() -> None:
    service = serve([request_at(0, 0.0, 7, 1), request_at(1, 60_000.0, 7, 1)])
    assert service["first_token_ms"]["p50"] == service["first_token_ms"]["max"] == pytest.approx(17.0)
    assert service["simulated_seconds"] == pytest.approx(60.017)


def test_a_queue_builds_up_under_load() -> None:
    """One runs at a time: the k-th of ten that come together waits for k others, 17 + 11 ms each."""
    service = serve([request_at(index, 0.0, 7, 2) for index in range(10)], limits=ServingLimits(max_running=1, token_budget=100))
    waits = [28.0 * index for index in range(10)]
    assert service["waiting_ms"]["mean"] == pytest.approx(sum(waits) / 10)
    assert service["waiting_ms"]["p50"] == pytest.approx(waits[4]) and service["waiting_ms"]["max"] == pytest.approx(waits[9])
    assert service["first_token_ms"]["max"] == pytest.approx(waits[9] + 17.0)
    # They come 30 ms apart instead: none waits.
    spread = serve([request_at(index, 30.0 * index, 7, 2) for index in range(10)], limits=ServingLimits(max_running=1, token_budget=100))
    assert spread["waiting_ms"]["max"] == pytest.approx(0.0)


def test_a_step_is_as_long_for_all_in_it() -> None:
    """The second prompt comes while the first request generates: its step has 1 + 7 inputs, and the first one's token waits for it."""
    service = serve([request_at(0, 0.0, 7, 3), request_at(1, 10.0, 7, 1)])
    # Step 1: 17 ms, for the first. Step 2: 10 + 8 ms, for both, from 17 to 35. Step 3: 11 ms.
    assert service["first_token_ms"]["max"] == pytest.approx(35.0 - 10.0)
    assert service["waiting_ms"]["max"] == pytest.approx(7.0)
    assert service["between_tokens_ms"]["max"] == pytest.approx(18.0, rel=0.01)
    assert service["simulated_seconds"] == pytest.approx(0.046)


def test_a_later_turn_comes_after_its_delay() -> None:
    service = serve([request_at(0, 0.0, 7, 1), request_at(1, 0.0, 7, 1, after=0, delay_ms=500.0)])
    # 17 ms, 500 ms, 17 ms; the pause is no waiting.
    assert service["simulated_seconds"] == pytest.approx(0.534)
    assert service["waiting_ms"]["max"] == pytest.approx(0.0) and service["first_token_ms"]["max"] == pytest.approx(17.0)
    # Its time stamp comes later than the delay.
    service = serve([request_at(0, 0.0, 7, 1), request_at(1, 2000.0, 7, 1, after=0, delay_ms=500.0)])
    assert service["simulated_seconds"] == pytest.approx(2.017)


def test_scarce_memory_makes_requests_wait() -> None:
    """Each needs 4 blocks of 4 tokens, and there are slots for two of them: the third waits until one is done."""
    requests = [request_at(index, 0.0, 13, 2) for index in range(3)]
    roomy = serve(requests)
    scarce = serve(requests, memory_bytes=9 * BYTES_PER_BLOCK)
    assert roomy["waiting_ms"]["max"] == 0.0 and scarce["waiting_ms"]["max"] > 0.0
    assert serve(requests, memory_bytes=9 * BYTES_PER_BLOCK) == scarce


def test_as_fast_has_no_times() -> None:
    report = replay([request_at(0, 0.0, 7, 1), request_at(1, 1e9, 7, 1)])
    assert (report.arrivals, report.service) == ("as-fast", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20ms+50us", StepTime(20_000, 50_000)),
        ("0.5ms+0us", StepTime(500, 0)),
        # 102 ms for 2047 inputs more.
        ("1=20.05,2048=122.4", StepTime(20_000, 50_000)),
        ("2048=122.4,1=20.05", StepTime(20_000, 50_000)),
    ],
)
def test_step_times_are_given_or_fitted(text: str, expected: StepTime) -> None:
    assert parse_step_time(text) == expected


@pytest.mark.parametrize("text", ["", "fast", "20ms", "1=20", "1=20,1=30", "1=30,9=20", "1=1,2=100", "0ms+0us", "1=0,2=0"])
def test_step_times_that_mean_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="20ms|inputs|negative"):
        parse_step_time(text)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", "--quiet", "--limit", "20", "--arrivals", "recorded", "--model", "llama-3-8b"]
    assert main([*arguments, "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["arrivals"] == "recorded" and report["service"]["first_token_ms"]["p50"] > 20.0
    assert main([*arguments, "--rate", "1000", "--json", "-"]) == 0
    crowded = json.loads(capsys.readouterr().out)
    assert crowded["service"]["first_token_ms"]["p50"] > report["service"]["first_token_ms"]["p50"]
    assert "1000 new sessions a second" in crowded["notes"][0]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "first token" in output and "simulated time" in output
    chats = tmp_path / "chats.json"
    chats.write_text(json.dumps([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}] * 3))
    assert main(["replay", str(chats), "--arrivals", "recorded"]) == 2
    assert "no time stamps" in capsys.readouterr().err
    assert main(["replay", str(chats), "--arrivals", "recorded", "--rate", "2", "--quiet"]) == 0
