"""The table of models against transformers itself: every family that the installed release has, made by its own classes, without memory.

The oracle is no formula: a model of each family is made on torch's meta device, which computes shapes alone, takes three tokens, and
what it leaves in its cache is read: heads and items of keys and values, windows, states. A family that cannot compute so is skipped with
the reason. A family that is refused here is no error; one that is placed with other bytes is.
"""

import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

from kv_cache_manager_v2 import AttentionLayerConfig, SsmLayerConfig  # noqa: E402
from kv_cache_manager_v2.models.model_description import read_model  # noqa: E402
from kv_cache_manager_v2.models.model_fields import ModelConfigError  # noqa: E402

NUM_TOKENS = 3
NUM_LAYERS = 8
"""Enough for each pattern of layers to come once; fewer would leave some out."""
SECONDS = 30
BYTES = 2
"""Of an item in 16 bits."""
KNOWN_TO_COMPUTE = ("deepseek_v3", "falcon", "gemma4_unified_text", "gpt_oss", "llama", "mimo_v2_flash", "qwen3_next", "step3p5", "youtu")
"""Families that must not be skipped, or the oracle has gone blind."""

Bytes = Counter[tuple[str, int | None, int]]
"""By kind, window and bytes of a token (of a sequence, for states): how many layers."""


@pytest.fixture
def limit() -> Iterator[None]:
    """Not a model that takes minutes to make."""

    def stop(_number: int, _frame: Any) -> None:
        raise TimeoutError(f"not made in {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def make_config(family: str) -> Any:
    try:
        config = CONFIG_MAPPING[family](num_hidden_layers=NUM_LAYERS)
        if config.get_text_config(decoder=True).num_hidden_layers == NUM_LAYERS:
            read_model(config.to_dict())
            return config
    except Exception:
        pass
    return CONFIG_MAPPING[family]()


def run(config: Any) -> list[Any]:
    """The layers of the cache after three tokens."""
    with warnings.catch_warnings(), torch.device("meta"), torch.no_grad():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval()
        cache = transformers.DynamicCache(config=config)
        output = model(input_ids=torch.zeros((1, NUM_TOKENS), dtype=torch.long), past_key_values=cache, use_cache=True)
    layers: list[Any] = output.past_key_values.layers
    return layers


def states_of(layer: Any, name: str) -> list[Any]:
    return [state for state in getattr(layer, name, {}).values() if state is not None]


def left_in_cache(layers: list[Any]) -> Bytes:
    left: Bytes = Counter()
    for layer in layers:
        keys = getattr(layer, "keys", None)
        if keys is not None and keys.numel() > 0:
            # A window's cache keeps one token fewer than the window, so that fewer may be there than were given.
            num_items = sum([part.shape[1] * part.shape[3] for part in (keys, layer.values) if part is not None])
            left["attention", getattr(layer, "sliding_window", None), num_items * BYTES] += 1
        states = states_of(layer, "recurrent_states")
        inputs = states_of(layer, "conv_states")
        if states or inputs:
            left["conv", None, sum([one.numel() // one.shape[-1] * (one.shape[-1] - 1) for one in inputs])] += 1
            left["state", None, sum([one.numel() for one in states])] += 1
    return left


def placed(config: dict[str, Any]) -> Bytes:
    """The same by the table; states in items. An indexer's keys are in no cache of transformers' that is read here."""
    found: Bytes = Counter()
    for layer in read_model(config, "bf16").layers:
        sizes = {buffer.role: buffer.size for buffer in layer.buffers if buffer.role != "index_key"}
        if isinstance(layer, AttentionLayerConfig):
            found["attention", layer.window_size, sum(sizes.values())] += 1
        elif isinstance(layer, SsmLayerConfig):
            found["conv", None, sizes.get("conv_0", 0) // BYTES] += 1
            found["state", None, sizes.get("recurrent_0", 0) // 4] += 1
    return found


@pytest.mark.parametrize("family", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_a_family_takes_the_bytes_that_it_leaves_in_its_cache(family: str, limit: None) -> None:
    try:
        config = make_config(family)
        found = placed(config.to_dict())
    except ModelConfigError as error:
        pytest.skip(f"refused: {error}")
    except Exception as error:
        pytest.skip(f"its configuration has no defaults: {error!r:.200}")
    try:
        left = left_in_cache(run(config))
    except Exception as error:
        assert family not in KNOWN_TO_COMPUTE, repr(error)
        pytest.skip(f"it cannot compute without memory: {error!r:.200}")
    if not left:
        pytest.skip("it keeps no cache")
    assert found == left
