"""Whether windowed layers keep the inputs of a step that are stale right after it in shared scratch slots."""

from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from .config_value import ConfigValue, take_int


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class SwaScratchReuseConfig(ConfigValue):
    """``max_rewind_len``: how many tokens of a step speculative decoding may give back; those must survive the step."""

    max_rewind_len: int = 0

    def __post_init__(self) -> None:
        take_int(self, "max_rewind_len", "SwaScratchReuseConfig.max_rewind_len", 0)
