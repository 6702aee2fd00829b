"""Wrong models, prompts and calls are refused with an error that names them, and nothing is half done."""

import inspect
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from integrations.small_models import draw_tokens, make_model, with_cache  # noqa: E402

from kv_cache_manager_v2 import GpuCacheTierConfig, HostCacheTierConfig, LogicError, OutOfPagesError  # noqa: E402
from kv_cache_manager_v2.integrations.transformers import PagedCachePool, describe  # noqa: E402
from kv_cache_manager_v2.integrations.transformers_model import ForwardArguments, require_release  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


def test_a_model_that_is_none() -> None:
    with pytest.raises(TypeError, match="must be a transformers model, not int"):
        describe(3, [GpuCacheTierConfig(1 << 20)])


def test_an_encoder_decoder_model() -> None:
    config = transformers.T5Config(d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=16, vocab_size=50)
    with pytest.raises(ValueError, match="encoder-decoder"):
        describe(transformers.T5ForConditionalGeneration(config), [GpuCacheTierConfig(1 << 20)])


def test_a_layer_of_an_unknown_kind(model: Any) -> None:
    kinds = list(model.config.layer_types) if getattr(model.config, "layer_types", None) else None
    model.config.layer_types = ["full_attention", "compressed_sparse_attention", "full_attention"]
    try:
        with pytest.raises(ValueError, match="layer 1 of LlamaForCausalLM is 'compressed_sparse_attention'; supported are full_attention"):
            PagedCachePool(model, 1 << 20)
    finally:
        model.config.layer_types = kinds
    assert len(model._forward_pre_hooks) == 0


class _HiddenCache(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """As another release could be: what `generate` is given does not reach the forward pass."""

    def generate(self, input_ids: Any, **options: Any) -> Any:
        options.pop(ForwardArguments(self).cache_name)
        return super().generate(input_ids, **options)


def test_releases(model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("5.23.0", "5.24.1", "5.24.0.dev0"):
            require_release(model, version)
    for version in ("4.57.1", "5.22.9", "6.0.0"):
        with pytest.raises(ValueError, match=f"transformers is {version}; tested are 5.23 and 5.24: pip install"):
            require_release(model, version)


def test_a_release_that_was_never_tried(model: Any) -> None:
    with pytest.warns(UserWarning, match="transformers 5.99.0 is newer than 5.24, the last one that this library was tested with") as found:
        require_release(model, "5.99.0")
    assert len(found) == 1
    with pytest.raises(ValueError, match="5.99.0 is newer than 5.24, .* and fails: hooks on the model do not see its cache"):
        require_release(_HiddenCache(model.config).eval(), "5.99.0")
    assert len(model._forward_pre_hooks) == len(model._forward_hooks) == 0


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_a_cache_by_its_old_name_and_by_position(model: Any) -> None:
    """The hooks find it however the model gets it."""
    prompt = draw_tokens(1, 20, seed=4)
    with PagedCachePool(model, 1 << 20) as pool:
        with pool.open(prompt) as cache:
            model.generate(prompt, past_key_values=cache, max_new_tokens=3)
            assert cache.num_tokens == 22
        with pool.open(prompt) as cache, torch.no_grad():
            assert list(inspect.signature(model.forward).parameters)[3] == ForwardArguments(model).cache_name
            model(prompt[:, 19:], None, torch.tensor([[19]]), cache)
            assert cache.num_tokens == 20


def test_another_prompt_than_the_cache_was_opened_with(model: Any) -> None:
    with PagedCachePool(model, 1 << 20) as pool, pool.open(draw_tokens(1, 20, seed=1)) as cache:
        with pytest.raises(ValueError, match="token 0 of row 0 is .*, but the cache was opened with"):
            model.generate(draw_tokens(1, 20, seed=2), **with_cache(model, cache), max_new_tokens=3)
        # Nothing is lost: the right prompt goes on.
        model.generate(draw_tokens(1, 20, seed=1), **with_cache(model, cache), max_new_tokens=3)


def test_a_cache_with_another_model(model: Any) -> None:
    other = make_model("llama")
    prompt = draw_tokens(1, 20, seed=1)
    with PagedCachePool(model, 1 << 20) as pool, pool.open(prompt) as cache:
        with pytest.raises(LogicError, match="outside of a forward pass of its pool's model"):
            other.generate(prompt, **with_cache(model, cache), max_new_tokens=3)


def test_a_closed_cache_and_a_closed_pool(model: Any) -> None:
    prompt = draw_tokens(1, 20, seed=1)
    with PagedCachePool(model, 1 << 20) as pool:
        cache = pool.open(prompt)
        cache.close()
        cache.close()
        with pytest.raises(LogicError, match="this cache is closed"):
            model.generate(prompt, **with_cache(model, cache), max_new_tokens=3)
    pool.close()
    with pytest.raises(LogicError, match="the pool is closed"):
        pool.open(prompt)
    assert len(model._forward_pre_hooks) == len(model._forward_hooks) == 0


def test_wrong_prompts(model: Any) -> None:
    with PagedCachePool(model, 1 << 20) as pool:
        for prompt, error, words in (
            ([[1, 2]], TypeError, "input_ids must be a torch tensor"),
            (torch.tensor([1, 2]), TypeError, "batch, tokens"),
            (torch.zeros((0, 3), dtype=torch.long), ValueError, "there must be a row and a token"),
        ):
            with pytest.raises(error, match=words):
                pool.open(prompt)
        prompt = draw_tokens(2, 6, seed=1)
        with pytest.raises(ValueError, match=r"attention_mask has the shape \(1, 6\), input_ids \(2, 6\)"):
            pool.open(prompt, torch.ones((1, 6)))
        mask = torch.ones((2, 6))
        mask[1, 3] = 0
        with pytest.raises(ValueError, match="row 1 of attention_mask must be padding first"):
            pool.open(prompt, mask)
        assert pool.manager.describe()["sequences"] == []


def test_tokens_that_were_committed_are_not_taken_back(model: Any) -> None:
    prompt = draw_tokens(1, 20, seed=1)
    with PagedCachePool(model, 1 << 20) as pool, pool.open(prompt) as cache:
        model.generate(prompt, **with_cache(model, cache), max_new_tokens=3)
        with pytest.raises(ValueError, match="activate_past_recording"):
            cache.crop(-2)
        with pytest.raises(ValueError, match="give a negative number"):
            cache.crop(2)


def test_no_room_says_what_is_missing(model: Any) -> None:
    prompt = draw_tokens(1, 1000, seed=1)
    with PagedCachePool(model, 1 << 18) as pool, pool.open(prompt) as cache:
        with pytest.raises(OutOfPagesError, match="level 0, pool group 0"):
            model.generate(prompt, **with_cache(model, cache), max_new_tokens=3)
        short = draw_tokens(1, 20, seed=3)
        with pool.open(short) as other:
            model.generate(short, **with_cache(model, other), max_new_tokens=3)
        pool.manager.check_invariants()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("_mamba2", "Mamba2ForCausalLM has recurrent state alone"),
        ("_minimax", "MiniMaxForCausalLM makes no pass with transformers' DynamicCache"),
        ("_recurrent_gemma", "layer 0 of RecurrentGemmaForCausalLM is '.*', but one forward pass left no state in it"),
    ],
)
def test_models_that_are_not_served(make: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refusal:
        PagedCachePool(globals()[make](), 1 << 20)
    assert "\n" not in str(refusal.value)


def _mamba2() -> Any:
    sizes = {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "chunk_size": 16, "vocab_size": 99, "hidden_size": 64}
    return transformers.Mamba2ForCausalLM(transformers.Mamba2Config(num_hidden_layers=2, **sizes))


def _minimax() -> Any:
    sizes = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    kinds = ["linear_attention", "full_attention"]
    return transformers.MiniMaxForCausalLM(transformers.MiniMaxConfig(num_hidden_layers=2, layer_types=kinds, num_local_experts=2, **sizes))


def _recurrent_gemma() -> Any:
    sizes = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "lru_width": 64}
    return transformers.RecurrentGemmaForCausalLM(transformers.RecurrentGemmaConfig(num_hidden_layers=3, **sizes))


@pytest.mark.parametrize("family", ["llama", "falcon_h1"])
def test_beams_without_room(family: str) -> None:
    """Of a model with recurrent state the forks themselves need slots."""
    model = make_model(family)
    prompt = draw_tokens(1, 60, seed=5)
    with PagedCachePool(model, 1 << 19, typical_rows=4, typical_length=60) as pool:
        with pytest.raises(OutOfPagesError, match="level 0, pool group") as refusal, pool.open(prompt) as cache:
            model.generate(prompt, **with_cache(model, cache), max_new_tokens=3, num_beams=64)
        # Its traceback still has what the call had.
        assert refusal.tb is not None and pool.manager.describe()["sequences"] == []


def test_beams_take_the_room_of_caches_that_wait() -> None:
    model = make_model("falcon_h1")
    prompts = [draw_tokens(1, 30, seed=6 + number) for number in range(6)]
    options = {"max_new_tokens": 4, "do_sample": False}
    with PagedCachePool(model, 1 << 19, lower_tiers=[HostCacheTierConfig(16 << 20)], typical_rows=4, typical_length=60) as pool:
        caches = [pool.open(prompt) for prompt in prompts]
        for prompt, cache in zip(prompts, caches, strict=True):
            wanted = model.generate(prompt, num_beams=3, **options)
            assert torch.equal(model.generate(prompt, num_beams=3, **with_cache(model, cache), **options), wanted)
        pool.manager.check_invariants()
        for cache in caches:
            cache.close()
