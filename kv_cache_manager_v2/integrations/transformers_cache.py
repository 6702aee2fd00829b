"""A transformers `Cache` whose keys, values and states are pages of a `PagedCachePool`; made by `PagedCachePool.open`.

A batch of rows, each a sequence of the manager. A forward pass of the pool's model is a step: before it every row gets room
(`begin_step`), in it each layer writes its tokens and reads what its attention needs, after it the tokens are committed (`end_step`).
The pool calls both from hooks on the model, which see the token ids.

    while recording past (assisted decoding)    tokens are committed by `crop`, as until then some may be taken back
    a pass that raised                          is forgotten: nothing of it was committed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from transformers import Cache
from transformers.cache_utils import DummyLayer

from ..base.errors import LogicError
from ..manager.kv_cache import KVCache
from .transformers_layers import Mirror, PagedAttentionLayer, PagedHybridLayer, PagedStateLayer, first_token_read
from .transformers_model import NO_CACHE

if TYPE_CHECKING:
    from .transformers import PagedCachePool


class Row:
    """One sequence of the batch: its handle, all its tokens, committed or not, and how many of the first are padding."""

    __slots__ = ("kv_cache", "tokens", "padding")

    def __init__(self, kv_cache: KVCache, tokens: list[int], padding: int) -> None:
        self.kv_cache: Final = kv_cache
        self.tokens = tokens
        self.padding: Final = padding


class PagedCache(Cache):
    """What `model.generate(cache=...)` and a forward pass of the pool's model take.

    ``reused_tokens``: how many tokens of the prompts need no forward pass. A context manager: leaving it closes the sequences, whose
    blocks stay in the pool for later prompts. `LogicError` for a pass of another model, and once closed.
    """

    def __init__(self, pool: PagedCachePool, rows: list[Row], prompts: npt.NDArray[np.int64], num_tokens: int, switches: str) -> None:
        self.pool: Final = pool
        self._rows = rows
        self._prompts = prompts
        self.reused_tokens: Final = num_tokens
        self.switches: Final = switches
        """The model's adapters and settings when it was opened."""
        self.prompt_length: Final = prompts.shape[1] - min(row.padding for row in rows)
        self._publishes = True
        self.num_tokens = num_tokens
        """Of each row, whose keys and values are there; those of a step that is under way are not counted."""
        self._step_ids: npt.NDArray[np.int64] | None = None
        self._page_rows: dict[tuple[int, int, int], torch.Tensor] = {}
        """Where tokens of the step lie, from one on, by layer group, rows of a slot and that token; made once a step."""
        self._records_past = False
        self._is_closed = False
        layers: list[Any] = []
        for description in pool.layers:
            if description.kind == NO_CACHE:
                layers.append(DummyLayer())
            elif description.key_shape is None:
                layers.append(PagedStateLayer(description))
            elif description.states:
                layers.append(PagedHybridLayer(self, description))
            else:
                layers.append(PagedAttentionLayer(self, description))
        super().__init__(layers=layers)

    def __repr__(self) -> str:
        return f"<PagedCache of {len(self._rows)} rows, {self.num_tokens} tokens{', closed' if self._is_closed else ''}>"

    def __enter__(self) -> PagedCache:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def kv_caches(self) -> list[KVCache]:
        """The rows' sequences."""
        return [row.kv_cache for row in self._rows]

    @property
    def is_in_step(self) -> bool:
        return self._step_ids is not None

    def is_given_again(self, ids: torch.Tensor, positions: Any) -> bool:
        """A pass over all tokens from the first one on, those that are there included: assisted decoding begins so on any cache."""
        known = self.num_tokens
        if not self._records_past or known == 0 or ids.shape[-1] <= known or positions is None or bool(positions[..., 0].any()):
            return False
        tokens = torch.tensor([row.tokens for row in self._rows], device=ids.device)
        is_known: bool = ids.shape[0] == len(self._rows) and torch.equal(ids[:, :known], tokens)
        return is_known

    @property
    def num_tokens_in_step(self) -> int:
        """`num_tokens`, and those of the step."""
        return self.num_tokens + (0 if self._step_ids is None else self._step_ids.shape[1])

    def list_paddings(self, num_rows: int) -> list[int]:
        """Of each row of a pass, whose rows may be each row of the cache several times."""
        repeats = max(1, num_rows // len(self._rows))
        return [row.padding for row in self._rows for _repeat in range(repeats)]

    @property
    def batch_size(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Close the rows' sequences; what was computed stays in the pool until room is needed. Twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self.drop_mirrors()
        self.pool.forget(self)
        for row in self._rows:
            row.kv_cache.close()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def begin_step(self, input_ids: torch.Tensor) -> None:
        """Room for a pass over ``input_ids``, ``[batch, tokens]``, behind what is there. Nothing has changed if it raises."""
        self._require_open()
        ids = input_ids.detach().cpu().numpy().astype(np.int64)
        self.forget_step()
        self._require_prompts(ids)
        if ids.shape[0] != len(self._rows):
            # `generate` repeats the prompts for beams and for several answers, before it runs them.
            if self.num_tokens >= self._prompts.shape[1] or ids.shape[0] % len(self._rows) != 0:
                raise ValueError(f"the pass has {ids.shape[0]} rows, the cache {len(self._rows)}")
            self.batch_repeat_interleave(ids.shape[0] // len(self._rows))
        self.pool.reserve(self, self.num_tokens + ids.shape[1])
        self._step_ids = ids
        for layer in self.layers:
            if isinstance(layer, PagedStateLayer):
                layer.take_states(self._gather_states(layer), self.num_tokens > 0)

    def end_step(self, may_publish: bool) -> None:
        """The pass is over: its states go back to their slots, its tokens are final unless `crop` may take them back.

        ``may_publish``: else these tokens and all that follow are never reused.
        """
        ids = self._step_ids
        if ids is None:
            raise LogicError("no step has begun")
        for layer in self.layers:
            if isinstance(layer, PagedStateLayer):
                self._scatter_states(layer)
        for row, row_ids in zip(self._rows, ids, strict=True):
            row.tokens.extend(row_ids.tolist())
        self.num_tokens += ids.shape[1]
        self.forget_step()
        if not may_publish and self._publishes:
            self._publishes = False
            for row in self._rows:
                row.kv_cache.stop_committing()
        if not self._records_past:
            self._commit()

    def forget_step(self) -> None:
        """The pass raised, or is over: what a later one asks begins behind `num_tokens` again."""
        self._step_ids = None
        self._page_rows.clear()
        for layer in self.layers:
            if isinstance(layer, PagedAttentionLayer):
                layer.num_tokens_in_step = 0

    def _commit(self) -> None:
        for row in self._rows:
            if not self._publishes:
                row.kv_cache.resize(self.num_tokens, self.num_tokens)
                continue
            begin = row.kv_cache.num_committed_tokens
            if len(row.tokens) > begin:
                row.kv_cache.commit(np.array(row.tokens[begin:], np.int32))

    def _require_open(self) -> None:
        if self._is_closed:
            raise LogicError("this cache is closed; open another one from its pool")

    def _require_prompts(self, ids: npt.NDArray[np.int64]) -> None:
        """The pass goes on with the prompts that the cache was opened with: what was reused is theirs."""
        begin, end = self.num_tokens, min(self.num_tokens + ids.shape[1], self._prompts.shape[1])
        if begin >= end or ids.shape[0] % len(self._prompts) != 0:
            return
        prompts = np.repeat(self._prompts, ids.shape[0] // len(self._prompts), axis=0)
        differs = np.argwhere(ids[:, : end - begin] != prompts[:, begin:end])
        if len(differs) > 0:
            row, position = (int(number) for number in differs[0])
            raise ValueError(
                f"token {begin + position} of row {row} is {ids[row, position]}, but the cache was opened with "
                f"{prompts[row, begin + position]}: open a cache with the prompts that the model gets"
            )

    # -- pages ---------------------------------------------------------------------------------------------------------

    def write_and_read(self, layer: PagedAttentionLayer, keys: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        """The step's tokens of one layer into its pages; returns keys and values that the layer reads, ``[batch, heads, tokens, dim]``."""
        if self._step_ids is None:
            raise LogicError("this cache got keys outside of a forward pass of its pool's model: use it with that model only")
        pages = [self.pool.pages(layer.layer_id, role) for role in ("key", "value")]
        end = self.num_tokens + int(keys.shape[-2])
        for buffer, states in zip(pages, (keys, values), strict=True):
            if (states.dtype, states.device) != (buffer.tensor.dtype, buffer.tensor.device):
                raise ValueError(
                    f"layer {layer.layer_id} computes {states.dtype} on {states.device}, and the pool keeps {buffer.tensor.dtype} on "
                    f"{buffer.tensor.device}: make another pool, and no autocast of keys"
                )
            tokens, rows = self._find_tokens(buffer, self.num_tokens, end)
            tokens.index_copy_(0, rows.flatten(), states.transpose(1, 2).flatten(0, 1))
        begin = first_token_read(self.num_tokens, layer.window)
        if layer.mirror is not None and layer.mirror.has_room(begin, self.num_tokens, end):
            layer.mirror.add(self.num_tokens, (keys, values))
            return layer.mirror.read(begin)
        layer.mirror = None
        gathered = [self._gather(buffer, begin, end) for buffer in pages]
        if end - self.num_tokens == 1:
            layer.mirror = self._make_mirror(begin, end, gathered)
        return [tensor.contiguous() for tensor in gathered] if layer.mirror is None else layer.mirror.read(begin)

    def _make_mirror(self, begin: int, end: int, gathered: Sequence[torch.Tensor]) -> Mirror | None:
        """None where the pool has no room for it. It is made anew when the answer has grown by a quarter."""
        capacity = (end - begin) * 5 // 4 + self.pool.tokens_per_block
        if not self.pool.reserve_mirror(self, sum(tensor.nbytes // tensor.shape[2] for tensor in gathered) * capacity):
            return None
        # A tensor made in inference mode could be written in that mode only.
        with torch.inference_mode(False):
            tensors = [tensor.new_empty((*tensor.shape[:2], capacity, tensor.shape[3])) for tensor in gathered]
        for tensor, states in zip(tensors, gathered, strict=True):
            tensor.narrow(2, 0, end - begin).copy_(states)
        return Mirror(begin, end, tensors)

    @property
    def mirror_bytes(self) -> int:
        """Of the copies from which this cache's layers read."""
        return sum(layer.mirror.num_bytes for layer in self._list_mirrored())

    def drop_mirrors(self) -> None:
        """From now on layers read pages, until a step makes new mirrors."""
        for layer in self._list_mirrored():
            layer.mirror = None

    def _list_mirrored(self) -> list[Any]:
        return [layer for layer in self.layers if getattr(layer, "mirror", None) is not None]

    def _gather(self, pages: Any, begin: int, end: int) -> torch.Tensor:
        tokens, rows = self._find_tokens(pages, begin, end)
        read: torch.Tensor = tokens.index_select(0, rows.flatten())
        return read.view(*rows.shape, *read.shape[1:]).transpose(1, 2)

    def _find_tokens(self, pages: Any, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's tensor with a row a token, and ``[batch, tokens]``, where in it the tokens from ``begin`` to ``end`` lie."""
        key = (pages.layer_group_id, pages.rows_per_slot, begin)
        rows = self._page_rows.get(key)
        if rows is not None:
            return pages.tokens, rows
        # With scratch slots a block lies elsewhere in each layer.
        has_scratch = any(row.kv_cache.get_scratch_desc(pages.layer_group_id) for row in self._rows)
        positions = np.arange(begin, end)
        found = [pages.token_rows(row.kv_cache, positions, has_scratch) for row in self._rows]
        rows = torch.from_numpy(np.stack(found)).to(pages.tensor.device)
        if has_scratch:
            return pages.tensor.view(-1, *pages.tensor.shape[2:]), rows
        self._page_rows[key] = rows
        return pages.tokens, rows

    def _gather_states(self, layer: PagedStateLayer) -> list[torch.Tensor]:
        gathered = []
        for state in layer.description.states:
            pages = self.pool.pages(int(layer.description.layer_id), state.role)
            batch = state.make_batch(len(self._rows), pages.tensor.device)
            if self.num_tokens > 0:
                batch.copy_(pages.tensor[self._state_rows(pages)])
            gathered.append(batch)
        return gathered

    def _scatter_states(self, layer: PagedStateLayer) -> None:
        for state, tensor in zip(layer.description.states, layer.list_states(), strict=True):
            pages = self.pool.pages(int(layer.description.layer_id), state.role)
            pages.tensor[self._state_rows(pages)] = tensor

    def _state_rows(self, pages: Any) -> torch.Tensor:
        rows = np.concatenate([pages.rows(row.kv_cache) for row in self._rows])
        return torch.from_numpy(rows.astype(np.int64)).to(pages.tensor.device)

    # -- what transformers asks of a cache -----------------------------------------------------------------------------

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last ``-tokens_to_remove`` tokens back (0: none) and commit the others. `ValueError` for a positive number, for
        tokens that are committed already, and for models with recurrent state, unless nothing is to be taken back."""
        self._require_open()
        count = -int(tokens_to_remove)
        if count < 0:
            raise ValueError(f"tokens_to_remove is {tokens_to_remove}; give a negative number, of the tokens to take back")
        if count > 0:
            if any(isinstance(layer, PagedStateLayer) for layer in self.layers):
                raise ValueError("a model with recurrent state cannot take tokens back: the state of earlier tokens is not kept")
            num_committed = max(row.kv_cache.num_committed_tokens for row in self._rows)
            if self.num_tokens - count < num_committed:
                raise ValueError(
                    f"{count} of {self.num_tokens} tokens cannot be taken back: {num_committed} are committed; call "
                    f"activate_past_recording() before the pass that computes them"
                )
            self.forget_step()
            self.pool.reserve(self, self.num_tokens - count)
            self.num_tokens -= count
            for row in self._rows:
                del row.tokens[self.num_tokens :]
        self._commit()

    def activate_past_recording(self) -> None:
        """From now on tokens may be taken back, until `crop` commits them."""
        self._records_past = True
        super().activate_past_recording()

    def reset(self) -> None:
        """Forget all tokens; the cache is as if it had been opened with empty prompts."""
        self._require_open()
        scopes = [row.kv_cache.reuse_scope for row in self._rows]
        self.drop_mirrors()
        self._replace_rows(self.pool.open_rows(scopes, np.zeros((len(scopes), 0), np.int64), 0, self.list_paddings(len(scopes))))
        self.num_tokens = 0
        self._prompts = self._prompts[:, :0]

    def reorder_cache(self, beams: torch.Tensor) -> None:
        """Row ``i`` becomes what row ``beams[i]`` was: for beam search."""
        self._select_rows(beams.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select_rows([number for number in range(len(self._rows)) for _repeat in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select_rows(torch.arange(len(self._rows))[indices.cpu()].tolist())

    def _select_rows(self, numbers: list[int]) -> None:
        """A row that is chosen several times is forked; one that is not chosen is closed."""
        self._require_open()
        if numbers == list(range(len(self._rows))):
            return
        self.pool.activate(self)
        chosen: list[Row] = []
        used: set[int] = set()
        try:
            for number in numbers:
                row = self._rows[number]
                chosen.append(Row(self.pool.fork(self, row.kv_cache), list(row.tokens), row.padding) if number in used else row)
                used.add(number)
        except BaseException:
            for row in chosen:
                if row not in self._rows:
                    row.kv_cache.close()
            raise
        if len(chosen) > len(self._rows):
            self.drop_mirrors()
        for layer in self._list_mirrored():
            layer.mirror.select(torch.tensor(numbers))
        self._replace_rows(chosen)
        self._prompts = self._prompts[[number % len(self._prompts) for number in numbers]] if len(self._prompts) > 0 else self._prompts

    def _replace_rows(self, rows: list[Row]) -> None:
        kept = {id(row) for row in rows}
        old, self._rows = self._rows, rows
        self.forget_step()
        for row in old:
            if id(row) not in kept:
                row.kv_cache.close()
