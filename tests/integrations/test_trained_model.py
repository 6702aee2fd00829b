"""A trained model answers the same with and without reuse; the time to its first token is printed for both."""

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from integrations.small_models import with_cache  # noqa: E402

from kv_cache_manager_v2.integrations.transformers import PagedCachePool  # noqa: E402

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "design.md"
QUESTIONS = (" In short, a page is", " The most important rule is", " A sequence that is suspended")
DOCUMENT_TOKENS = 400
NEW_TOKENS = 12
NUM_STEPS = 61


def answer(model: Any, prompt: Any, cache: Any) -> tuple[list[int], float]:
    """The greedy answer, and the seconds until its first token."""
    options = {"do_sample": False, **with_cache(model, cache)}
    begin = time.perf_counter()
    first = model.generate(prompt, max_new_tokens=1, **options)
    seconds = time.perf_counter() - begin
    tokens: list[int] = model.generate(first, max_new_tokens=NEW_TOKENS - 1, min_new_tokens=NEW_TOKENS - 1, **options)[0].tolist()
    return tokens, seconds


def test_a_trained_model_answers_the_same_with_and_without_reuse(trained: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = trained
    document = tokenizer(DOCUMENT.read_text(encoding="utf-8"), return_tensors="pt").input_ids[:, :DOCUMENT_TOKENS]
    rows = []
    with PagedCachePool(model, memory_bytes=1 << 28) as pool:
        for question in QUESTIONS:
            prompt = torch.cat([document, tokenizer(question, return_tensors="pt").input_ids], dim=1)
            expected, without = answer(model, prompt, transformers.DynamicCache(config=model.config))
            with pool.open(prompt) as cache:
                reused = cache.reused_tokens
                found, with_reuse = answer(model, prompt, cache)
            assert found == expected
            rows.append((reused, without, with_reuse))
        assert rows[0][0] == 0 and all(reused >= DOCUMENT_TOKENS for reused, _, _ in rows[1:])
    with capsys.disabled():
        print("\nSmolLM2-135M, seconds to the first token: reused tokens, without reuse, with reuse")
        for reused, without, with_reuse in rows:
            print(f"  {reused:5}  {without:.2f}  {with_reuse:.2f}")


@pytest.mark.parametrize(("num_rows", "num_tokens"), [(1, 200), (1, 800), (4, 200)])
def test_a_decode_step_beside_transformers_own_cache(
    trained: tuple[Any, Any], num_rows: int, num_tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of both caches in turn give equal logits; their times are printed."""
    model, _ = trained
    tokens = torch.randint(3, 40000, (num_rows, num_tokens + NUM_STEPS), generator=torch.Generator().manual_seed(1))
    stock = transformers.DynamicCache(config=model.config)
    times: list[list[float]] = [[], []]
    with PagedCachePool(model, memory_bytes=1 << 29, typical_rows=4) as pool, pool.open(tokens[:, :num_tokens]) as ours:
        for begin, end in ((0, num_tokens), *((end - 1, end) for end in range(num_tokens + 1, num_tokens + NUM_STEPS))):
            logits = []
            for cache, seconds in zip((stock, ours), times, strict=True):
                started = time.perf_counter()
                with torch.no_grad():
                    positions = torch.arange(begin, end)[None, :]
                    output = model(tokens[:, begin:end], position_ids=positions, use_cache=True, **with_cache(model, cache))
                seconds.append(time.perf_counter() - started)
                logits.append(output.logits)
            assert torch.equal(*logits)
    with capsys.disabled():
        print(f"\n{num_rows} rows of {num_tokens} tokens, ms a step: least, median, greatest")
        for name, seconds in zip(("DynamicCache", "PagedCache"), times, strict=True):
            steps = [1000 * each for each in sorted(seconds[1:])]
            print(f"  {name:12}  {steps[0]:.1f}  {steps[len(steps) // 2]:.1f}  {steps[-1]:.1f}")
