"""What keys depend on besides token ids is right, as transformers alone is, or refused; docs/integrations.md has the table."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from integrations.small_models import MAKERS, VOCABULARY, draw_tokens, make_model, with_cache  # noqa: E402

from kv_cache_manager_v2 import LogicError, ReuseScope  # noqa: E402
from kv_cache_manager_v2.integrations.transformers import PagedCachePool  # noqa: E402

T = 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture
def model() -> Any:
    return make_model("llama")


def pool_of(model: Any) -> PagedCachePool:
    return PagedCachePool(model, 4 << 20, tokens_per_block=T)


def alone(model: Any, prompt: Any, **options: Any) -> Any:
    cache = transformers.DynamicCache(config=model.config)
    return model.generate(prompt, **with_cache(model, cache), max_new_tokens=8, min_new_tokens=8, do_sample=False, **options)


def pooled(pool: PagedCachePool, model: Any, prompt: Any, scope: ReuseScope | None = None, **options: Any) -> tuple[Any, int]:
    """The tokens, and how many of the prompt were reused."""
    with pool.open(prompt, options.get("attention_mask"), scope=scope) as cache:
        output = model.generate(prompt, **with_cache(model, cache), max_new_tokens=8, min_new_tokens=8, do_sample=False, **options)
        return output, cache.reused_tokens


def require_none_reused(pool: PagedCachePool, model: Any, prompt: Any) -> None:
    output, reused = pooled(pool, model, prompt)
    assert torch.equal(output, alone(model, prompt)) and reused == 0
    output, reused = pooled(pool, model, prompt)
    assert torch.equal(output, alone(model, prompt)) and reused == prompt.shape[1] - 1


# -- rotary scaling that depends on the length ---------------------------------------------------------------------------


LIMIT = 64


def _scaled(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "dynamic":
        rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
        config = transformers.LlamaConfig(max_position_embeddings=LIMIT, rope_parameters=rope, **SIZES)
    else:
        rope = {
            "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [6.0 + i for i in range(8)], "rope_theta": 10000.0,
            "original_max_position_embeddings": LIMIT, "factor": 8.0,
        }  # fmt: skip
        config = transformers.LlamaConfig(max_position_embeddings=8 * LIMIT, rope_parameters=rope, **SIZES)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_keys_of_different_rotary_scaling_do_not_meet(kind: str) -> None:
    model, twin = _scaled(kind), _scaled(kind)  # the dynamic kind remembers the longest text, so each side has a model
    short = draw_tokens(1, 40, seed=1)
    long = torch.cat([short, draw_tokens(1, 60, seed=2)], dim=1)
    longer = torch.cat([long, draw_tokens(1, 10, seed=3)], dim=1)
    found = []
    with pool_of(model) as pool:
        for prompt in (short, long, longer, short, torch.cat([short, draw_tokens(1, 5, seed=4)], dim=1)):
            output, reused = pooled(pool, model, prompt)
            assert torch.equal(output, alone(twin, prompt)), prompt.shape
            found.append(reused)
        pool.manager.check_invariants()
    assert found == [0, 0, 0 if kind == "dynamic" else 100, 39, 40]


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_reuse_ends_where_the_rotary_scaling_switches(kind: str) -> None:
    model, twin = _scaled(kind), _scaled(kind)
    text = draw_tokens(1, 90, seed=5)
    with pool_of(model) as pool:
        with pool.open(text[:, :50]) as cache, torch.no_grad():
            stock = transformers.DynamicCache(config=twin.config)
            for begin, end in ((0, 50), (50, 80), (80, 81), (81, 90)):
                positions = torch.arange(begin, end)[None]
                wanted = twin(text[:, begin:end], position_ids=positions, **with_cache(twin, stock)).logits
                assert torch.equal(model(text[:, begin:end], position_ids=positions, **with_cache(model, cache)).logits, wanted)
        # The second pass computed tokens 50 to 63 with the scaling of 80.
        output, reused = pooled(pool, model, text[:, : LIMIT - 10])
        assert torch.equal(output, alone(_scaled(kind), text[:, : LIMIT - 10])) and reused == 50
        pool.manager.check_invariants()


# -- padding and positions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", MAKERS)
def test_padding_that_the_pool_was_not_told(family: str) -> None:
    model = make_model(family)
    prompt = draw_tokens(1, 40, seed=6)
    mask = torch.ones_like(prompt)
    mask[0, :9] = 0
    with pool_of(model) as pool:
        with pool.open(prompt) as cache:
            with pytest.raises(ValueError, match="attention_mask hides other tokens of row 0 than the 0 of padding"):
                model.generate(prompt, attention_mask=mask, **with_cache(model, cache), max_new_tokens=3)
        with pool.open(prompt, mask) as cache:
            begin = cache.num_tokens
            with pytest.raises(ValueError, match="attention_mask hides other tokens of row 0 than the 9 of padding"):
                model(prompt[:, begin:], attention_mask=torch.ones_like(mask), **with_cache(model, cache))
            with pytest.raises(
                ValueError, match=r"attention_mask of a pass with a PagedCache must have the shape \(1, 40\), not \(1, 39\)"
            ):
                model(prompt[:, begin:], attention_mask=mask[:, 1:], **with_cache(model, cache))
            with pytest.raises(ValueError, match="the cache was opened with padding, and the pass has no attention_mask"):
                model.generate(prompt, attention_mask=torch.ones_like(mask), **with_cache(model, cache), max_new_tokens=3)
            assert cache.num_tokens == begin
        # Nothing of the padded row is served to the unpadded one.
        padded, _ = pooled(pool, model, prompt, attention_mask=mask)
        assert torch.equal(padded, alone(model, prompt, attention_mask=mask))
        plain, _ = pooled(pool, model, prompt)
        assert torch.equal(plain, alone(model, prompt))


@pytest.mark.parametrize("salt", ["padding 9 None", "('', 9, None)", repr(("", 9, "('', 9, None)"))])
def test_no_salt_is_the_scope_of_a_padded_row(model: Any, salt: str) -> None:
    prompt = draw_tokens(1, 40, seed=6)
    mask = torch.ones_like(prompt)
    mask[0, :9] = 0
    with pool_of(model) as pool:
        for scope in (None, ReuseScope(salt="('', 9, None)")):
            pooled(pool, model, prompt, scope, attention_mask=mask)
        output, reused = pooled(pool, model, prompt, ReuseScope(salt=salt))
        assert torch.equal(output, alone(model, prompt)) and reused == 0
        # It is a scope like any other.
        assert pooled(pool, model, prompt, ReuseScope(salt=salt))[1] == 39


def test_positions_of_ones_own(model: Any) -> None:
    prompt = draw_tokens(1, 20, seed=7)
    with pool_of(model) as pool, pool.open(prompt) as cache:
        with pytest.raises(ValueError, match="position_ids must count tokens from 0, less each row's padding"):
            model(prompt, position_ids=torch.arange(5, 25)[None], **with_cache(model, cache))
        assert cache.num_tokens == 0


@pytest.mark.parametrize("family", MAKERS)
def test_a_pass_without_positions_gets_them(family: str) -> None:
    """Of padded rows too, where transformers alone would count the padding."""
    model = make_model(family)
    prompt = draw_tokens(2, 21, seed=8)
    mask = torch.ones_like(prompt)
    mask[1, :6] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    stock = transformers.DynamicCache(config=model.config)
    with pool_of(model) as pool, pool.open(prompt, mask) as cache, torch.no_grad():
        for end in (cache.num_tokens, 20, 21):
            begin = stock.get_seq_length()
            if end > begin:
                given = {"attention_mask": mask[:, :end]}
                wanted = model(prompt[:, begin:end], position_ids=positions[:, begin:end], **given, **with_cache(model, stock)).logits
            if end > cache.num_tokens:
                found = model(prompt[:, begin:end], **given, **with_cache(model, cache)).logits
                assert torch.equal(found[0], wanted[0]) and torch.equal(found[1, -1], wanted[1, -1])


# -- weights, adapters, data type ----------------------------------------------------------------------------------------


def _change_in_place(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight.mul_(-1)


def _train(model: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(draw_tokens(1, 9, seed=9), labels=draw_tokens(1, 9, seed=9)).loss.backward()
    optimizer.step()


def _load(model: Any) -> None:
    model.load_state_dict({name: value.flip(0) for name, value in model.state_dict().items()})


def _replace_a_module(model: Any) -> None:
    layer = model.model.layers[0].self_attn
    layer.k_proj = torch.nn.Linear(layer.k_proj.in_features, layer.k_proj.out_features, bias=False)


def _quantise(model: Any) -> None:
    torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, inplace=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("change", [_change_in_place, _train, _load, _replace_a_module, _quantise])
def test_weights_that_changed(model: Any, change: Any) -> None:
    prompt = draw_tokens(1, 60, seed=10)
    with pool_of(model) as pool:
        assert pooled(pool, model, prompt)[1] == 0
        assert pooled(pool, model, prompt)[1] == 59
        change(model)
        require_none_reused(pool, model, prompt)


def test_weights_that_changed_past_the_count_of_changes(model: Any) -> None:
    prompt = draw_tokens(1, 60, seed=11)
    with pool_of(model) as pool:
        pooled(pool, model, prompt, ReuseScope(1, "tenant"))
        model.model.layers[0].self_attn.k_proj.weight.data.mul_(-1)
        pool.weights_changed()
        output, reused = pooled(pool, model, prompt, ReuseScope(1, "tenant"))
        assert torch.equal(output, alone(model, prompt)) and reused == 0
        assert pooled(pool, model, prompt, ReuseScope(1, "tenant"))[1] == 59
        require_none_reused(pool, model, prompt)


def test_another_data_type(model: Any) -> None:
    prompt = draw_tokens(1, 30, seed=12)
    with pool_of(model) as pool:
        with pool.open(prompt) as cache:
            model.to(torch.bfloat16)
            with pytest.raises(ValueError, match="layer 0 computes torch.bfloat16 on cpu, and the pool keeps torch.float32 on cpu"):
                model.generate(prompt, **with_cache(model, cache), max_new_tokens=3)
        with pytest.raises(LogicError, match="computes in torch.bfloat16, and its pool keeps torch.float32: make another pool"):
            pool.open(prompt)
        model.to(torch.float32)
        pooled(pool, model, prompt)
        with pool.open(draw_tokens(1, 30, seed=13)) as cache, torch.autocast("cpu", torch.bfloat16):
            with pytest.raises(ValueError, match="make another pool, and no autocast of keys"):
                model.generate(draw_tokens(1, 30, seed=13), **with_cache(model, cache), max_new_tokens=3)


def _with_adapters(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    config = peft.LoraConfig(
        r=4, lora_alpha=64, target_modules=["q_proj", "k_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(model, config, adapter_name="french")
    model.add_adapter("latin", config)
    model.set_adapter("french")
    return model.eval()


def test_an_adapter_is_part_of_the_scope(model: Any) -> None:
    prompt = draw_tokens(1, 60, seed=14)
    model = _with_adapters(model)
    outputs = []
    with pool_of(model) as pool:
        for name, known in (("french", 0), ("latin", 0), ("french", 59), ("latin", 59)):
            model.set_adapter(name)
            output, reused = pooled(pool, model, prompt)
            assert torch.equal(output, alone(model, prompt)) and reused == known
            outputs.append(output)
        assert not torch.equal(outputs[0], outputs[1])
        with model.disable_adapter():
            require_none_reused(pool, model, prompt)
        model.base_model.merge_adapter()
        require_none_reused(pool, model, prompt)
        model.base_model.unmerge_adapter()
        # The wrapper's forward pass too.
        short = draw_tokens(1, 20, seed=21)
        with pool.open(short) as cache, torch.no_grad():
            model(input_ids=short, **with_cache(model, cache))
            assert cache.num_tokens == 20 and cache.kv_caches[0].num_committed_tokens == 20
        with pool.open(draw_tokens(1, 30, seed=15)) as cache:
            model.set_adapter("french")
            with pytest.raises(LogicError, match="adapter or settings are others than when this cache was opened"):
                model.generate(draw_tokens(1, 30, seed=15), **with_cache(model, cache), max_new_tokens=3)


def test_learned_vectors_before_the_prompt(model: Any) -> None:
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(ValueError, match="adapter 'default' puts learned vectors before the prompt"):
        pool_of(wrapped)


# -- inputs that are no token ids --------------------------------------------------------------------------------------


def test_embeddings_in_place_of_ids(model: Any) -> None:
    prompt = draw_tokens(1, 20, seed=16)
    with pool_of(model) as pool, pool.open(prompt) as cache:
        with pytest.raises(ValueError, match="a pass with a PagedCache got inputs_embeds"):
            model(inputs_embeds=model.get_input_embeddings()(prompt), **with_cache(model, cache))
        with pytest.raises(ValueError, match="a pass with a PagedCache got my_condition"):
            model(prompt, my_condition=torch.ones(1), **with_cache(model, cache))
        assert cache.num_tokens == 0


def test_images_are_refused_and_text_is_served() -> None:
    torch.manual_seed(0)
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 28,
        "patch_size": 14,
    }
    text = transformers.Gemma3TextConfig(head_dim=16, sliding_window=24, query_pre_attn_scalar=16, **SIZES)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, image_token_id=400, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    prompt = draw_tokens(1, 30, seed=17).clamp(max=399)
    with pool_of(model) as pool:
        for known in (0, 29):
            output, reused = pooled(pool, model, prompt, token_type_ids=torch.zeros_like(prompt))
            assert torch.equal(output, alone(model, prompt)) and reused == known
        pictured = prompt.clone()
        pictured[0, 3:7] = 400
        # transformers 5.24 encodes pictures before the pass.
        pixels = r"(pixel_values|mm_encoder_outputs)"
        for name, said, value in (
            ("pixel_values", pixels, torch.randn(1, 3, 28, 28)),
            ("token_type_ids", "token_type_ids", (pictured == 400).long()),
        ):
            with pool.open(pictured) as cache, pytest.raises(ValueError, match=f"a pass with a PagedCache got {said}"):
                model.generate(pictured, **{name: value}, **with_cache(model, cache), max_new_tokens=3)


# -- switches of attention ---------------------------------------------------------------------------------------------


def test_another_attention(model: Any) -> None:
    prompt = draw_tokens(1, 60, seed=18)
    with pool_of(model) as pool:
        pooled(pool, model, prompt)
        with pool.open(draw_tokens(1, 30, seed=19)) as cache:
            model.set_attn_implementation("eager")
            with pytest.raises(LogicError, match="settings are others than when this cache was opened"):
                model.generate(draw_tokens(1, 30, seed=19), **with_cache(model, cache), max_new_tokens=3)
        require_none_reused(pool, model, prompt)
        wanted = alone(model, prompt, output_attentions=True, return_dict_in_generate=True)
        with pool.open(prompt) as cache:
            found = model.generate(
                prompt, **with_cache(model, cache), max_new_tokens=8, min_new_tokens=8, do_sample=False, output_attentions=True,
                return_dict_in_generate=True,
            )  # fmt: skip
        assert torch.equal(found.sequences, wanted.sequences)
        for ours, theirs in zip(found.attentions[-1], wanted.attentions[-1], strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)
        model.set_attn_implementation("sdpa")
        assert pooled(pool, model, prompt)[1] == 59


def test_a_window_that_is_turned_off() -> None:
    model = make_model("gemma3")
    prompt = draw_tokens(1, 60, seed=20)
    with pool_of(model) as pool:
        with pool.open(prompt) as cache:
            model.config.sliding_window = 4096
            for call in (lambda: pool.open(prompt), lambda: model.generate(prompt, **with_cache(model, cache), max_new_tokens=3)):
                with pytest.raises(LogicError, match="layers of the model have other windows than when its pool was made"):
                    call()
            model.config.sliding_window = 24
            model.generate(prompt, **with_cache(model, cache), max_new_tokens=3)


def test_caches_that_are_open_go_on(model: Any) -> None:
    """A training loop changes weights while answers are being written: what they had is found by no other, and freed with them."""
    prompt = draw_tokens(1, 60, seed=14)
    with pool_of(model) as pool:
        cache = pool.open(prompt)
        few: dict[str, Any] = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
        first = model.generate(prompt, **with_cache(model, cache), **few)
        pool.weights_changed()
        more = model.generate(first, **with_cache(model, cache), **few)
        assert torch.equal(more, alone(model, prompt)[:, : more.shape[1]])
        require_none_reused(pool, model, prompt)
        pool.weights_changed()
        (group,) = pool.manager.get_storage_statistics()
        assert group.total - group.free == -(-65 // pool.tokens_per_block), "the last one of 66 tokens is not computed yet"
        cache.close()
        (group,) = pool.manager.get_storage_statistics()
        assert group.total == group.free
        pool.manager.check_invariants()
