"""Random histories of a real manager on the simulated device: invariants, bytes, access order and decisions are right.

`seeds.txt` keeps seeds that failed once. The rest of a longer run is `python -m
kv_cache_manager_v2.testing.simulation`.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import kv_cache_manager_v2
from kv_cache_manager_v2 import DiskCacheTierConfig, KVCacheManagerConfig, ModelId, RetentionConfig, TokenRangeRetention
from kv_cache_manager_v2.base.ids import PageIndexMode
from kv_cache_manager_v2.config.config_value import ConfigValue
from kv_cache_manager_v2.config.layer_config import AttentionLayerConfig
from kv_cache_manager_v2.config.eviction_policy import EvictionPolicy
from kv_cache_manager_v2.manager.kv_cache_manager import KVCacheManager
from kv_cache_manager_v2.testing.race_error import RaceError
from kv_cache_manager_v2.testing.simulation.command_line import main
from kv_cache_manager_v2.testing.simulation.history import run_history
from kv_cache_manager_v2.testing.simulation.large_worlds import is_large
from kv_cache_manager_v2.testing.simulation.scenario import Scenario
from kv_cache_manager_v2.testing.simulation.shrinking import shrink
from kv_cache_manager_v2.testing.simulation.simulated_run import SimulatedRun

NUM_ACTIONS = 200  # the command's default, so that its seeds are these
KEPT_LINES = [
    line for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines() if line.split("#")[0].strip()
]
KEPT_SEEDS = [int(line.split("#")[0]) for line in KEPT_LINES]
KEPT_LARGE_SEEDS = [int(line.split("#")[0]) for line in KEPT_LINES if line.split("#")[1].strip().startswith("large:")]
OLD_SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in sorted({*KEPT_SEEDS} - {*range(20)})]


@pytest.mark.parametrize("seed", [*range(20), *OLD_SEEDS])
def test_history(seed: int) -> None:
    history = run_history(Scenario(seed, NUM_ACTIONS))
    if history.error is not None:
        command = f"python -m kv_cache_manager_v2.testing.simulation --seeds {seed} --shrink"
        raise AssertionError(f"at action {history.position}, {history.action}; repeat it: {command}") from history.error
    assert history.num_performed > 0


def test_histories_have_decode_batches_committed_inputs_and_planned_blocks() -> None:
    runs = []
    for seed in (5, 22, 31, 33, 37):
        scenario = Scenario(seed, NUM_ACTIONS)
        run = SimulatedRun(scenario)
        for action in scenario.actions:
            run.perform(action)
        run.finish()
        runs.append(run)
    assert sum(run.num_decode_steps for run in runs) > 50
    assert sum(run.num_input_commits for run in runs) > 5
    assert sum(run.num_planned_tokens for run in runs) > 100


def test_same_seed_makes_the_same_decisions() -> None:
    digests = [run_history(Scenario(seed, NUM_ACTIONS)).digest for seed in (0, 1, 2, 0, 1, 2)]
    assert digests[:3] == digests[3:]
    assert len(set(digests)) == 3


def test_seeds_differ_in_what_they_configure() -> None:
    configs = [Scenario(seed, 1).config for seed in range(60)]
    assert len({config.tokens_per_block for config in configs}) > 3
    assert {config.enable_swa_scratch_reuse for config in configs} == {True, False}
    assert {config.enable_partial_reuse for config in configs} == {True, False}
    layers = [layer for config in configs for layer in config.layers]
    attention = [layer for layer in layers if isinstance(layer, AttentionLayerConfig)]
    assert {layer.window_size is None for layer in attention} == {True, False}
    assert 0 < len(attention) < len(layers)


NOT_DRAWN = {
    KVCacheManagerConfig: {"learned_prior"},  # by tests/property/test_any_configuration_serves.py
    DiskCacheTierConfig: {"path", "durable", "model_id", "more_paths", "read_only"},  # by worlds over several processes: restarts.py
    ModelId: {field.name for field in dataclasses.fields(ModelId)},  # names a durable level, and what a store shares
    RetentionConfig: {field.name for field in dataclasses.fields(RetentionConfig)},  # given with a call: hints.py
    TokenRangeRetention: {field.name for field in dataclasses.fields(TokenRangeRetention)},
}


def note_values(value: Any, drawn: dict[tuple[type[Any], str], set[str]]) -> None:
    """Of a configuration, with all that it is made of: each field's value."""
    if isinstance(value, tuple):
        for item in value:
            note_values(item, drawn)
    elif isinstance(value, ConfigValue):
        for field in dataclasses.fields(value):
            drawn.setdefault((type(value), field.name), set()).add(repr(getattr(value, field.name)))
            note_values(getattr(value, field.name), drawn)


def test_worlds_draw_every_setting() -> None:
    """A field that has one value in all worlds is a field of which they say nothing."""
    drawn: dict[tuple[type[Any], str], set[str]] = {}
    for seed in range(200):
        note_values(Scenario(seed, 1).config, drawn)
    classes = [item for item in vars(kv_cache_manager_v2).values() if isinstance(item, type) and issubclass(item, ConfigValue)]
    assert len(classes) > 12
    fields = {(item, field.name) for item in classes for field in dataclasses.fields(item)}
    assert {(item, name) for item, names in NOT_DRAWN.items() for name in names} == {key for key in fields if len(drawn.get(key, ())) < 2}


def test_large_worlds_are_large_and_of_every_policy() -> None:
    """Of the seeds that CI runs; a kept seed is one of them only if it failed as one."""
    large = [seed for seed in range(200) if is_large(seed)]
    assert len(large) == 8 and [seed for seed in KEPT_SEEDS if is_large(seed)] == KEPT_LARGE_SEEDS
    worlds = [Scenario(seed, 1) for seed in large]
    assert {world.config.cache_tiers[0].eviction_policy for world in worlds} == set(EvictionPolicy)
    assert {len(world.config.cache_tiers) for world in worlds} >= {1, 2}
    sizes: list[int] = []
    for world in worlds:
        with KVCacheManager(world.config, device=world.make_device()) as manager:
            sizes += [group.total for group in manager.get_storage_statistics()]
    assert min(sizes) < 512 and max(sizes) > 2000 and len([size for size in sizes if size >= 260]) >= 10


def test_worlds_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for worlds in ("all", "small", "large"):
        assert main(["--seeds", "11:14", "--actions", "2", "--worlds", worlds]) == 0
        found.append(capsys.readouterr().out.split(" ", 1)[0])
    assert found == ["3", "2", "1"]


def test_histories_reach_what_they_are_meant_to_reach() -> None:
    """Without refusals, nothing would be said about room; a history in which little happens proves little."""
    histories = [run_history(Scenario(seed, NUM_ACTIONS)) for seed in range(10)]
    assert sum(history.num_refused for history in histories) > 50
    assert sum(history.num_performed for history in histories) > 800


def test_histories_meet_failures_of_the_device() -> None:
    """Some scenarios plan them: most are survived, a few lose pages, and now and then one breaks the manager."""
    num_fired = 0
    num_broken = 0
    for seed in [seed for seed in range(60) if Scenario(seed, 1).fault_share > 0.0][:6]:
        run = SimulatedRun(Scenario(seed, NUM_ACTIONS))
        for action in Scenario(seed, NUM_ACTIONS).actions:
            run.perform(action)
        num_broken += run.is_broken
        run.finish()
        num_fired += run.device.faults.num_fired
    assert num_fired > 6 > num_broken


def test_what_goes_wrong_on_the_device_ends_the_history() -> None:
    scenario = Scenario(0, NUM_ACTIONS)
    run = SimulatedRun(scenario)
    run.device.faults.fail("launch", 5, ZeroDivisionError("planned"))
    with pytest.raises(ZeroDivisionError):
        for action in scenario.actions:
            run.perform(action)


def test_race_in_the_device_is_reported_even_if_its_error_is_swallowed() -> None:
    run = SimulatedRun(Scenario(0, NUM_ACTIONS))
    address = run.manager.get_mem_pool_base_address(0, "key", PageIndexMode.PER_LAYER)
    with pytest.raises(RaceError):
        run.device.host_read(address, 1)
    with pytest.raises(RaceError):
        for action in Scenario(0, NUM_ACTIONS).actions:
            run.perform(action)


def test_command() -> None:
    assert main(["--seeds", "0:2", "--actions", "30", "--digest"]) == 0
    assert main(["--seeds", "1", "--actions", "30", "--only", "0,5,7", "--trace"]) == 0


def test_shrinking_leaves_nothing_out_that_is_needed() -> None:
    """An error that never comes back cannot be made shorter; every action must then stay."""
    scenario = Scenario(0, 6)
    assert shrink(scenario, ZeroDivisionError("never raised")) == list(range(6))
