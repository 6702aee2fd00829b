"""Scratch slots: shared by a step's input blocks that are out of the window right after the step."""

from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from .config_value import ConfigValue, take_int


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class SwaScratchReuseConfig(ConfigValue):
    """``max_rewind_len``: the most tokens of a step that speculative decoding rejects; their blocks get pages of their own."""

    max_rewind_len: int = 0

    def __post_init__(self) -> None:
        take_int(self, "max_rewind_len", "SwaScratchReuseConfig.max_rewind_len", 0)
