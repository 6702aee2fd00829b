"""transformers' continuous batching on a `PagedCachePool`: the cache that `model.generate_batch` gets in `PagedCachePool.batching`.

transformers makes its `PagedAttentionCache` by that name, in the module of its manager. While a pool is entered for batching, the name
is a function which makes a `BatchedCache` for the pool's model, and transformers' own for others. Each request is a sequence of the
pool's manager: opened with what matches of its prompt, grown as its tokens are scheduled, committed after each pass.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from transformers.generation.continuous_batching import PagedAttentionCache, continuous_api
from transformers.generation.continuous_batching.cache import group_layers_by_attn_type

from ..base.errors import LogicError, OutOfPagesError
from ..manager.kv_cache import KVCache
from .transformers_layers import first_token_read

if TYPE_CHECKING:
    from .transformers import PagedCachePool

_MAX_BATCH_TOKENS: Final = 512
"""Of a pass, where the configuration names none; transformers' mask has a row for each of them."""
_BATCHINGS: Final[dict[int, "Batching"]] = {}
"""By the identity of the text model's configuration, which is what transformers' cache is made with."""


def _make_cache(**given: Any) -> Any:
    batching = _BATCHINGS.get(id(given["config"]))
    return PagedAttentionCache(**given) if batching is None else batching.make_cache(given["config"], given["continuous_batching_config"])


class Batching:
    """A pool that is entered for continuous batching; leaving it closes the sequences of all requests."""

    def __init__(self, pool: "PagedCachePool", config: Any) -> None:
        self._pool: Final = pool
        self._config: Final = config
        self._caches: list[BatchedCache] = []

    def __enter__(self) -> None:
        if id(self._config) in _BATCHINGS:
            raise LogicError("a pool of this model is entered for batching already")
        _BATCHINGS[id(self._config)] = self
        continuous_api.PagedAttentionCache = _make_cache

    def __exit__(self, *_exception: object) -> None:
        del _BATCHINGS[id(self._config)]
        if not _BATCHINGS:
            continuous_api.PagedAttentionCache = PagedAttentionCache
        for cache in self._caches:
            cache.close()

    def make_cache(self, config: Any, options: Any) -> "BatchedCache":
        cache = BatchedCache(self._pool, config, options)
        self._caches.append(cache)
        return cache


class _AttentionKind:
    """All layers of one kind of attention: where the tokens of a request lie is the same in each of them."""

    block_table: Final[dict[str, list[int]]] = {}
    write_trash_index = read_trash_index = 0
    supports_block_table = False

    def __init__(self, index: int, layer_type: str, pool: "PagedCachePool", layers: Sequence[int]) -> None:
        self.index: Final = index
        self.layer_type: Final = layer_type
        self.window: Final = pool.layers[layers[0]].window
        self.pages: Final = {layer: (pool.pages(layer, "key"), pool.pages(layer, "value")) for layer in layers}
        places = {(page.layer_group_id, page.rows_per_slot) for pages in self.pages.values() for page in pages}
        if len(places) != 1:
            raise ValueError(f"keys and values of {layer_type} layers have different sizes, which a batch cannot have: {sorted(layers)}")

    def get_seqlen_k(self, past_length: int, query_length: int) -> int:
        return past_length + query_length - first_token_read(past_length, self.window)

    def needs_new_blocks(self, *_request: object) -> int:
        """Some: the requests of which transformers asks are those that did not fit."""
        return 1

    def find_rows(self, kv_cache: KVCache, begin: int, end: int) -> list[int]:
        rows: list[int] = next(iter(self.pages.values()))[0].token_rows(kv_cache, np.arange(begin, end)).tolist()
        return rows


class BatchedCache(PagedAttentionCache):
    """transformers' `PagedAttentionCache`, of which nothing but the calls is left."""

    use_prefix_sharing = allow_block_sharing = True
    read_cache_limit: int | None = None
    max_blocks_per_request = max_decode_fast_path_length = 0
    bytes_per_sector = 1  # of transformers' swap space, which has none

    def __init__(self, pool: "PagedCachePool", config: Any, options: Any) -> None:
        if options.use_async_batching or any(options.cuda_graph_booleans) or options.varlen_compile_config is not None:
            raise ValueError("a pool needs use_async_batching=False, use_cuda_graph=False and no compilation in ContinuousBatchingConfig")
        if options.cpu_offload_space != 0:
            raise ValueError("cpu_offload_space must be 0 with a pool: give the pool lower_tiers")
        self.config, self.dtype, self.device = config, pool.layers[0].dtype, None
        self._pool: Final = pool
        self._sequences: dict[str, KVCache] = {}
        self._is_closed = False
        self._has_freed = False
        self.cache_allocators = {}
        self._kinds: Final[dict[int, _AttentionKind]] = {}
        for index, (layer_type, layers) in enumerate(group_layers_by_attn_type(config).items()):
            kind = _AttentionKind(index, layer_type, pool, layers)
            self.cache_allocators[layer_type] = kind
            self._kinds.update(dict.fromkeys(layers, kind))
        self.pool = self  # of sectors, which a manager has no use for
        self.max_batch_tokens = options.max_batch_tokens or _MAX_BATCH_TOKENS
        self.max_tokens_read = pool.tokens_per_block * max(group.num_slots for group in pool.manager.pool_group_descs)
        self.num_blocks = -(-self.max_tokens_read // options.page_size)

    def close(self) -> None:
        """Also of transformers' references to the pool's memory, which may outlive this."""
        self._is_closed = True
        self.free_all_requests()
        for kind in self._kinds.values():
            kind.pages.clear()

    # -- requests ------------------------------------------------------------------------------------------------------

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        """Opens the request's sequence with what matches of its prompt, but for the last token."""
        return self._open(request_id, prompt_ids).num_committed_tokens

    def can_store_request_tokens(self, state: Any, request_len: int, dry_run: bool = False) -> bool:
        """Room for so many tokens more, if there is; other caches of the pool are suspended for it."""
        if dry_run:
            return bool(request_len <= self.max_tokens_read)
        kv_cache = self._sequences.get(state.request_id) or self._open(state.request_id, [])
        while not (self._pool.resume(kv_cache) and kv_cache.resize(state.current_len() + request_len)):
            try:
                self._pool.suspend_another(None)
            except OutOfPagesError:
                self._has_freed = False
                return False
        return True

    def mark_complete_blocks(self, state: Any, complete_blocks: dict[str, int]) -> None:
        """Commits what the last pass has computed of a request; the token that it answered with is not among that."""
        kv_cache = self._sequences.get(state.request_id)
        if kv_cache is not None:
            tokens = (state.initial_tokens + state.generated_tokens)[kv_cache.num_committed_tokens : state.current_len()]
            kv_cache.commit(np.array(tokens, np.int32))

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        kv_cache = self._sequences.pop(request_id, None)
        if kv_cache is not None:
            kv_cache.close()
            self._has_freed = True

    def free_all_requests(self, clear_ledgers: bool = False) -> None:
        for request_id in list(self._sequences):
            self.free_blocks(request_id)

    def reset(self) -> None:
        self.free_all_requests()

    def prepare_fork_request(self, *_request: Any) -> list[str]:
        """None: further answers to a prompt are requests of their own, which find all of it."""
        return []

    def count_new_complete_blocks(self, *_request: Any) -> dict[str, int]:
        return {}

    def perform_cache_copy(self, *_copies: Any) -> None:
        """Nothing was forked."""

    def count_storable_requests(self, list_blocks_needed: list[dict[str, int]]) -> int:
        """None of those that did not fit, until another was taken out; then transformers tries them again."""
        return len(list_blocks_needed) if self._has_freed else 0

    def evict_cached_blocks(self) -> bool:
        """False: the manager evicts where a request needs it."""
        return False

    def try_to_free_sectors(self) -> None:
        """Nothing: there are none."""

    def compute_free_capacity(self, relative: bool = True) -> float:
        statistics = self._pool.manager.get_storage_statistics(0)
        return min(group.available / group.total for group in statistics)

    def _open(self, request_id: str, prompt: list[int]) -> KVCache:
        if self._is_closed:
            raise LogicError("the pool was left: enter pool.batching() around generate_batch, or around the manager's life")
        self.free_blocks(request_id)
        kv_cache = self._pool.open_request(np.array(prompt[:-1], np.int32), len(prompt))
        self._sequences[request_id] = kv_cache
        return kv_cache

    # -- passes --------------------------------------------------------------------------------------------------------

    def extend_read_and_write_indices(
        self, request_id: str, past_length: int, query_length: int, read_index: list[list[int]] | None, write_index: list[list[int]]
    ) -> None:
        kv_cache = self._sequences[request_id]
        for kind in self.cache_allocators.values():
            begin = first_token_read(past_length, kind.window)
            rows = kind.find_rows(kv_cache, begin, past_length + query_length)
            write_index[kind.index].extend(rows[past_length - begin :])
            if read_index is not None:
                read_index[kind.index].extend(rows)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_id: int | None = None, **given: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes a pass's tokens, ``[1, heads, tokens, dim]``; returns all that it reads, request by request."""
        layer = given["layer_idx"] if layer_id is None else layer_id  # by name up to transformers 5.23
        kind, kwargs = self._kinds[layer], given["kwargs"]
        kwargs["cu_seq_lens_k"] = kwargs["cu_seq_lens_k"][kind.layer_type].to(torch.int32)
        kwargs["max_length_k"] = kwargs["max_length_k"][kind.layer_type]
        read_index, write_index = kwargs["read_index"][kind.index], kwargs["write_index"][kind.index]
        read = []
        for pages, states in zip(kind.pages[layer], (key_states, value_states), strict=True):
            pages.tokens.index_copy_(0, write_index, states[0].transpose(0, 1))
            read.append(pages.tokens.index_select(0, read_index).transpose(0, 1)[None] if len(read_index) > 0 else states)
        return read[0], read[1]
