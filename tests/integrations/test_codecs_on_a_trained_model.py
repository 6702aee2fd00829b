"""What packing costs a trained model: errors of its keys and values, and its perplexity behind a context that was packed. Figures are
printed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from integrations.small_models import with_cache  # noqa: E402

from kv_cache_manager_v2 import HostCacheTierConfig  # noqa: E402
from kv_cache_manager_v2.codecs.float8_codec import Float8Codec  # noqa: E402
from kv_cache_manager_v2.codecs.int4_codec import Int4Codec  # noqa: E402
from kv_cache_manager_v2.codecs.lossless_codec import LosslessCodec  # noqa: E402
from kv_cache_manager_v2.integrations.transformers import PagedCachePool  # noqa: E402

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("design.md", "ownership.md", "eviction.md", "overview.md")
CONTEXT_TOKENS = 256
SCORED_TOKENS = 192
BLOCK = 32
LOSSY = {"float8": Float8Codec("float32", 64), "int4": Int4Codec("float32")}


def texts(tokenizer: Any) -> list[Any]:
    """From each of four pages of this library's documents, behind its first lines."""
    count = CONTEXT_TOKENS + SCORED_TOKENS
    found = [tokenizer((DOCS / page).read_text(encoding="utf-8"), return_tensors="pt").input_ids[:, 100 : 100 + count] for page in PAGES]
    assert all(text.shape[1] == count for text in found)
    return found


def errors_of(codec: Any, values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Of numbers, so many a page as rows: root of the mean square of the error, and the mean of its magnitude, by those of the numbers."""
    rows = np.ascontiguousarray(values, np.float32)
    wrong = codec.unpack(codec.pack(rows.view(np.uint8))).view(np.float32).astype(np.float64) - rows
    rows64 = rows.astype(np.float64)
    return float(np.sqrt((wrong**2).mean() / (rows64**2).mean())), float(np.abs(wrong).mean() / np.abs(rows64).mean())


def test_errors_of_keys_and_values(trained: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Beside those of normally distributed numbers. A page is 32 tokens of a layer; a head has 64 numbers."""
    model, tokenizer = trained
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(texts(tokenizer)[0], use_cache=True, **with_cache(model, cache))
    numbers: dict[str, list[np.ndarray[Any, Any]]] = {"keys": [], "values": []}
    for layer in cache.layers:
        for name, tensor in (("keys", layer.keys), ("values", layer.values)):
            numbers[name].append(tensor[0].transpose(0, 1).contiguous().numpy().reshape(-1, BLOCK * tensor.shape[1] * tensor.shape[3]))
    rows = {name: np.concatenate(found) for name, found in numbers.items()}
    rows["normal"] = np.random.default_rng(5).standard_normal((200, BLOCK * 192))
    lines = []
    for name, codec in LOSSY.items():
        for kind, found in rows.items():
            root, mean = errors_of(codec, found)
            lines.append(f"  {name:8} {kind:8} {100 * root:.2f} %  {100 * mean:.2f} %")
            assert 0 < root < (0.05 if name == "float8" else 0.25)
    for dtype, step in (("float32", 1), ("bfloat16", 2)):
        for kind, found in rows.items():
            data = np.ascontiguousarray(found, np.float32).view(np.uint8)
            if step == 2:
                data = np.ascontiguousarray(data.reshape(len(data), -1, 4)[:, :, 2:]).reshape(len(data), -1)
            packed = LosslessCodec(dtype).pack(data)
            assert (LosslessCodec(dtype).unpack(packed) == data).all()
            lengths = packed[:, :4].copy().view("<u4").reshape(-1).astype(np.int64)
            kept = np.where(lengths == 0, data.shape[1], lengths).sum() / data.size
            lines.append(f"  lossless {kind:8} as {dtype}: {100 * kept:.0f} % of the bytes")
    with capsys.disabled():
        print("\nSmolLM2-135M, error by root of mean squares, by mean magnitude", *lines, sep="\n")


def score(model: Any, pool: PagedCachePool, text: Any) -> tuple[int, float]:
    """The tokens of the context that were reused, and the mean loss of what comes behind it."""
    with pool.open(text) as cache, torch.no_grad():
        reused = cache.reused_tokens
        positions = torch.arange(reused, text.shape[1])[None, :]
        logits = model(text[:, reused:], position_ids=positions, use_cache=True, **with_cache(model, cache)).logits[0]
        begin = CONTEXT_TOKENS - reused
        loss = torch.nn.functional.cross_entropy(logits[begin:-1], text[0, CONTEXT_TOKENS + 1 :])
    return reused, float(loss)


def test_perplexity_behind_a_packed_context(trained: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Contexts are computed and offloaded; then each comes back, and the tokens behind it are scored."""
    model, tokenizer = trained
    block_bytes = BLOCK * 4 * 2 * 192 * model.config.num_hidden_layers
    found: dict[str, float] = {}
    for name, codec in {"none": None, "lossless": LosslessCodec("float32"), **LOSSY}.items():
        tiers = [HostCacheTierConfig(80 * block_bytes)]
        with PagedCachePool(
            model, 16 * block_bytes, lower_tiers=tiers, tokens_per_block=BLOCK, typical_rows=1, typical_length=448, max_mirror_bytes=0,
            cold_page_codec=codec,
        ) as pool:  # fmt: skip
            losses = []
            for text in texts(tokenizer):
                # One token more than the context, as the last one is left to compute.
                with pool.open(text[:, : CONTEXT_TOKENS + 1]) as cache, torch.no_grad():
                    model(text[:, :CONTEXT_TOKENS], use_cache=True, **with_cache(model, cache))
            for text in texts(tokenizer):
                reused, loss = score(model, pool, text)
                assert reused == CONTEXT_TOKENS
                losses.append(loss)
            (risen,) = [one for one in pool.manager.get_statistics().transfers if one.source_level == 1]
            assert risen.blocks == len(PAGES) * CONTEXT_TOKENS // BLOCK, "all contexts were in host memory"
        found[name] = math.exp(sum(losses) / len(losses))
    assert found["lossless"] == found["none"]
    assert abs(found["float8"] / found["none"] - 1) < 0.02 < 1 < found["int4"]
    with capsys.disabled():
        print(f"\nSmolLM2-135M, perplexity of {len(PAGES) * (SCORED_TOKENS - 1)} tokens, each text behind {CONTEXT_TOKENS} of its own")
        for name, perplexity in found.items():
            print(f"  {name:8}  {perplexity:.3f}")
