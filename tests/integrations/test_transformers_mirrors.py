"""Caches that decode read copies of their pages in one piece: equal to the bit, bounded and counted, and with the bound 0 none are made."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from integrations.small_models import MAKERS, draw_tokens, make_model, pool_of, with_cache  # noqa: E402

from kv_cache_manager_v2.integrations.transformers import PagedCachePool  # noqa: E402

MEMORY = 4 << 20
T = 8
LLAMA_TOKEN = 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, items, bytes of one


def run(model: Any, cache: Any, tokens: Any, begin: int, end: int) -> Any:
    with torch.no_grad():
        positions = torch.arange(begin, end)[None, :]
        return model(input_ids=tokens[:, begin:end], position_ids=positions, use_cache=True, **with_cache(model, cache)).logits


@pytest.mark.parametrize("max_bytes", [0, None])
@pytest.mark.parametrize("family", MAKERS)
def test_a_hundred_tokens_of_two_rows(family: str, max_bytes: int | None) -> None:
    """So many that copies are made anew several times, in windows of 20 and 24 tokens too."""
    model = make_model(family)
    tokens = draw_tokens(2, 141, seed=1)
    stock = transformers.DynamicCache(config=model.config)
    with pool_of(model, max_mirror_bytes=max_bytes) as pool, pool.open(tokens[:, :40]) as cache:
        begin = cache.num_tokens
        if begin > 0:  # a stop for a snapshot
            run(model, stock, tokens, 0, begin)
        for end in (40, *range(41, 142)):
            assert torch.equal(run(model, cache, tokens, begin, end), run(model, stock, tokens, begin, end)), end
            begin = end
        assert (cache.mirror_bytes > 0) == (max_bytes is None)
        pool.manager.check_invariants()


def test_what_is_copied_is_counted_and_bounded() -> None:
    """Two caches decode in turns where there is room for the copies of one: each drops the other's."""
    model = make_model("llama")
    tokens = draw_tokens(1, 80, seed=2)
    capacity = 41 * 5 // 4 + T
    with pool_of(model, max_mirror_bytes=capacity * LLAMA_TOKEN) as pool:
        caches = [pool.open(tokens[:, :40]) for _cache in range(2)]
        stock = transformers.DynamicCache(config=model.config)
        for cache in (stock, *caches):
            run(model, cache, tokens, 0, 40)
        assert pool.mirror_bytes == 0
        for end in range(41, 61):
            wanted = run(model, stock, tokens, end - 1, end)
            for cache in caches:
                assert torch.equal(run(model, cache, tokens, end - 1, end), wanted)
                assert pool.mirror_bytes == sum(each.mirror_bytes for each in caches) <= capacity * LLAMA_TOKEN
                if end == 41:
                    assert cache.mirror_bytes == pool.mirror_bytes == capacity * LLAMA_TOKEN
        caches[1].close()
        assert caches[1].mirror_bytes == 0
    assert pool.mirror_bytes == 0


def test_a_cache_that_is_suspended_keeps_none() -> None:
    """After it the pages are read again: one that holds a wrong number shows, which it does not beside a copy of it."""
    model = make_model("llama")
    tokens = draw_tokens(1, 80, seed=3)
    with pool_of(model) as pool, pool.open(tokens[:, :40]) as cache:
        run(model, cache, tokens, 0, 40)
        run(model, cache, tokens, 40, 41)
        page = int(pool.pages(1, "key").rows(cache.kv_caches[0])[2])
        pool.pages(1, "key").tensor[page, 3, 1, 5] = float("nan")
        assert not run(model, cache, tokens, 41, 42).isnan().any()
        with pool.open(draw_tokens(1, 10, seed=4)) as other:
            pool.suspend_another(other)
        assert cache.mirror_bytes == 0
        assert run(model, cache, tokens, 42, 43).isnan().all()


def test_passes_that_fail_and_drafts_that_are_taken_back() -> None:
    model = make_model("gemma3")
    tokens, drafts = draw_tokens(1, 90, seed=5), draw_tokens(1, 95, seed=6)

    def fail(*_arguments: object) -> None:
        raise RuntimeError("the GPU is on fire")

    with pool_of(model) as pool, pool.open(tokens[:, :40]) as cache:
        stock = transformers.DynamicCache(config=model.config)
        begin = 0
        cache.activate_past_recording()
        for end in (40, *range(41, 90)):
            if begin > 40:
                hook = model.model.layers[3].register_forward_hook(fail)
                with pytest.raises(RuntimeError, match="fire"):
                    run(model, cache, drafts, begin, begin + 1)
                hook.remove()
                run(model, cache, drafts, begin, begin + 3)
                cache.crop(-3)
            assert torch.equal(run(model, cache, tokens, begin, end), run(model, stock, tokens, begin, end)), end
            begin = end
        assert cache.mirror_bytes > 0


def test_copies_made_in_inference_mode_serve_outside_of_it() -> None:
    model = make_model("llama")
    tokens = draw_tokens(1, 44, seed=7)
    with pool_of(model) as pool, pool.open(tokens[:, :40]) as cache:
        stock = transformers.DynamicCache(config=model.config)
        with torch.inference_mode():
            for begin, end in ((0, 40), (40, 41), (41, 42)):
                found = run(model, cache, tokens, begin, end)
        for begin, end in ((0, 40), (40, 41), (41, 42)):
            wanted = run(model, stock, tokens, begin, end)
        assert torch.equal(found, wanted)
        for begin in (42, 43):
            assert torch.equal(run(model, cache, tokens, begin, begin + 1), run(model, stock, tokens, begin, begin + 1))


def test_beams_choose_rows_of_the_copies() -> None:
    model = make_model("gpt_oss")
    prompts = draw_tokens(2, 30, seed=8)
    options = {"num_beams": 4, "max_new_tokens": 60, "min_new_tokens": 60, "do_sample": False}
    with pool_of(model) as pool, pool.open(prompts) as cache:
        wanted = model.generate(prompts, **with_cache(model, transformers.DynamicCache(config=model.config)), **options)
        assert torch.equal(model.generate(prompts, **with_cache(model, cache), **options), wanted)
        assert cache.mirror_bytes > 0
        pool.manager.check_invariants()


@pytest.mark.parametrize("max_bytes", [-1, 1.5])
def test_a_bound_that_is_none(max_bytes: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_mirror_bytes"):
        PagedCachePool(make_model("llama"), MEMORY, max_mirror_bytes=max_bytes)
