"""vLLM's KVCacheManager, as its scheduler calls it; block hashes by its default algorithm, made with the request as its engine does."""

import os
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
import vllm
from peer import TOKENS_PER_BLOCK, Peer
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

MAX_LENGTH = 1 << 18


class VLLM(Peer):
    name = "vLLM"

    def __init__(self) -> None:
        function = get_hash_fn_by_name("sha256")
        init_none_hash(function)
        self.hasher = get_request_block_hasher(TOKENS_PER_BLOCK, function)
        self.sampling = SamplingParams(max_tokens=MAX_LENGTH)
        self.count = 0

    def version(self) -> str:
        return f"{vllm.__version__}, with torch {torch.__version__}"

    def open(self, num_blocks: int, window: int | None = None) -> None:
        shape: dict[str, Any] = {"block_size": TOKENS_PER_BLOCK, "num_kv_heads": 1, "head_size": 32, "dtype": torch.bfloat16}
        groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(**shape))]
        if window is not None:
            groups.append(KVCacheGroupSpec(["window"], SlidingWindowSpec(sliding_window=window, **shape)))
        # One more: a block of its pool stands for "no block".
        config = KVCacheConfig(num_blocks=num_blocks * len(groups) + 1, kv_cache_tensors=[], kv_cache_groups=groups)
        self.manager = KVCacheManager(
            config, max_model_len=MAX_LENGTH, scheduler_block_size=TOKENS_PER_BLOCK, hash_block_size=TOKENS_PER_BLOCK, log_stats=True
        )

    def begin(self, prompt: Any) -> Any:
        self.count += 1
        request = Request(str(self.count), prompt, self.sampling, None, block_hasher=self.hasher)
        blocks, num_reused, _ = self.manager.get_computed_blocks(request)
        return [request, blocks, num_reused]

    def num_reused(self, sequence: Any) -> int:
        return int(sequence[2])

    def prefill(self, sequence: Any) -> None:
        request, blocks, num_reused = sequence
        if self.manager.allocate_slots(request, request.num_tokens - num_reused, num_reused, blocks) is None:
            raise MemoryError("no blocks")
        request.num_computed_tokens = request.num_tokens

    def step(self, sequences: list[Any], tokens: list[int]) -> None:
        self.manager.new_step_starts()
        for (request, _, _), token in zip(sequences, tokens, strict=True):
            request.append_output_token_ids(token)
            if self.manager.allocate_slots(request, 1) is None:
                raise MemoryError("no blocks")
            request.num_computed_tokens += 1

    def end(self, sequence: Any) -> None:
        self.manager.free(sequence[0])

    def probe(self, prompt: Any) -> int:
        return self.num_reused(self.begin(prompt))

    def close(self) -> None:
        del self.manager
