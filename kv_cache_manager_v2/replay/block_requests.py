"""A workload as lists of block ids: all that a comparison of eviction policies needs.

A block is a run of tokens with its whole prefix; equal blocks have equal ids, from 0 on in the order of first appearance. A block of a
trace is one of its hash ids, of as many tokens as the log says (the last one may be cut); a block of a log without hash ids, and of a
generated workload, is ``block_tokens`` tokens of the prompt.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias, final


from .tokens import make_tokens
from .trace import TraceWorkload
from .workload import Request, Workload

BlockIds: TypeAlias = list[int]
_ROOT: Final = -1


@final
class BlockRequests:
    """``requests[i]``: the blocks of the i-th prompt; ``num_generated[i]``: the tokens that were generated for it.
    ``num_whole[i]``: how many of its blocks are not cut; ``recorded_hints[i]``: whether it continues, by its stop reason.
    ``parents[b]``: the block before block ``b``, or -1."""

    __slots__ = ("name", "requests", "parents", "num_accesses", "num_generated", "num_whole", "recorded_hints", "block_tokens")

    def __init__(
        self, name: str, requests: list[BlockIds], parents: list[int], num_generated: list[int] | None = None,
        num_whole: list[int] | None = None, recorded_hints: list[bool | None] | None = None,
        block_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Where nothing is given: nothing was generated, all blocks are whole, and no hint was recorded."""
        self.name: Final = name
        self.requests: Final = requests
        self.parents: Final = parents
        self.num_accesses: Final[int] = sum([len(blocks) for blocks in requests])
        self.num_generated: Final[list[int]] = [0] * len(requests) if num_generated is None else num_generated
        self.num_whole: Final[list[int]] = [len(blocks) for blocks in requests] if num_whole is None else num_whole
        self.recorded_hints: Final[list[bool | None]] = [None] * len(requests) if recorded_hints is None else recorded_hints
        self.block_tokens: Final = block_tokens
        """Of a whole block; 0: not known."""

    @property
    def num_blocks(self) -> int:
        """The number of different blocks: the working set."""
        return len(self.parents)


def divide_blocks(blocks: BlockRequests, block_tokens: int) -> BlockRequests:
    """The same requests in smaller blocks, of whose tokens theirs are a multiple; the last of a request counts as whole."""
    parts = blocks.block_tokens // block_tokens
    parents: list[int] = []
    for parent in blocks.parents:
        parents.append(_ROOT if parent == _ROOT else parent * parts + parts - 1)
        parents.extend([len(parents) - 1 + part for part in range(parts - 1)])
    requests = [[block * parts + part for block in request for part in range(parts)] for request in blocks.requests]
    return BlockRequests(blocks.name, requests, parents, blocks.num_generated, block_tokens=block_tokens)


def read_blocks(workload: Workload, block_tokens: int, requests_in_order: Iterable[Request] | None = None) -> BlockRequests:
    """Read a workload as blocks. ``block_tokens``: where a block is no hash id of a trace, whose own size is used. ``requests_in_order``:
    those of the workload in another order than its own."""
    ids: dict[tuple[int, int | bytes], int] = {}
    parents: list[int] = []
    requests: list[BlockIds] = []
    num_generated: list[int] = []
    num_whole: list[int] = []
    recorded_hints: list[bool | None] = []
    has_block_ids = False
    block_size = block_tokens
    if isinstance(workload, TraceWorkload) and workload.has_block_ids:
        has_block_ids = True
        block_size = workload.tokens_per_hash_id
    single: list[tuple[int, int]] = []
    """Requests of one hash id, and its length: whether it is cut is known once another request of the log has shown its block."""
    for request in workload.requests() if requests_in_order is None else requests_in_order:
        parent = _ROOT
        blocks: BlockIds = []
        contents: list[int | bytes] = []
        if has_block_ids:
            contents.extend(request.segment_codes.tolist())
            lengths = request.segment_lengths
            if len(contents) == 1:
                single.append((len(num_whole), int(lengths[0])))
                num_whole.append(0)
            else:
                block_size = int(lengths[0])
                num_whole.append(len(contents) - (int(lengths[-1]) < block_size))
        else:
            num_whole.append(request.num_prompt_tokens // block_tokens)
            tokens = make_tokens(request.segment_codes, request.segment_lengths)
            for begin in range(0, len(tokens), block_tokens):
                contents.append(tokens[begin : begin + block_tokens].tobytes())
        for content in contents:
            block = ids.setdefault((parent, content), len(parents))
            if block == len(parents):
                parents.append(parent)
            blocks.append(block)
            parent = block
        requests.append(blocks)
        num_generated.append(request.num_output_tokens)
        recorded_hints.append(request.continues)
    for position, length in single:
        num_whole[position] = int(length >= block_size)
    return BlockRequests(workload.name, requests, parents, num_generated, num_whole, recorded_hints, block_size)
