"""What a `config.json` says of a model's layers is what the model itself leaves in transformers' cache, for all six families.

One is read without a model (`config_from_model`), the other asks a loaded one (`describe`). They differ in one thing: transformers keeps
all K inputs of a convolution, serving engines the last K - 1.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from integrations.small_models import MAKERS, make_model  # noqa: E402

from kv_cache_manager_v2 import BufferConfig, GpuCacheTierConfig, LayerConfig, SsmLayerConfig, config_from_model  # noqa: E402
from kv_cache_manager_v2.integrations.transformers import describe  # noqa: E402

KERNEL = 4
TIERS = [GpuCacheTierConfig(1 << 24)]


def by_id_and_kind(layer: Any) -> tuple[int, str]:
    return layer.layer_id, type(layer).__name__


def without_oldest_input(layer: LayerConfig) -> LayerConfig:
    if not isinstance(layer, SsmLayerConfig):
        return layer
    sizes = {buffer.role: buffer.size for buffer in layer.buffers}
    assert sizes["conv_0"] % KERNEL == 0
    sizes["conv_0"] = sizes["conv_0"] // KERNEL * (KERNEL - 1)
    return SsmLayerConfig(layer.layer_id, [BufferConfig(role, size) for role, size in sizes.items()])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("family", MAKERS)
def test_a_model_and_its_config_file_describe_the_same_layers(family: str, dtype: str) -> None:
    model = make_model(family, torch.bfloat16 if dtype == "bf16" else torch.float32)
    asked = describe(model, TIERS, 16).layers
    read = config_from_model(model.config.to_dict(), TIERS, 16, dtype).layers
    assert sorted(map(without_oldest_input, asked), key=by_id_and_kind) == sorted(read, key=by_id_and_kind)
