"""transformers' continuous batching answers the same on a pool as on its own cache, and as `generate` does, prompt by prompt."""

from collections.abc import Callable
from typing import Any, Final

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from integrations.small_models import draw_tokens, make_model, pool_of, with_cache  # noqa: E402
from transformers.generation.configuration_utils import ContinuousBatchingConfig  # noqa: E402
from transformers.generation.continuous_batching import PagedAttentionCache, continuous_api  # noqa: E402

from kv_cache_manager_v2 import HostCacheTierConfig, LogicError  # noqa: E402
from kv_cache_manager_v2.integrations.transformers import PagedCachePool  # noqa: E402
from kv_cache_manager_v2.integrations.transformers_batching import Batching  # noqa: E402

FAMILIES = ("llama", "gemma3", "gpt_oss")


def serve(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, **options}
    settings = transformers.GenerationConfig(eos_token_id=-1, pad_token_id=0, **options)
    config = ContinuousBatchingConfig(page_size=32, num_blocks=16, max_batch_tokens=64)
    outputs = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=config, progress_bar=False)
    assert all(output.error is None for output in outputs.values()), [output.error for output in outputs.values()]
    return [output.generated_tokens for output in outputs.values()]


def make_prompts() -> list[list[int]]:
    """Twelve, of which three at a time begin alike, longer than a pass and than the windows."""
    starts = [draw_tokens(1, 70, seed=number)[0].tolist() for number in range(4)]
    return [starts[number % 4] + draw_tokens(1, 3 + number, seed=20 + number)[0].tolist() for number in range(12)]


# Bytes of about three of the requests, which are of 85 to 96 tokens with their answers.
FEW: Final = {"llama": 240_000, "gemma3": 450_000, "gpt_oss": 290_000}


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_transformers_alone_and_of_generate(family: str) -> None:
    model = make_model(family)
    prompts = make_prompts()
    with pool_of(model, typical_length=100) as pool:
        wanted = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            with pool.open(ids) as cache:
                output = model.generate(ids, **with_cache(model, cache), max_new_tokens=12, min_new_tokens=12, do_sample=False)
            wanted.append(output[0, len(prompt) :].tolist())
        assert serve(model, prompts) == wanted
        with pool.batching():
            assert serve(model, prompts) == wanted
            assert count_hits(pool, lambda: serve(model, prompts)) == sum(len(prompt) - 1 for prompt in prompts)
        pool.manager.check_invariants()
    assert continuous_api.PagedAttentionCache is PagedAttentionCache
    assert serve(model, prompts) == wanted


def count_hits(pool: PagedCachePool, call: Callable[[], object]) -> int:
    """Tokens that the requests of a call find."""
    before = sum(pool.manager.get_statistics().prompts.hit_tokens)
    call()
    return sum(pool.manager.get_statistics().prompts.hit_tokens) - before


@pytest.mark.parametrize("lower", [(), (HostCacheTierConfig(8 << 20),)], ids=["none", "host"])
@pytest.mark.parametrize("family", FAMILIES)
def test_requests_are_taken_out_and_come_back(family: str, lower: Any) -> None:
    model = make_model(family)
    prompts = make_prompts()
    wanted = serve(model, prompts)
    with pool_of(model, FEW[family], typical_length=100, lower_tiers=lower) as pool, pool.batching():
        assert serve(model, prompts) == wanted
        statistics = pool.manager.get_statistics()
        assert statistics.requests > len(prompts)
        assert (sum(transfer.source_level == 1 for transfer in statistics.transfers) > 0) == (lower != ())
        pool.manager.check_invariants()


def test_several_answers_to_a_prompt_share_it() -> None:
    model = make_model("gemma3")
    prompt = draw_tokens(1, 70, seed=1)[0].tolist()
    wanted = serve(model, [prompt])[0]
    with pool_of(model, typical_length=100) as pool, pool.batching():
        answers: list[list[int]] = []
        # Sampled among one token, so they are equal.
        hits = count_hits(pool, lambda: answers.extend(serve(model, [prompt], num_return_sequences=3, do_sample=True, top_k=1)))
        assert answers == [wanted] * 3
        # The first one has committed 69 tokens when the others begin, and 64 of them fill blocks.
        assert hits == 2 * 64


def test_pools_caches_and_batches_share_memory_and_not_settings() -> None:
    """A cache that is not in a pass is suspended for a batch; other attention functions make other keys, which are not found."""
    model = make_model("llama")
    prompts = make_prompts()
    wanted = serve(model, prompts)
    with pool_of(model, FEW["llama"], typical_length=100, lower_tiers=[HostCacheTierConfig(8 << 20)]) as pool:
        prompt = torch.tensor([prompts[0] + prompts[1]])
        expected = model.generate(prompt, max_new_tokens=12, min_new_tokens=12, do_sample=False)
        with pool.open(prompt) as cache:
            first = model.generate(prompt, **with_cache(model, cache), max_new_tokens=6, min_new_tokens=6, do_sample=False)
            with pool.batching():
                assert serve(model, prompts) == wanted
            assert not cache.kv_caches[0].is_active
            answer = model.generate(first, **with_cache(model, cache), max_new_tokens=6, min_new_tokens=6, do_sample=False)
            assert torch.equal(answer, expected)
        pool.manager.check_invariants()


def test_other_weights_find_nothing_of_these() -> None:
    model = make_model("llama")
    prompts = make_prompts()
    with pool_of(model, typical_length=100) as pool:
        with pool.batching():
            before = serve(model, prompts)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
        wanted = serve(model, prompts)
        assert wanted != before
        with pool.batching():
            assert serve(model, prompts) == wanted
        pool.manager.check_invariants()


def test_what_is_refused() -> None:
    model, other = make_model("llama"), make_model("gemma3")
    prompts = make_prompts()
    wanted = serve(other, prompts)
    with PagedCachePool(make_model("bamba"), 4 << 20) as pool, pytest.raises(ValueError, match="full and sliding attention"):
        pool.batching()
    with pool_of(model, typical_length=100) as pool:
        with pool.batching():
            with pytest.raises(LogicError, match="already"), pool.batching():
                pass
            # Another model of the process keeps transformers' own cache.
            assert serve(other, prompts) == wanted
            assert pool.manager.get_statistics().requests == 0
            for options in ({"use_async_batching": True}, {"use_cuda_graph": True}, {"cpu_offload_space": 1.0}):
                config = ContinuousBatchingConfig(page_size=32, **options)
                with pytest.raises(ValueError, match=next(iter(options))):
                    Batching(pool, model.config).make_cache(model.config, config)
            serve(model, prompts)
        assert continuous_api.PagedAttentionCache is PagedAttentionCache
        pool.manager.check_invariants()
