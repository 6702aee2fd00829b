"""When the recurrent state of a sequence is copied into the tree, so that later sequences can begin there."""

from dataclasses import dataclass
from typing import Final

from mypy_extensions import mypyc_attr

from .config_value import ConfigValue, take_optional_int, validate_bool


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class SnapshotPolicy(ConfigValue):
    """At which lengths a sequence leaves a snapshot; positions given to `create_kv_cache` come on top.

    - ``every_num_blocks``: at each multiple of that many blocks, generated tokens included; None: no such grid.
    - ``at_prompt_end``: at the length of the ``input_tokens`` that the sequence was created with.
    - ``at_close``: at the end of the committed tokens, when an active sequence is closed: its own slot becomes the snapshot. For
      chats, whose next turn begins there.
    - ``at_branches``: at the last block boundary before its text leaves a text that the tree knows.
    - ``max_per_path``: on the way from the root to a new snapshot no more than these are kept; None: no limit. What has to go
      lies neither first nor last: the one whose neighbours are nearest to each other, of several the one nearest to the root.
    """

    every_num_blocks: int | None = None
    at_prompt_end: bool = True
    at_branches: bool = True
    max_per_path: int | None = None
    at_close: bool = False

    def __post_init__(self) -> None:
        take_optional_int(self, "every_num_blocks", "SnapshotPolicy.every_num_blocks", 1)
        validate_bool(self, "at_prompt_end", "SnapshotPolicy.at_prompt_end")
        validate_bool(self, "at_branches", "SnapshotPolicy.at_branches")
        validate_bool(self, "at_close", "SnapshotPolicy.at_close")
        take_optional_int(self, "max_per_path", "SnapshotPolicy.max_per_path", MIN_PER_PATH)


MIN_PER_PATH: Final = 2
"""The first and the last snapshot of a path are never thinned out."""
