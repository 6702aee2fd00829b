"""Usage statistics of one sequence, of one iteration, or of all sequences so far: values, computed on request."""

from dataclasses import dataclass
from typing import Final

from ..base.checks import to_instance, to_text
from ..base.given import Given
from ..base.value import Value
from .drop_reason import DropReason
from .miss_cause import MissCause

_KINDS: Final = ("onboarded", "offloaded", "copied")


@dataclass(frozen=True)
class BlockStatistics(Value):
    """Blocks of one layer group. ``allocated == missed + generated + private copies``; private copies are made of blocks that were
    found in part, shared by a fork or beam, or published before they were full."""

    layer_group_id: int
    pool_group: int
    allocated: int
    """Pages allocated."""
    reused_full: int
    reused_partial: int
    """Found in part only, and copied before the sequence wrote into them."""
    missed: int
    """Pages allocated for prompt tokens."""
    generated: int
    """Pages allocated for generated tokens."""
    peak_pages: int
    """The most pages that one sequence had at one time."""
    reused_planned: int = 0
    """Found in full while another sequence of the same step was still to compute them (`KVCache.publish_planned`)."""

    @property
    def reused(self) -> int:
        """Found in full, in part, or planned."""
        return self.reused_full + self.reused_partial + self.reused_planned


@dataclass(frozen=True)
class TransferStatistics(Value):
    """Pages of one pool group that were copied from one level to another, or within one."""

    source_level: int
    target_level: int
    pool_group: int
    blocks: int
    bytes: int

    @property
    def kind(self) -> str:
        """``"onboarded"``, ``"offloaded"`` or ``"copied"``."""
        if self.source_level == self.target_level:
            return "copied"
        return "onboarded" if self.target_level < self.source_level else "offloaded"


@dataclass(frozen=True)
class DropStatistics(Value):
    """Pages of one pool group that were dropped from a level, for one reason."""

    level: int
    pool_group: int
    reason: DropReason
    blocks: int


@dataclass(frozen=True)
class PromptStatistics(Value):
    """Hits and misses of prompt tokens. ``tokens == sum(hit_tokens) + sum(missed_tokens.values())``, always."""

    tokens: int
    hit_tokens: tuple[int, ...]
    """By the cache level that they were found on; a block counts for the coldest of the pages that it needs."""
    missed_tokens: dict[MissCause, int]
    """By cause; only causes that occurred."""
    planned_tokens: int = 0
    """Hits on blocks that another sequence had planned and not committed. They count as hits on level 0."""

    @property
    def num_hit(self) -> int:
        """Hits on all levels."""
        return sum(self.hit_tokens)

    @property
    def num_missed(self) -> int:
        """Misses of all causes."""
        return self.tokens - self.num_hit

    @property
    def hit_rate(self) -> float:
        """Hits per token, between 0 and 1; 0 without prompts."""
        return self.num_hit / self.tokens if self.tokens > 0 else 0.0


@dataclass(frozen=True)
class UsageStatistics(Value):
    """Lists hold only what occurred. In a sequence's statistics, pages that its calls copied or evicted count as its own."""

    requests: int
    """Sequences that were given room for tokens. Of a sequence 1; 0 of a fork, which continues its parent's request."""
    prompts: PromptStatistics
    layer_groups: tuple[BlockStatistics, ...]
    transfers: tuple[TransferStatistics, ...]
    drops: tuple[DropStatistics, ...]
    suspends: int
    resumes: int
    peak_slots: tuple[tuple[int, ...], ...]
    """The most slots in use by level and pool group; empty for a sequence."""

    @property
    def allocated(self) -> int:
        """Pages allocated, of all layer groups."""
        return sum([group.allocated for group in self.layer_groups])

    @property
    def reused(self) -> int:
        """Pages found in full, in part or planned, of all layer groups."""
        return sum([group.reused for group in self.layer_groups])

    @property
    def missed(self) -> int:
        """Pages allocated for prompt tokens, of all layer groups."""
        return sum([group.missed for group in self.layer_groups])

    @property
    def generated(self) -> int:
        """Pages allocated for generated tokens, of all layer groups."""
        return sum([group.generated for group in self.layer_groups])

    def count_transfers(self, kind: Given[str]) -> int:
        """Blocks that were ``"onboarded"``, ``"offloaded"`` or ``"copied"``; `ValueError` for another kind."""
        kind = to_text(kind, "kind")
        if kind not in _KINDS:
            raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(_KINDS)}")
        return sum([transfer.blocks for transfer in self.transfers if transfer.kind == kind])

    def count_drops(self, reason: Given[DropReason]) -> int:
        """Pages that were dropped for that reason, from any level."""
        reason = to_instance(reason, DropReason, "reason")
        return sum([drop.blocks for drop in self.drops if drop.reason is reason])
