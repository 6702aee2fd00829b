"""A prompt alone that runs in an empty pool runs in a full one, and none within what `plan_capacity` promises is refused.

The oracle is an empty pool of the same settings. Lengths are near the limit, where one page decides.
"""

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from integrations.small_models import draw_tokens, make_model, with_cache  # noqa: E402

from kv_cache_manager_v2 import HostCacheTierConfig, OutOfPagesError, SnapshotPolicy, plan_capacity  # noqa: E402
from kv_cache_manager_v2.integrations.transformers import PagedCachePool  # noqa: E402

NUM_NEW = 2
NUM_REQUESTS = 14
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "host memory": {"lower_tiers": [HostCacheTierConfig(1 << 20)]},
    "whole blocks": {"enable_partial_reuse": False, "snapshot_policy": SnapshotPolicy(1, at_close=True)},
}


def pool_of(model: Any, num_bytes: int, settings: str) -> PagedCachePool:
    return PagedCachePool(model, num_bytes, tokens_per_block=8, typical_rows=1, typical_length=64, **SETTINGS[settings])


def serve(pool: PagedCachePool, model: Any, prompt: Any) -> str:
    """Nothing, or why it was refused."""
    try:
        with pool.open(prompt) as cache:
            model.generate(prompt, **with_cache(model, cache), max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, do_sample=False)
    except OutOfPagesError as error:
        return str(error)
    return ""


def find_bytes(model: Any, settings: str) -> tuple[int, int]:
    """The memory of a small pool, and the longest prompt that runs in it in one pass."""
    for num_bytes in range(1 << 16, 1 << 22, 5 << 12):
        try:
            with pool_of(model, num_bytes, settings) as pool:
                longest = plan_capacity(pool.manager.init_config).longest_prompt
                # With fewer slots no snapshot of recurrent state could be copied.
                has_slots = min(group.total for group in pool.manager.get_storage_statistics()) > 2
        except ValueError:
            continue  # too little for one page of each kind
        if has_slots and longest is not None and longest >= 60:
            return num_bytes, longest
    raise AssertionError("no such pool")


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_next", "falcon_h1"])
def test_prompts_alone(family: str, settings: str) -> None:
    model = make_model(family)
    num_bytes, longest = find_bytes(model, settings)
    choices = random.Random(f"{family} {settings}")
    texts = [draw_tokens(1, longest, seed) for seed in range(2)]
    num_reused = 0
    with pool_of(model, num_bytes, settings) as pool:
        for number in range(NUM_REQUESTS):
            if number % 2 == 0:
                # All but the last new token are computed.
                length = longest - NUM_NEW + 1 - choices.choice([0, 1, 2, 3, 5, 8, 9, 17, 24, 31])
                prompt = texts[choices.choice([0, 0, 1])][:, :length]
            elif choices.random() < 0.3:
                prompt = torch.cat([prompt[:, : length - 4], draw_tokens(1, 4, number)], dim=1)
            num_reused += pool.manager.probe_reuse(None, prompt[0].numpy())
            refusal = serve(pool, model, prompt)
            pool.manager.check_invariants()
            if refusal:
                with pool_of(model, num_bytes, settings) as cold:
                    where = "too" if serve(cold, model, prompt) else "alone it runs"
                    pytest.fail(f"request {number}, {length} of {longest} tokens, is refused; in an empty pool {where}: {refusal}")
    assert num_reused > 0
