"""The page's hit rates at other sizes against a run that was made with that much memory from the beginning."""

from dataclasses import replace

import pytest

from kv_cache_manager_v2.replay.console import Console
from kv_cache_manager_v2.replay.generators import WORKLOAD_NAMES, make_workload
from kv_cache_manager_v2.replay.other_sizes import serve_other_sizes, was_interrupted
from kv_cache_manager_v2.replay.plan import WORKLOAD_MEMORY_BYTES, ReplayPlan
from kv_cache_manager_v2.replay.presets import PRESETS
from kv_cache_manager_v2.replay.replayer import run_replay
from kv_cache_manager_v2.replay.report import ReplayReport
from kv_cache_manager_v2.replay.tally import Tally
from kv_cache_manager_v2.replay.tier_option import LowerTier

SIZES = (0.5, 2.0, 8.0)
POINTS = 0.03


def plan_of(model: str, workload: str, num_requests: int, host_bytes: int) -> ReplayPlan:
    """As ``kvcm replay`` makes it, with as much memory for a request as its 200 have."""
    return ReplayPlan(
        workload=make_workload(workload, 0, num_requests), model=PRESETS[model],
        memory_bytes=WORKLOAD_MEMORY_BYTES * num_requests // 200 + (1 << 30),
        lower_tiers=(LowerTier("host", host_bytes),) if host_bytes > 0 else (),
    )  # fmt: skip


def measured(plan: ReplayPlan) -> float:
    return run_replay(plan, Console()).hit_rate


def check_sizes(plan: ReplayPlan) -> None:
    report = run_replay(plan, Console())
    curves = serve_other_sizes(plan, report, Console(), SIZES)
    assert plan.memory_bytes is not None
    for curve in curves:
        for rate in curve.rates:
            assert rate.hit_rate is not None, rate.note
            if curve.policy is not None:
                same = replace(plan, eviction_policy=curve.policy)
            elif curve.level == 0:
                same = replace(plan, memory_bytes=int(plan.memory_bytes * rate.size))
            else:
                tier = plan.lower_tiers[0]
                same = replace(plan, lower_tiers=(LowerTier("host", int(tier.num_bytes * rate.size)),))
            assert abs(rate.hit_rate - measured(same)) <= POINTS, (curve, rate)


@pytest.mark.parametrize("host_bytes", [0, 1 << 30])
@pytest.mark.parametrize("model", ["llama-3-8b", "gemma-3-12b", "qwen3-next"])
def test_of_each_kind_of_model(model: str, host_bytes: int) -> None:
    check_sizes(plan_of(model, "mix", 24, host_bytes))


@pytest.mark.slow
@pytest.mark.parametrize("host_bytes", [0, 1 << 30])
@pytest.mark.parametrize("workload", WORKLOAD_NAMES)
@pytest.mark.parametrize("model", PRESETS)
def test_of_every_preset_and_workload(model: str, workload: str, host_bytes: int) -> None:
    check_sizes(plan_of(model, workload, 48, host_bytes))


def test_a_size_that_cannot_be_served_has_a_reason_and_no_hit_rate() -> None:
    plan = plan_of("llama-3-8b", "chat", 4, 0)
    report = run_replay(plan, Console())
    rates = {rate.size: rate for rate in serve_other_sizes(plan, report, Console(), [0.001, 2.0])[0].rates}
    # 0.001 of the memory are some 250 tokens: no prompt fits.
    assert rates[0.001].hit_rate is None and rates[0.001].note != ""
    assert rates[2.0].hit_rate is not None and rates[2.0].note == ""


def test_ctrl_c_while_serving_again_leaves_the_sizes_that_were_served() -> None:
    plan = plan_of("llama-3-8b", "chat", 4, 0)
    report = run_replay(plan, Console())
    console = ConsoleThatStops(2)
    curves = serve_other_sizes(plan, report, console, [0.5, 2.0, 8.0])
    assert was_interrupted(curves)
    rates = {rate.size: rate for rate in curves[0].rates}
    assert rates[0.5].hit_rate is not None and rates[1.0].hit_rate == report.hit_rate
    assert rates[2.0].hit_rate is None and rates[8.0].hit_rate is None
    assert len(console.said) == 2, "the others are not announced"


class ConsoleThatStops(Console):
    """Presses Ctrl-C when the n-th line is said."""

    def __init__(self, at: int) -> None:
        self.said: list[str] = []
        self._at = at

    def start(self, num_requests: int) -> None:
        pass

    def update(self, tally: Tally, used_shares: list[float]) -> None:
        pass

    def stop(self) -> None:
        pass

    def show(self, report: ReplayReport) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)
        if len(self.said) == self._at:
            raise KeyboardInterrupt
