"""The calls that every engine makes of its cache manager, in the words of none: what a peer of the comparison implements."""

from abc import ABC, abstractmethod
from typing import Any

TOKENS_PER_BLOCK = 16


class Peer(ABC):
    """One manager in one process. A sequence is whatever `begin` returns; tokens are in the form that `prepare` gave them.

    Each call does what this library's engine would do there, through its public classes; nothing of theirs is copied here.
    """

    name: str
    windowed = True
    """Whether it can serve a model with a second layer group of a sliding window here."""

    @abstractmethod
    def version(self) -> str: ...

    def prepare(self, tokens: list[int]) -> Any:
        """The prompt in the form in which the engine keeps it. Not timed."""
        return tokens

    @abstractmethod
    def open(self, num_blocks: int, window: int | None = None) -> None:
        """An empty cache of that many blocks; with a window, of a model with a second kind of layers that has this window."""

    @abstractmethod
    def begin(self, prompt: Any) -> Any:
        """Match the prompt, and hold what was found."""

    @abstractmethod
    def num_reused(self, sequence: Any) -> int: ...

    @abstractmethod
    def prefill(self, sequence: Any) -> None:
        """Room for the whole prompt in one step; from then on its full blocks can be reused."""

    @abstractmethod
    def step(self, sequences: list[Any], tokens: list[int]) -> None:
        """One decode step of the batch: room for one more token each, which is known at its end."""

    @abstractmethod
    def end(self, sequence: Any) -> None:
        """The sequence is done; what it computed stays cached."""

    @abstractmethod
    def probe(self, prompt: Any) -> int:
        """How many leading tokens are cached; holds nothing."""

    @abstractmethod
    def close(self) -> None: ...
