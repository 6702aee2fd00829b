"""A model as one GPU's cache sees it: its layers, and their bytes per token and per sequence.

`read_model` takes a Hugging Face `config.json`: a file, a folder that has one, or its content. With pipeline parallelism the layers are
divided evenly, earlier stages have one more, and the description is of one stage: the one asked for, or the one with the most bytes.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, SupportsIndex, final


from ..base.checks import to_int, to_text
from ..base.given import Given
from ..base.value import Value
from ..config.cache_tier_config import CacheTierConfig
from ..config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from ..config.manager_config import MAX_TOKENS_PER_BLOCK, KVCacheManagerConfig
from .declared_dtype import find_declared_dtype
from .families import add_layers, select_fields
from .layer_maker import DTYPES, LayerMaker
from .model_fields import ModelConfigError, shown
from .not_json import describe_no_json

CONFIG_NAME: Final = "config.json"
AUTO: Final = "auto"
_MAX_RANKS: Final = 1 << 20


@final
class ModelDescription(Value):
    """The layers of one pipeline stage, as `KVCacheManagerConfig` takes them, with blocks of one token."""

    __slots__ = ("family", "layers", "stage", "num_stages", "dtype", "notes")

    def __init__(
        self, family: str, layers: Sequence[LayerConfig], stage: int = 0, num_stages: int = 1, dtype: str = "bf16",
        notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.family: Final = family
        self.layers: Final[tuple[LayerConfig, ...]] = tuple(layers)
        self.stage: Final = stage
        self.num_stages: Final = num_stages
        self.dtype: Final = dtype
        self.notes: Final[tuple[str, ...]] = tuple(notes)
        """What was taken for granted: a declared data type, a family that is not known."""

    def layer_configs(self, tokens_per_block: int) -> list[LayerConfig]:
        """The layers with blocks of so many tokens."""
        return [_with_block(layer, tokens_per_block) for layer in self.layers]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token that every layer keeps."""
        return sum([_num_bytes(layer) for layer in self.layers if isinstance(layer, AttentionLayerConfig)])

    @property
    def bytes_per_state(self) -> int:
        """Bytes of the recurrent states of one sequence."""
        return sum([_num_bytes(layer) for layer in self.layers if isinstance(layer, SsmLayerConfig)])


def read_model(
    source: Given[str | os.PathLike[str] | Mapping[str, Any]], dtype: Given[str] = AUTO, tensor_parallel: SupportsIndex = 1,
    pipeline_parallel: SupportsIndex = 1, pipeline_stage: SupportsIndex | None = None, family: Given[str | None] = None,
    num_sink_tokens: SupportsIndex = 0,
) -> ModelDescription:  # fmt: skip
    """Describe a model. `ModelConfigError`, a `ValueError`, names what cannot be placed: family, layer and field."""
    dtype = to_text(dtype, "dtype")
    if dtype not in DTYPES and dtype != AUTO:
        raise ModelConfigError(f"dtype is {shown(dtype)}; known are {AUTO}, {', '.join(DTYPES)}")
    ranks = _to_ranks(tensor_parallel, "tensor_parallel", 1)
    num_stages = _to_ranks(pipeline_parallel, "pipeline_parallel", 1)
    stage: int | None = None
    if pipeline_stage is not None:
        stage = _to_ranks(pipeline_stage, "pipeline_stage", 0)
        if stage >= num_stages:
            raise ModelConfigError(f"pipeline_stage is {stage}; with pipeline_parallel {num_stages} it is under that, from 0 on")
    num_sinks = _to_ranks(num_sink_tokens, "num_sink_tokens", 0)
    values = _read_source(source)
    fields, notes = select_fields(values, None if family is None else to_text(family, "family"))
    if dtype == AUTO:
        declared = find_declared_dtype(values, _folder_of(source))
        dtype = "bf16"
        if declared is not None:
            dtype, place = declared
            notes.append(f"keys and values are {dtype}, as the checkpoint declares ({place}); --dtype bf16 is for engines that are told so")
    maker = LayerMaker(fields, dtype, ranks, num_sinks)
    num_layers = add_layers(fields, maker)
    if len(maker.layers) == 0:
        raise fields.fail(f"none of its {num_layers} layers stores anything")
    maker.layers.sort(key=_layer_id)
    if num_stages > num_layers:
        raise fields.fail(f"pipeline_parallel is {num_stages}, and it has {num_layers} layers")
    stages = _divide(fields.family, maker.layers, num_layers, num_stages, dtype, notes)
    chosen = stages[stage] if stage is not None else max(stages, key=_weight)
    if len(chosen.layers) == 0:
        raise fields.fail(f"no layer of pipeline stage {chosen.stage} of {num_stages} stores anything")
    return chosen


def config_from_model(
    source: Given[str | os.PathLike[str] | Mapping[str, Any]], cache_tiers: Given[Sequence[CacheTierConfig]],
    tokens_per_block: SupportsIndex = 32, dtype: Given[str] = AUTO, tensor_parallel: SupportsIndex = 1,
    pipeline_parallel: SupportsIndex = 1,
    pipeline_stage: SupportsIndex | None = None, family: Given[str | None] = None, num_sink_tokens: SupportsIndex = 0, **options: Any,
) -> KVCacheManagerConfig:  # fmt: skip
    """The manager's configuration for a model, on one of its GPUs, from its Hugging Face `config.json`.

    ``source`` is the file, a folder that has it, or its content. ``dtype`` is "bf16", "fp16", "fp8", "nvfp4", "fp32", or "auto": what the
    checkpoint declares, in `hf_quant_config.json` beside it too, else "bf16". ``pipeline_stage`` None is the stage with the most bytes;
    ``family`` reads it as another `model_type`; windowed layers keep ``num_sink_tokens``, too.
    ``options`` are those of `KVCacheManagerConfig`. Layer ids are the model's own. A `ValueError` names what cannot be placed.
    """
    try:
        values = _read_source(source)
    except ModelConfigError as error:
        raise ModelConfigError(f"source {shown(source)}: {error}") from None
    if "model_type" not in values and family is None:
        raise ModelConfigError(f"source has no model_type, so it is no model's {CONFIG_NAME}: {shown(values)}; add it, or give family")
    model = read_model(source, dtype, tensor_parallel, pipeline_parallel, pipeline_stage, family, num_sink_tokens)
    num_tokens = to_int(tokens_per_block, "tokens_per_block")
    if not 1 <= num_tokens <= MAX_TOKENS_PER_BLOCK:
        raise ModelConfigError(f"tokens_per_block is {num_tokens}; it is from 1 to {MAX_TOKENS_PER_BLOCK}")
    tiers: Any = cache_tiers
    return KVCacheManagerConfig(num_tokens, tiers, model.layer_configs(num_tokens), **options)


def read_json_object(path: str) -> dict[str, Any]:
    """The JSON object of a file, or of a folder's `config.json`. `ModelConfigError` says what is there instead."""
    if os.path.isdir(path):
        inner = os.path.join(path, CONFIG_NAME)
        if not os.path.isfile(inner):
            names = sorted([name for name in os.listdir(path) if name.endswith(".json")])
            has = f"it has {', '.join(names[:5])}" if len(names) > 0 else "it has no JSON file"
            raise ModelConfigError(f"{path}: a folder without a {CONFIG_NAME} ({has}); name the file, or the folder of a model")
        path = inner
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise ModelConfigError(f"{path}: {reason}; a model's {CONFIG_NAME}, or a folder that has one, was expected") from None
    if len(data) > _MAX_BYTES:
        raise ModelConfigError(f"{path}: over {_MAX_BYTES} bytes; a model's {CONFIG_NAME} was expected, not its weights")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path}: {describe_no_json(data, error)}; a model's {CONFIG_NAME} was expected") from None
    if not isinstance(values, dict):
        raise ModelConfigError(f"{path}: a JSON {type(values).__name__}; an object with model_type and the model's sizes was expected")
    return values


_MAX_BYTES: Final = 1 << 24


def _read_source(source: object) -> dict[str, Any]:
    if isinstance(source, Mapping):
        return dict(source)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source must be a path, or the content of a {CONFIG_NAME} as a dict, not {type(source).__name__}")
    path: Any = source
    return read_json_object(os.fspath(path))


def _folder_of(source: object) -> str | None:
    """Of a file or folder; None for content."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    any_path: Any = source
    path = str(os.fspath(any_path))
    return path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))


def _to_ranks(value: object, name: str, least: int) -> int:
    count = to_int(value, name)
    if not least <= count <= _MAX_RANKS:
        raise ModelConfigError(f"{name} is {count}; it is from {least} to {_MAX_RANKS}")
    return count


def _divide(
    family: str, layers: list[LayerConfig], num_layers: int, num_stages: int, dtype: str, notes: list[str]
) -> list[ModelDescription]:  # fmt: skip
    stages: list[ModelDescription] = []
    begin = 0
    for stage in range(num_stages):
        end = begin + num_layers // num_stages + (1 if stage < num_layers % num_stages else 0)
        part = [layer for layer in layers if begin <= layer.layer_id < end]
        stages.append(ModelDescription(family, part, stage, num_stages, dtype, notes))
        begin = end
    return stages


def _weight(stage: ModelDescription) -> tuple[int, int]:
    return stage.bytes_per_token, stage.bytes_per_state


def _layer_id(layer: LayerConfig) -> int:
    return layer.layer_id


def _num_bytes(layer: LayerConfig) -> int:
    return sum([buffer.size for buffer in layer.buffers])


def _with_block(layer: LayerConfig, tokens_per_block: int) -> LayerConfig:
    if isinstance(layer, SsmLayerConfig):
        return layer
    buffers = [BufferConfig(buffer.role, buffer.size * tokens_per_block) for buffer in layer.buffers]
    return AttentionLayerConfig(layer.layer_id, buffers, layer.sliding_window_size, layer.num_sink_tokens, layer.part)
