"""SGLang's default prefix cache and its paged allocator, on CPU tensors, with the calls that its scheduler makes for a request."""

import os
import sys
from array import array
from typing import Any

os.environ.setdefault("SGLANG_LOG_LEVEL", "error")

from peer import TOKENS_PER_BLOCK, Peer
from stand_in import stand_in_for
from transformers.utils import is_torchvision_available

if not is_torchvision_available():  # transformers remembers the answer, and never meets the stand-in
    stand_in_for("torchvision")

import sglang
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

MAX_RUNNING = 64
MAX_LENGTH = 1 << 16


class Request:
    """What the scheduler keeps of a request for the cache."""

    __slots__ = ("length", "lock", "num_reused", "prompt", "row", "tokens")

    def __init__(self, prompt: Any) -> None:
        self.prompt = prompt
        self.tokens = array("q", prompt)


class SGLang(Peer):
    name = "SGLang"
    windowed = False

    def version(self) -> str:
        return f"{sglang.__version__}, {type(self.tree.tree_core).__name__}, with torch {torch.__version__}"

    def prepare(self, tokens: list[int]) -> Any:
        return array("q", tokens)

    def open(self, num_blocks: int, window: int | None = None) -> None:
        assert window is None
        self.rows = ReqToTokenPool(MAX_RUNNING, MAX_LENGTH, "cpu", False)
        self.free_rows = list(range(1, MAX_RUNNING + 1))
        self.pool = PagedTokenToKVPoolAllocator(num_blocks * TOKENS_PER_BLOCK, TOKENS_PER_BLOCK, torch.float16, "cpu", None, False)
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.pool, page_size=TOKENS_PER_BLOCK,
                tree_components=(ComponentType.FULL,),
            )  # fmt: skip
        )

    def begin(self, prompt: Any) -> Any:
        request = Request(prompt)
        found = self.tree.match_prefix(MatchPrefixParams(key=RadixKey(request.tokens, limit=len(prompt) - 1)))
        request.num_reused = found.device_prefix_len
        request.lock = self.tree.lock(found.last_device_node)
        request.row = self.free_rows.pop()
        if request.num_reused:
            places = self.tree.path_device_indices(found.last_device_node)
            self.rows.write((request.row, slice(0, request.num_reused)), places.to(torch.int32))
        return request

    def num_reused(self, sequence: Any) -> int:
        return int(sequence.num_reused)

    def evict_for(self, num_tokens: int) -> None:
        missing = num_tokens - self.pool.available_size()
        if missing > 0:
            self.tree.evict(EvictParams(num_tokens=missing))

    def prefill(self, sequence: Any) -> None:
        length = len(sequence.tokens)
        count = length - sequence.num_reused
        # What is reused ends with a page, so whole pages follow it. `alloc_extend`, for all cases, is a kernel of the GPU and slow without.
        whole_pages = -(-count // TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK
        self.evict_for(whole_pages)
        places = self.pool.alloc(whole_pages)
        if places is None:
            raise MemoryError("no pages")
        places = places[:count]
        self.rows.write((sequence.row, slice(sequence.num_reused, length)), places.to(torch.int32))
        sequence.length = length
        self.publish(sequence)

    def publish(self, sequence: Any) -> None:
        """Its full pages can be matched from now on; pages that were there already are taken over."""
        key = RadixKey(sequence.tokens, limit=sequence.length).page_aligned(TOKENS_PER_BLOCK)
        places = self.rows.req_to_token[sequence.row, : len(key)].to(torch.int64, copy=True)
        done = sequence.num_reused // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
        result = self.tree.insert(InsertParams(key=key, value=places, prev_prefix_len=done))
        shared = self.tree.path_device_indices(result.last_device_node)
        self.rows.write((sequence.row, slice(done, len(key))), shared[done:].to(torch.int32))
        self.tree.unlock(sequence.lock)
        sequence.lock = self.tree.lock(result.last_device_node)
        sequence.num_reused = len(key)

    def step(self, sequences: list[Any], tokens: list[int]) -> None:
        self.evict_for(len(sequences) * TOKENS_PER_BLOCK)
        lengths = torch.tensor([sequence.length + 1 for sequence in sequences])
        rows = torch.tensor([sequence.row for sequence in sequences])
        last = self.rows.req_to_token[rows, lengths - 2].to(torch.int64)
        places = self.pool.alloc_decode(lengths, lengths, last)
        if places is None:
            raise MemoryError("no pages")
        self.rows.write((rows, lengths - 1), places.to(torch.int32))
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.tokens.append(token)
            sequence.length += 1

    def end(self, sequence: Any) -> None:
        self.publish(sequence)
        if sequence.length > sequence.num_reused:  # the partial last page is not cached
            rest = self.rows.req_to_token[sequence.row, sequence.num_reused : sequence.length].to(torch.int64)
            self.pool.free_segment(rest, start_pos=sequence.num_reused)
        self.tree.unlock(sequence.lock)
        self.free_rows.append(sequence.row)

    def probe(self, prompt: Any) -> int:
        return int(self.tree.match_prefix(MatchPrefixParams(key=RadixKey(prompt, limit=len(prompt) - 1))).device_prefix_len)

    def close(self) -> None:
        held = self.pool.available_size() + self.tree.evictable_size()
        if held != self.pool.num_pages * TOKENS_PER_BLOCK:
            sys.exit(f"sglang_peer lost pages: {held} of {self.pool.num_pages * TOKENS_PER_BLOCK} tokens are left")
        del self.tree, self.pool, self.rows
