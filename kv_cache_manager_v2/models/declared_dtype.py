"""The data type of keys and values that a checkpoint declares, as engines take it by default: in its `config.json`, or in the
`hf_quant_config.json` beside it."""

import json
import os
from typing import Any, Final

from .model_fields import ModelConfigError, shown

_QUANT_NAME: Final = "hf_quant_config.json"
_ALGORITHMS: Final = {"FP8": "fp8", "INT8": "fp8", "NVFP4": "nvfp4", "FP8_E4M3": "fp8", "FP8_E5M2": "fp8"}
"""By their names, as sizes: keys of 8 bits take as much, whatever their kind."""


def find_declared_dtype(values: dict[str, Any], folder: str | None) -> tuple[str, str] | None:
    """The data type, and the field that says so; None where none is declared. ``folder``: of the checkpoint, if there is one."""
    for place, quantization in _places(values, folder):
        scheme = quantization.get("kv_cache_scheme")
        if isinstance(scheme, dict):
            bits = scheme.get("num_bits")
            if bits not in (4, 8, 16):
                raise ModelConfigError(f"{place}.kv_cache_scheme: num_bits is {shown(bits)}; known are 4, 8 and 16. Give --dtype (dtype=)")
            return {4: "nvfp4", 8: "fp8", 16: "bf16"}[bits], f"{place}.kv_cache_scheme"
        algorithm = quantization.get("kv_cache_quant_algo")
        if isinstance(algorithm, str) and algorithm.upper() not in ("NONE", "AUTO", ""):
            if algorithm.upper() not in _ALGORITHMS:
                names = ", ".join(_ALGORITHMS)
                raise ModelConfigError(f"{place}.kv_cache_quant_algo is {shown(algorithm)}; known are {names}. Give --dtype (dtype=)")
            return _ALGORITHMS[algorithm.upper()], f"{place}.kv_cache_quant_algo"
    return None


def _places(values: dict[str, Any], folder: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Where it may be declared: in the model's own configuration, that of its language model, or the file beside."""
    found: list[tuple[str, dict[str, Any]]] = []
    for outer in [values, *[inner for inner in values.values() if isinstance(inner, dict)]]:
        quantization = outer.get("quantization_config")
        if isinstance(quantization, dict):
            found.append(("quantization_config", quantization))
            if isinstance(quantization.get("quantization"), dict):
                found.append(("quantization_config.quantization", quantization["quantization"]))
    path = None if folder is None else os.path.join(folder, _QUANT_NAME)
    if path is not None and os.path.isfile(path):
        try:
            with open(path, "rb") as file:
                beside = json.loads(file.read())
        except (OSError, ValueError, RecursionError) as error:
            raise ModelConfigError(f"{path}: cannot be read ({error}); give --dtype (dtype=)") from None
        inner = beside.get("quantization") if isinstance(beside, dict) else None
        if isinstance(inner, dict):
            found.append((f"{_QUANT_NAME}: quantization", inner))
    return found
