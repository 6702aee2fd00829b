"""Small models of six families with random weights, whose layers are of all kinds that the library serves."""

from typing import Any, Final

import torch
import transformers
from kv_cache_manager_v2 import DebugFill
from kv_cache_manager_v2.integrations.transformers import PagedCachePool
from kv_cache_manager_v2.integrations.transformers_model import ForwardArguments, unwrap

# With one thread torch adds up in one order, so equal means equal.
torch.set_num_threads(1)

VOCABULARY: Final = 503
_COMMON: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY, "hidden_size": 96, "intermediate_size": 128, "num_attention_heads": 6, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_HEADS: Final = {**_COMMON, "head_dim": 16}


def _llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=3, **_HEADS))


def _gemma3() -> Any:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    return transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(num_hidden_layers=6, sliding_window=24, query_pre_attn_scalar=16, layer_types=kinds, **_HEADS)
    )


def _gpt_oss() -> Any:
    config = transformers.GptOssConfig(
        num_hidden_layers=4, sliding_window=20, num_local_experts=4, num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"] * 2, **_HEADS,
    )  # fmt: skip
    # The other attention of torch knows no sinks.
    config._attn_implementation = "eager"
    return transformers.GptOssForCausalLM(config)


def _qwen3_next() -> Any:
    return transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(
            num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
            linear_conv_kernel_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48,
            shared_expert_intermediate_size=48, layer_types=["linear_attention"] * 3 + ["full_attention"], **_HEADS,
        )
    )  # fmt: skip


def _falcon_h1() -> Any:
    return transformers.FalconH1ForCausalLM(
        transformers.FalconH1Config(
            num_hidden_layers=3, mamba_d_ssm=96, mamba_n_heads=6, mamba_d_head=16, mamba_d_state=16, mamba_chunk_size=16, **_HEADS
        )
    )


def _bamba() -> Any:
    return transformers.BambaForCausalLM(
        transformers.BambaConfig(
            num_hidden_layers=4, attn_layer_indices=[1, 3], mamba_n_heads=6, mamba_d_head=32, mamba_d_state=16, mamba_n_groups=1,
            mamba_chunk_size=16, mamba_expand=2, **_COMMON,
        )
    )  # fmt: skip


MAKERS: Final = {
    "llama": _llama, "gemma3": _gemma3, "gpt_oss": _gpt_oss, "qwen3_next": _qwen3_next, "falcon_h1": _falcon_h1, "bamba": _bamba
}  # fmt: skip
RECURRENT: Final = ("qwen3_next", "falcon_h1", "bamba")
WINDOWED: Final = ("gemma3", "gpt_oss")


def make_model(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """Weights 2.5 times as large as transformers draws them: else all logits are so alike that equal tokens say little."""
    torch.manual_seed(0)
    model = MAKERS[family]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model.to(dtype)


def with_cache(model: Any, cache: Any) -> dict[str, Any]:
    """The argument of a call of the model or of its `generate`, by the name that this release of transformers has for it."""
    return {ForwardArguments(unwrap(model)).cache_name: cache}


def pool_of(model: Any, memory_bytes: int = 4 << 20, **options: Any) -> PagedCachePool:
    """Blocks of 8 tokens; freed pages hold NaN: a page that is read too late, or never written, shows in the logits."""
    return PagedCachePool(model, memory_bytes, tokens_per_block=8, debug_fill=DebugFill.NAN, **options)


def draw_tokens(num_rows: int, num_tokens: int, seed: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (num_rows, num_tokens), generator=torch.Generator().manual_seed(seed))
