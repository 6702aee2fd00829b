"""Sharing, lease, decode and planning actions for some scenarios, drawn with their own random numbers: all others stay as they were."""

from random import Random
from typing import Final

_SHARE_OF_SCENARIOS: Final = 0.4
_SHARE_THAT_DECODE: Final = 0.5
_SHARE_OF_STEPS: Final = 0.3
_SHARE_THAT_PLAN: Final = 0.35
_SHARE_OF_CREATES: Final = 0.5
_LIKELIHOODS: Final = {"beams": 5.0, "lend": 3.0, "settle": 2.5, "toggle_scratch": 1.5}


def draw_sharing(kinds: list[str], seed: int) -> list[str]:
    """The same kinds of actions, some of them replaced."""
    random = Random(17 * seed + 7)
    if random.random() >= _SHARE_OF_SCENARIOS:
        return kinds
    share = random.choice((0.1, 0.2, 0.3))
    names, weights = list(_LIKELIHOODS), list(_LIKELIHOODS.values())
    return [random.choices(names, weights)[0] if random.random() < share else kind for kind in kinds]


def draw_decoding(kinds: list[str], seed: int, has_faults: bool) -> list[str]:
    """The same kinds of actions, some steps replaced; not where the device fails, as it may in the midst of a batch."""
    random = Random(19 * seed + 5)
    if has_faults or random.random() >= _SHARE_THAT_DECODE:
        return kinds
    return ["decode" if kind in ("step", "step_batch") and random.random() < _SHARE_OF_STEPS else kind for kind in kinds]


def draw_planning(kinds: list[str], seed: int, has_faults: bool, has_state: bool) -> list[str]:
    """The same kinds of actions, some creations replaced; not where the device fails, nor with recurrent layers, which plan nothing."""
    random = Random(53 * seed + 29)
    if has_faults or has_state or random.random() >= _SHARE_THAT_PLAN:
        return kinds
    return ["share_step" if kind == "create" and random.random() < _SHARE_OF_CREATES else kind for kind in kinds]
