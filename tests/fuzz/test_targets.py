"""Each target of the fuzzer serves or refuses whatever bytes hypothesis draws, and damaged inputs that come far."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .targets import TARGETS, make_seeds, run_target

NUM_DAMAGED = {"journal": 40, "configuration": 60, "arguments": 25}


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_come_far(name: str) -> None:
    """At least one of them is served."""
    assert any([run_target(name, data) for data in make_seeds(name)])


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs(name: str) -> None:
    rng = random.Random(1)
    seeds = make_seeds(name)
    for _ in range(NUM_DAMAGED.get(name, 200)):
        data = bytearray(rng.choice(seeds))
        for _damage in range(rng.randrange(4)):
            place = rng.randrange(len(data))
            data[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
            if not data:
                break
        run_target(name, bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data))


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    @settings(max_examples=150, deadline=None)
    @given(st.binary(max_size=200))
    def run(data: bytes) -> None:
        run_target(name, data)

    run()
