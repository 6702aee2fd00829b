"""The options that name a model: a preset, or a Hugging Face `config.json` with how it is divided between GPUs and stored."""

import argparse
import os
from typing import Final

from .. import KVCacheManagerConfig
from ..models.config_file import YAML_ENDINGS, config_from_content, is_config_content, read_content
from ..models.layer_maker import DTYPES
from ..models.model_description import AUTO, ModelDescription, read_model
from ..models.model_fields import ModelConfigError
from .bad_input import BadInputError
from .option_values import to_count, to_positive
from .presets import DEFAULT_MODEL, PRESETS
from .served_model import ConfiguredModel, ServedModel

MODEL_HELP: Final = (
    f"a preset ({', '.join(PRESETS)}), a Hugging Face config.json or a folder that has one, or a configuration of this library as JSON or "
    f"YAML (default: {DEFAULT_MODEL})"
)

EQUAL_SLOTS_HELP: Final = (
    "attention layers in groups of equal slots, at most a tenth unused, which share one pool group (default: as a configuration says; else "
    "layers with a window and those without have pool groups of their own)"
)

DEFAULT_TOKENS_PER_BLOCK: Final = 32


def add_model_options(group: "argparse._ActionsContainer") -> None:
    group.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    group.add_argument("--tp", type=to_positive, metavar="N", help="of a config.json: what one of N tensor-parallel ranks stores")
    group.add_argument(
        "--pp", type=to_positive, metavar="N", help="of a config.json: one of N pipeline stages, the one with the most bytes"
    )
    group.add_argument("--stage", type=to_count, metavar="K", help="with --pp: that stage, from 0 on")
    group.add_argument(
        "--dtype", choices=DTYPES,
        help="of a config.json: of keys and values; nvfp4 with its scales (default: what the checkpoint declares, else bf16)",
    )  # fmt: skip
    group.add_argument("--family", metavar="NAME", help="of a config.json: read it as another model_type, as in --family llama")
    group.add_argument(
        "--sinks", type=to_count, metavar="N", help="of a config.json: windowed layers keep the first N tokens, too (default: 0)"
    )


def find_model(options: argparse.Namespace, parser: argparse.ArgumentParser, name: str | None) -> ServedModel:
    """The model of that name or file. `BadInputError` for a file that is no model; usage errors leave through ``parser.error``."""
    given = [option for option in ("--tp", "--pp", "--stage", "--dtype", "--family", "--sinks") if getattr(options, option[2:]) is not None]
    if options.stage is not None and (options.pp is None or options.stage >= options.pp):
        parser.error(f"--stage {options.stage} is one of the stages that --pp divides the model into, from 0 on")
    if name is None or name in PRESETS:
        if len(given) > 0:
            parser.error(f"{given[0]} is about a config.json; {name or DEFAULT_MODEL} is a preset, of a whole model in 16 bits")
        return PRESETS[name or DEFAULT_MODEL]
    if not os.path.exists(name):
        parser.error(f"--model {name}: neither a file nor a preset; presets are {', '.join(PRESETS)}")
    config = _read_config(name)
    if config is not None:
        if len(given) > 0:
            parser.error(f"{given[0]} is about a config.json; {name} is a configuration of this library, whose layers are exact")
        return ConfiguredModel(os.path.basename(name), config.layers, config.tokens_per_block, config)
    try:
        model = read_model(name, options.dtype or AUTO, options.tp or 1, options.pp or 1, options.stage, options.family, options.sinks or 0)
    except ModelConfigError as error:
        text = str(error)
        raise BadInputError(text if text.startswith(name) else f"{name}: {text}") from None
    return ConfiguredModel(_title(name, options, model), model.layers, notes=model.notes)


def config_of(model: ServedModel) -> KVCacheManagerConfig | None:
    """The whole configuration of a file that has one."""
    return model.config if isinstance(model, ConfiguredModel) else None


def tokens_per_block_of(options: argparse.Namespace, model: ServedModel) -> int:
    """What ``--tokens-per-block`` says, or the configuration, or `DEFAULT_TOKENS_PER_BLOCK`."""
    given: int | None = options.tokens_per_block
    config = config_of(model)
    if given is not None:
        return given
    return DEFAULT_TOKENS_PER_BLOCK if config is None else config.tokens_per_block


def _read_config(name: str) -> KVCacheManagerConfig | None:
    """The configuration in that file; None for a folder, or another file of JSON, which may be a config.json."""
    if os.path.isdir(name):
        return None
    try:
        content = read_content(name)
        if not is_config_content(content) and not name.endswith(YAML_ENDINGS):
            return None
        return config_from_content(content)
    except (ModelConfigError, TypeError, ValueError) as error:
        text = str(error).removeprefix(f"path {name}: ")
        raise BadInputError(f"{name}: {text}") from None
    except ImportError as missing:
        raise BadInputError(f"{name}: {missing}") from None


def _title(path: str, options: argparse.Namespace, model: ModelDescription) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    if name == "config.json":
        name = os.path.basename(folder)
    parts = [name.removesuffix(".json"), model.dtype]
    if options.tp is not None:
        parts.append(f"1 of {options.tp} ranks")
    if options.pp is not None:
        parts.append(f"stage {model.stage} of {options.pp}")
    return ", ".join(parts)
