"""Latency histograms: exact counts and means, quantiles within a 32nd, in bounded memory."""

from random import Random

import pytest

from kv_cache_manager_v2.replay.recorder import CALL_NAMES, CREATE, RESIZE, CallRecorder, LatencyHistogram, bucket_of


def test_nothing_recorded() -> None:
    histogram = LatencyHistogram()
    assert (histogram.count, histogram.mean_ns, histogram.quantile_ns(0.5), histogram.max_ns) == (0, 0.0, 0.0, 0)


def test_short_durations_are_exact() -> None:
    histogram = LatencyHistogram()
    for duration in range(32):
        histogram.add(duration)
    assert histogram.count == 32
    # The least bucket with half of 32 at or under it: 16 durations are 0 to 15.
    assert histogram.quantile_ns(0.5) == 15.0
    assert histogram.quantile_ns(1.0) == 31.0
    assert histogram.mean_ns == sum(range(32)) / 32


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_within_a_32nd(seed: int) -> None:
    random = Random(seed)
    durations = [int(random.lognormvariate(8.0, 2.0)) for _ in range(5000)]
    histogram = LatencyHistogram()
    for duration in durations:
        histogram.add(duration)
    durations.sort()
    assert histogram.mean_ns == pytest.approx(sum(durations) / len(durations))
    assert histogram.max_ns == durations[-1]
    for fraction in (0.01, 0.5, 0.9, 0.99):
        exact = durations[int(fraction * len(durations)) - 1]
        assert histogram.quantile_ns(fraction) == pytest.approx(exact, rel=1 / 32, abs=1.0)


def test_buckets_grow_with_the_duration_and_end() -> None:
    values = [bucket_of(duration) for duration in [*range(5000), 10**6, 10**9, 10**12, 2**61]]
    assert values == sorted(values)
    assert values[:64] == list(range(64))
    assert max(values) == 1023


def test_calls_are_kept_apart() -> None:
    recorder = CallRecorder()
    recorder.add(CREATE, 100)
    recorder.add(RESIZE, 5)
    recorder.add(RESIZE, 7)
    assert len(recorder.histograms) == len(CALL_NAMES)
    assert recorder.histograms[CREATE].count == 1
    assert recorder.histograms[RESIZE].total_ns == 12
    assert recorder.total_ns == 112
