"""No call takes longer where more is cached, not even the first of its kind: a second scope, a first copy on a lower level.

Counted in rounds of loops, so by the interpreted build, of which the compiled one has every loop; and in arrays that are copied as the
cache fills, by both."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from librt.vecs import vec
from mypy_extensions import i32, i64
from round_count import RoundCount
from small_models import attention_layers, run_prompt

from kv_cache_manager_v2 import (
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    ReuseScope,
    is_compiled,
)

BLOCK = 4
NUM_BLOCKS = 1200
PROMPT_BLOCKS = 10
MOST_ROUNDS = 600
"""Of a loop in one call: records of what was evicted go to their table 512 at a time. A loop over the cache takes 1,200 and more."""
IS_COMPILED = "compiled code has no lines to count; its loops are those of the interpreted build"


def make_manager(num_blocks: int, policy: EvictionPolicy, num_groups: int = 2) -> KVCacheManager:
    slot_bytes = 2 * 8 * BLOCK
    quota = num_groups * num_blocks * slot_bytes
    config = KVCacheManagerConfig(
        BLOCK, [GpuCacheTierConfig(quota, policy), HostCacheTierConfig(quota, policy)], attention_layers([None, 8][:num_groups], BLOCK),
        max_util_for_resume=1.0,
    )  # fmt: skip
    return KVCacheManager(config, device=HostDevice())


def prompt_of(number: int, num_blocks: int = PROMPT_BLOCKS) -> list[int]:
    """Prompts of different numbers share nothing."""
    return list(range(100_000 * number, 100_000 * number + num_blocks * BLOCK))


def serve(manager: KVCacheManager, tokens: list[int], scope: ReuseScope | None = None) -> Iterator[tuple[str, Callable[[], object]]]:
    """The calls of a request, one by one."""
    opened: list[KVCache] = []
    yield "create", lambda: opened.append(manager.create_kv_cache(scope, tokens))
    kv_cache = opened[0]
    yield "resume", kv_cache.resume
    yield "resize", lambda: kv_cache.resize(len(tokens))
    yield "commit", lambda: kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
    yield "step", lambda: kv_cache.resize(len(tokens) + 1)
    yield "commit of a token", lambda: kv_cache.commit([1])
    yield "suspend", kv_cache.suspend
    yield "second resume", kv_cache.resume
    yield "close", kv_cache.close


def first_calls(manager: KVCacheManager, num_before: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Calls to a full cache, the first ones of their kind."""
    for text, number, scope in (
        ("new", 5000, None),
        ("second scope", 5001, ReuseScope(salt=1)),
        ("second scope, cached in the first", num_before - 1, ReuseScope(salt=1)),
        ("cached on a lower level", 0, None),
        ("cached", num_before - 1, None),
        ("third scope", 5002, ReuseScope(salt=2)),
        ("evicting", 5003, None),
    ):
        for name, call in serve(manager, prompt_of(number), scope):
            yield f"{text}: {name}", call
    yield "probe", lambda: manager.probe_reuse(None, prompt_of(5003))
    yield "statistics", manager.get_storage_statistics
    yield "usage", manager.get_statistics


def fill_with_prompts(manager: KVCacheManager, num_blocks: int) -> int:
    for number in range(num_blocks // PROMPT_BLOCKS):
        run_prompt(manager, prompt_of(number)).close()
    return num_blocks // PROMPT_BLOCKS


def open_many(manager: KVCacheManager) -> list[KVCache]:
    """Sequences with all blocks but a few, of which none is published."""
    opened = []
    for _ in range(NUM_BLOCKS // PROMPT_BLOCKS - 1):
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume()
        assert kv_cache.resize(PROMPT_BLOCKS * BLOCK)
        opened.append(kv_cache)
    return opened


def count_rounds(calls: Iterator[tuple[str, Callable[[], object]]]) -> dict[str, tuple[int, str]]:
    """Of each call: the most rounds of a loop, and where it is."""
    counted = {}
    for name, call in calls:
        with RoundCount() as count:
            call()
        counted[name] = (count.num_rounds, count.where)
    return counted


def require_few(counted: dict[str, tuple[int, str]]) -> None:
    assert max(rounds for rounds, _ in counted.values()) >= PROMPT_BLOCKS, "nothing was counted"
    assert {name: one for name, one in counted.items() if one[0] > MOST_ROUNDS} == {}


@pytest.mark.skipif(is_compiled(), reason=IS_COMPILED)
@pytest.mark.parametrize("policy", EvictionPolicy)
def test_no_call_looks_at_the_whole_cache(policy: EvictionPolicy) -> None:
    with make_manager(NUM_BLOCKS, policy) as manager:
        # Half as much again as the GPU level holds: pages lie in the host level, and none has come back.
        num_prompts = fill_with_prompts(manager, NUM_BLOCKS + NUM_BLOCKS // 2)
        require_few(count_rounds(first_calls(manager, num_prompts)))


@pytest.mark.skipif(is_compiled(), reason=IS_COMPILED)
@pytest.mark.parametrize("policy", EvictionPolicy)
def test_the_first_published_block_catches_up_with_none(policy: EvictionPolicy) -> None:
    """All blocks but a few were made and belong to sequences; what is kept of published ones is there for them already."""
    with make_manager(NUM_BLOCKS, policy) as manager:
        opened = open_many(manager)
        require_few(count_rounds(serve(manager, prompt_of(5000))))
        for kv_cache in opened:
            kv_cache.close()


@pytest.mark.skipif(is_compiled(), reason=IS_COMPILED)
@pytest.mark.parametrize("remaining", [0, 10**6])
def test_can_finish_takes_sums_of_sequences(remaining: int) -> None:
    """Sequences with 16 times as many blocks, forked, suspended, in a cache that is 16 times as full: each of the two ends that are found
    by halves takes four more rounds, whatever the answer is."""
    num_lines = []
    for num_blocks in (NUM_BLOCKS // 16, NUM_BLOCKS):
        with make_manager(5 * num_blocks, EvictionPolicy.LRU) as manager:
            run_prompt(manager, prompt_of(9, num_blocks)).close()
            opened = [run_prompt(manager, prompt_of(number, num_blocks)) for number in range(3)]
            opened.append(opened[0].fork())
            opened[2].suspend()
            with RoundCount() as count:
                plan = manager.can_finish(opened, [remaining] * 4, 16)
            assert bool(plan) is (remaining == 0) and count.num_rounds <= 16, count.where
            num_lines.append(count.num_lines)
            for kv_cache in opened:
                kv_cache.close()
    assert num_lines[1] <= num_lines[0] + 4 * 60, num_lines


def arrays_of(manager: KVCacheManager) -> dict[str, Any]:
    """The arrays of the library that the manager reaches, by the attributes on the way."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [("", manager)]
    while left:
        path, owner = left.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, (vec[i64], vec[i32])):  # type: ignore[misc]
            found[path] = owner
        elif isinstance(owner, list):
            left += [(f"{path}[{index}]", item) for index, item in enumerate(owner[:8])]
        elif type(owner).__module__.startswith("kv_cache_manager_v2") and type(owner).__name__ not in ("Block", "SequenceState"):
            for kind in type(owner).__mro__:
                for name in vars(kind):
                    if not name.startswith("__") and type(vars(kind)[name]).__name__ in ("member_descriptor", "getset_descriptor"):
                        left.append((f"{path}.{name}", getattr(owner, name, None)))
    return found


def address_of(words: Any) -> int:
    view = memoryview(words)
    return int(np.frombuffer(view, view.format).ctypes.data)


@pytest.mark.parametrize("policy", [EvictionPolicy.LRU, EvictionPolicy.LEARNED])
def test_no_array_is_copied_as_the_cache_fills(policy: EvictionPolicy) -> None:
    """An array with an entry a block or page: it stays where it is from its first entries on."""
    with make_manager(NUM_BLOCKS, policy) as manager:
        fill_with_prompts(manager, 4 * PROMPT_BLOCKS)
        before = {path: (address_of(words), len(words)) for path, words in arrays_of(manager).items() if len(words) > 0}
        assert any(path.endswith("rows.words") for path in before), sorted(before)
        fill_with_prompts(manager, 3 * NUM_BLOCKS)
        copied = [
            path for path, words in arrays_of(manager).items()
            if path in before and len(words) >= NUM_BLOCKS // 4 and len(words) > before[path][1] and address_of(words) != before[path][0]
        ]  # fmt: skip
        assert copied == []
