"""Models of transformers say the same with a `PagedCache` as with transformers' own `DynamicCache`: logits to the bit, and tokens."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from integrations.small_models import MAKERS, RECURRENT, WINDOWED, draw_tokens, make_model, pool_of, with_cache  # noqa: E402

from kv_cache_manager_v2 import (  # noqa: E402
    BatchDesc,
    DebugFill,
    DiskCacheTierConfig,
    HostCacheTierConfig,
    KVCacheDesc,
    OutOfMemoryError,
    SnapshotPolicy,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.integrations.transformers import PagedCache, PagedCachePool  # noqa: E402

T = 8


def generate(model: Any, prompt: Any, cache: Any = None, **options: Any) -> Any:
    if cache is None:
        cache = transformers.DynamicCache(config=model.config)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, **options}
    return model.generate(prompt, **with_cache(model, cache), **options)


def run_chunks(model: Any, cache: Any, tokens: Any, ends: list[int]) -> Any:
    """The logits of all tokens from where the cache ends, computed up to each of ``ends`` in turn."""
    logits = []
    begin = cache.get_seq_length()
    for end in ends:
        if end > begin:
            positions = torch.arange(begin, end)[None, :]
            with torch.no_grad():
                output = model(input_ids=tokens[:, begin:end], **with_cache(model, cache), position_ids=positions, use_cache=True)
            logits.append(output.logits)
            begin = end
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", MAKERS)
def test_logits_are_equal_to_the_bit(family: str, dtype: Any) -> None:
    """Whole and chunked prefill at boundaries inside blocks, single tokens, and a prefix that is reused up to inside a block.

    transformers' own logits depend on the chunks in which a prompt is computed, so both sides compute in the same ones.
    """
    model = make_model(family, dtype)
    tokens = draw_tokens(1, 84, seed=1)
    # Without stops for snapshots in the prompt `open` computes nothing.
    policy = SnapshotPolicy(at_prompt_end=False, at_branches=False, at_close=True)
    for ends in ([75, *range(76, 85)], [13, 14, 44, 75, *range(76, 85)]):
        with pool_of(model, snapshot_policy=policy) as pool:
            with pool.open(tokens[:, :75]) as cache:
                assert cache.num_tokens == 0
                compare(model, cache, tokens, ends, computed=[])
            longer = torch.cat([tokens, draw_tokens(1, 30, seed=2)], dim=1)
            with pool.open(longer) as cache:
                assert cache.reused_tokens == 84
                compare(model, cache, longer, [113, 114], computed=ends)
            pool.manager.check_invariants()


def compare(model: Any, cache: Any, tokens: Any, ends: list[int], computed: list[int]) -> None:
    """``computed``: the ends of the chunks in which earlier requests computed what the cache begins with."""
    begin = cache.num_tokens
    expected = transformers.DynamicCache(config=model.config)
    chunks = sorted({*computed, begin, *ends} - {0})
    wanted = run_chunks(model, expected, tokens, chunks)[:, begin:]
    assert torch.equal(run_chunks(model, cache, tokens, ends), wanted)


@pytest.mark.parametrize("family", MAKERS)
def test_a_chat_of_three_turns_reuses_all_but_the_last_tokens(family: str) -> None:
    model = make_model(family)
    prompt = draw_tokens(1, 75, seed=2)
    with pool_of(model) as pool:
        known = 0
        for turn in range(3):
            wanted = generate(model, prompt)
            with pool.open(prompt) as cache:
                assert torch.equal(generate(model, prompt, cache), wanted), f"turn {turn}"
                # The last token of an answer was never put in, so its keys are not there.
                assert cache.reused_tokens == known
            known = wanted.shape[1] - 1
            prompt = torch.cat([wanted, draw_tokens(1, 11, seed=3 + turn)], dim=1)


@pytest.mark.parametrize("family", MAKERS)
def test_equal_prompts_leave_one_token_to_compute(family: str) -> None:
    model = make_model(family)
    prompt = draw_tokens(1, 75, seed=5)
    with pool_of(model) as pool:
        reused = []
        for _request in range(4):
            with pool.open(prompt) as cache:
                reused.append(cache.reused_tokens)
                generate(model, prompt, cache)
        assert reused == [0, 74, 74, 74]


def test_beams_of_zamba2() -> None:
    """Its hybrid layers share one attention block, and a beam takes slots for several states."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 503, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4}
    states = {"mamba_d_state": 16, "mamba_headdim": 32, "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 16}
    kinds = ["mamba", "hybrid"] * 2
    config = transformers.Zamba2Config(num_hidden_layers=4, layers_block_type=kinds, num_mem_blocks=1, adapter_rank=8, **sizes, **states)
    model = transformers.Zamba2ForCausalLM(config).eval()
    prompt = draw_tokens(1, 45, seed=5)
    with pool_of(model, 64 << 20) as pool:
        for num_beams, known in ((1, 0), (3, 44)):
            with pool.open(prompt) as cache:
                assert cache.reused_tokens == known
                wanted = generate(model, prompt, num_beams=num_beams)
                assert torch.equal(generate(model, prompt, cache, num_beams=num_beams), wanted)
        pool.manager.check_invariants()


@pytest.mark.parametrize("family", MAKERS)
def test_beams_batches_and_padding(family: str) -> None:
    model = make_model(family)
    prompts = draw_tokens(2, 40, seed=7)
    prompts[1, :30] = prompts[0, :30]
    with pool_of(model) as pool:
        with pool.open(prompts) as cache:
            assert torch.equal(generate(model, prompts, cache, num_beams=3), generate(model, prompts, num_beams=3))
        mask = torch.ones_like(prompts)
        mask[1, :9] = 0
        prompts[1, :9] = 0
        wanted = generate(model, prompts, attention_mask=mask)
        for known in (0, 39):
            with pool.open(prompts, mask) as cache:
                # Row 0 was there since the beams; all rows begin at one length.
                assert cache.reused_tokens == known
                assert torch.equal(generate(model, prompts, cache, attention_mask=mask), wanted)
        pool.manager.check_invariants()


@pytest.mark.parametrize("family", MAKERS)
def test_several_answers_to_one_prompt(family: str) -> None:
    model = make_model(family)
    prompt = draw_tokens(1, 30, seed=8)
    options = {"do_sample": True, "num_return_sequences": 3, "top_k": 50}
    with pool_of(model) as pool, pool.open(prompt) as cache:
        torch.manual_seed(11)
        wanted = generate(model, prompt, **options)
        torch.manual_seed(11)
        assert torch.equal(generate(model, prompt, cache, **options), wanted)
        assert cache.batch_size == 3


@pytest.mark.parametrize("family", [family for family in MAKERS if family not in RECURRENT])
def test_rejected_drafts_are_taken_back(family: str) -> None:
    """Prompt look-up drafts tokens that are mostly wrong, on a text that repeats itself so that there are drafts."""
    model = make_model(family)
    prompt = draw_tokens(1, 12, seed=9).repeat(1, 5)
    wanted = generate(model, prompt, max_new_tokens=24)
    with pool_of(model) as pool, pool.open(prompt) as cache:
        found = generate(model, prompt, cache, max_new_tokens=24, prompt_lookup_num_tokens=5)
        assert torch.equal(found, wanted)
        pool.manager.check_invariants()


@pytest.mark.parametrize("family", [family for family in MAKERS if family not in RECURRENT])
@pytest.mark.parametrize("drafts", ["prompt", "model"])
def test_assisted_decoding_goes_on_with_what_is_cached(family: str, drafts: str) -> None:
    """transformers gives the first pass the whole prompt, whatever the cache has: with a `DynamicCache` the answer is then wrong."""
    model = make_model(family)
    prompt = draw_tokens(1, 12, seed=9).repeat(1, 5)
    wanted = generate(model, prompt, max_new_tokens=24)
    more = torch.cat([wanted, prompt[:, :20]], dim=1)
    options = {"prompt_lookup_num_tokens": 5} if drafts == "prompt" else {"assistant_model": make_model(family)}
    with pool_of(model) as pool:
        for known in (0, 59):
            with pool.open(prompt) as cache:
                assert cache.reused_tokens == known
                assert torch.equal(generate(model, prompt, cache, max_new_tokens=24, **options), wanted)
        with pool.open(more) as cache:
            assert cache.reused_tokens >= 80
            for _turn in range(2):
                wanted = generate(model, more, max_new_tokens=24)
                assert torch.equal(generate(model, more, cache, max_new_tokens=24, **options), wanted)
                more = torch.cat([wanted, prompt[:, :9]], dim=1)
        pool.manager.check_invariants()


@pytest.mark.parametrize("family", WINDOWED)
def test_scratch_slots(family: str) -> None:
    model = make_model(family)
    prompt = draw_tokens(1, 120, seed=10)
    peaks = []
    for scratch in (None, SwaScratchReuseConfig()):
        with pool_of(model, swa_scratch_reuse=scratch) as pool, pool.open(prompt) as cache:
            assert torch.equal(generate(model, prompt, cache), generate(model, prompt))
            statistics = pool.manager.get_statistics()
            peaks.append(statistics)
    assert len(peaks) == 2


@pytest.mark.parametrize("lower", ["host", "disk"])
@pytest.mark.parametrize("family", MAKERS)
def test_requests_survive_on_lower_tiers(family: str, lower: str, tmp_path: Any) -> None:
    """Six requests in turn, a few tokens each, in a pool with room for about two: the others wait on the tier below."""
    model = make_model(family)
    prompts = [draw_tokens(1, 60 + number, seed=20 + number) for number in range(6)]
    wanted = [generate(model, prompt, max_new_tokens=8, min_new_tokens=8) for prompt in prompts]
    tier = HostCacheTierConfig(16 << 20) if lower == "host" else DiskCacheTierConfig(64 << 20, str(tmp_path))
    room = _memory_for(model, length=80)
    pool = PagedCachePool(
        model, 2 * room, lower_tiers=[tier], tokens_per_block=T, constraints=[BatchDesc([KVCacheDesc(80, 0)])], debug_fill=DebugFill.NAN
    )
    with pool:
        caches = [pool.open(prompt) for prompt in prompts]
        texts = [prompt[:, : cache.num_tokens] for prompt, cache in zip(prompts, caches, strict=True)]
        for number, cache in enumerate(caches):
            texts[number] = generate(model, prompts[number], cache, max_new_tokens=4, min_new_tokens=4)
        for number, cache in enumerate(caches):
            texts[number] = generate(model, texts[number], cache, max_new_tokens=4, min_new_tokens=4)
        assert all(torch.equal(found, expected) for found, expected in zip(texts, wanted, strict=True))
        assert sum(kv_cache.is_active for cache in caches for kv_cache in cache.kv_caches) < 6
        for cache in caches:
            cache.close()
        pool.manager.check_invariants()


def _memory_for(model: Any, length: int) -> int:
    """The least bytes of level 0 in which a row can be computed in one pass, found by trying."""
    for memory in range(1 << 15, 1 << 22, 1 << 14):
        try:
            pool = PagedCachePool(model, memory, tokens_per_block=T, constraints=[BatchDesc([KVCacheDesc(length, 0)])])
        except (OutOfMemoryError, ValueError):
            continue
        pool.close()
        return memory
    raise AssertionError("4 MiB are not enough")


def test_a_page_that_is_wrong_shows_in_the_logits() -> None:
    """The check of the checks: one number of one page, overwritten between two passes."""
    model = make_model("llama")
    prompt = draw_tokens(1, 40, seed=12)
    with pool_of(model) as pool, pool.open(prompt) as cache:
        run_chunks(model, cache, prompt, [39])
        page = int(pool.pages(1, "key").rows(cache.kv_caches[0])[2])
        pool.pages(1, "key").tensor[page, 3, 1, 5] = float("nan")
        assert run_chunks(model, cache, prompt, [40]).isnan().all()


def test_a_pass_that_fails_is_done_again() -> None:
    model = make_model("gemma3")
    prompt = draw_tokens(1, 40, seed=13)

    def fail(*_arguments: object) -> None:
        raise RuntimeError("the GPU is on fire")

    with pool_of(model) as pool, pool.open(prompt) as cache:
        hook = model.model.layers[3].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="fire"):
            run_chunks(model, cache, prompt, [30])
        hook.remove()
        assert torch.equal(generate(model, prompt, cache), generate(model, prompt))
        assert isinstance(cache, PagedCache)
