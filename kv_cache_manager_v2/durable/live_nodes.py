"""The index asks which nodes are in use, of the part that numbers them."""

from abc import ABCMeta, abstractmethod

from librt.vecs import vec
from mypy_extensions import i64


class LiveNodes(metaclass=ABCMeta):
    """The numbers of the blocks in the tree."""

    __slots__ = ()

    @abstractmethod
    def copy_numbers(self) -> vec[i64]:
        """The numbers of all blocks in the tree that have one, roots included; numbers below 1 mean nothing. From any thread, without
        waiting: a number that was given before the call is there unless its block has left the tree."""
