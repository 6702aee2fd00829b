"""When a sequence's recurrent state is copied into the tree, so that later sequences can start from it."""

from dataclasses import dataclass
from typing import Final

from mypy_extensions import mypyc_attr

from .config_value import ConfigValue, take_choice, take_optional_int, validate_bool


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class SnapshotPolicy(ConfigValue):
    """The lengths at which a sequence leaves a snapshot, beside the positions given to `create_kv_cache`.

    - ``every_num_blocks``: at each multiple of that many blocks, generated tokens included; None: no such grid.
    - ``at_prompt_end``: at the length of the ``input_tokens`` that the sequence was created with.
    - ``at_close``: at the end of the committed tokens, when an active sequence is closed: its own slot becomes the snapshot. For
      chats, whose next turn begins there.
    - ``at_commits``: at the end of each commit that begins in the prompt, and of one with ``is_end``, if all room is committed then:
      in a free slot, or in place of the sequence's previous one of this kind. Nothing is evicted for it. For engines that stop
      nowhere, whose next turn of a chat begins there.
    - ``at_branches``: at the last block boundary before its tokens leave a published path of the tree.
    - ``max_per_path``: the most snapshots on the path from the root to a new snapshot; None: no limit. The first and the last are
      kept; of the others the one with the nearest neighbours is dropped, of several the one nearest to the root.
    - ``placement``: "fixed": as the fields above say. "learned": where ``at_prompt_end`` and ``at_branches`` would leave one, only if it
      is expected to save more tokens for each request that it takes a slot than others that the slots suffice for; also at depths
      where prompts of the scope were seen to part, and at the last block boundary of the prompt instead of its end. As "fixed"
      for the first 8 prompts of a scope. The other fields hold as they are.
    """

    every_num_blocks: int | None = None
    at_prompt_end: bool = True
    at_branches: bool = True
    max_per_path: int | None = None
    at_close: bool = False
    at_commits: bool = True
    placement: str = "fixed"

    def __post_init__(self) -> None:
        take_optional_int(self, "every_num_blocks", "SnapshotPolicy.every_num_blocks", 1)
        for field in ("at_prompt_end", "at_branches", "at_close", "at_commits"):
            validate_bool(self, field, f"SnapshotPolicy.{field}")
        take_choice(self, "placement", "SnapshotPolicy.placement", PLACEMENTS)
        take_optional_int(self, "max_per_path", "SnapshotPolicy.max_per_path", MIN_PER_PATH)


PLACEMENTS: Final = ("fixed", "learned")
"""The values of `SnapshotPolicy.placement`."""

MIN_PER_PATH: Final = 2
"""The first and the last snapshot of a path are never dropped."""
