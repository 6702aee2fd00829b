"""Descriptions of an engine's step, for planning: the sequences that run together, and their lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from .config_value import ConfigValue, take_int, to_objects


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheDesc(ConfigValue):
    """One sequence of a step: ``history_length`` tokens are in the cache, slots are needed for ``capacity`` tokens."""

    capacity: int
    history_length: int

    def __post_init__(self) -> None:
        take_int(self, "capacity", "KVCacheDesc.capacity", 0)
        take_int(self, "history_length", "KVCacheDesc.history_length", 0)
        if self.history_length > self.capacity:
            raise ValueError(f"KVCacheDesc.history_length is {self.history_length}, more than its capacity {self.capacity}")


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class BatchDesc(ConfigValue):
    """The sequences of a step. All begin with the same ``system_prompt_length`` tokens, which are stored once."""

    kv_caches: Sequence[KVCacheDesc]
    system_prompt_length: int = 0

    def __post_init__(self) -> None:
        kv_caches = to_objects(self.kv_caches, KVCacheDesc, "BatchDesc.kv_caches")
        take_int(self, "system_prompt_length", "BatchDesc.system_prompt_length", 0)
        if not kv_caches:
            raise ValueError("BatchDesc.kv_caches is empty; a batch has at least one sequence")
        max_capacity = max([item.capacity for item in kv_caches])
        if self.system_prompt_length > max_capacity:
            raise ValueError(
                f"BatchDesc.system_prompt_length is {self.system_prompt_length}, more than the largest capacity"
                f" {max_capacity} in the batch; the system prompt is a part of its sequences"
            )
        object.__setattr__(self, "kv_caches", kv_caches)
