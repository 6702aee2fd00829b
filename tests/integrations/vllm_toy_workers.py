"""`ToyWorker`: one rank that keeps a tag for each token where vLLM's workers keep keys and values, and checks each tag that a step reads.

A token's tag is made of all tokens up to it, of images and embeddings among them, of the request's salt and adapter, and of the KV cache
group: what attention would read there depends on exactly that. What the next token is depends on the last tag alone, so an answer is the
same whatever the schedule.
"""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.model_executor.layers.mamba.checkpoint import compute_mamba_prefill_checkpoints
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from kv_cache_manager_v2.integrations.vllm_connector import TieredConnector

VOCABULARY = 97
MASK = (1 << 62) - 1
NO_TOKEN = -1
"""A draft that no drafter made: the scheduler pads with it."""


class WrongTagError(AssertionError):
    """A step read, or was told to do, something wrong."""


def mix(state: int, value: int) -> int:
    state = ((state ^ (value + 0x9E3779B9)) * 0x2545F4914F6CDD1D + 0x14057B7EF767814F) & MASK
    return state ^ (state >> 29)


def first_tag(salt: str | None, adapter: int) -> int:
    state = mix(17, adapter)
    for letter in (salt or "").encode():
        state = mix(state, letter)
    return state


def next_token(tag: int) -> int:
    return (tag >> 13) % VOCABULARY


def mix_token(tag: int, token: int, content: int | None) -> int:
    """``content``: of the image or embedding at the token's place, if there is one."""
    return mix(tag, token) if content is None else mix(mix(tag, token), content)


def image_contents(items: Iterable[tuple[int, int, str]]) -> dict[int, int]:
    """By position; an item is an offset, a length and an identifier."""
    return {offset + index: mix(int(name), index) for offset, length, name in items for index in range(length)}


def answer(prompt: list[int], first: int, count: int, stop: int | None, contents: dict[int, int] | None = None) -> list[int]:
    """What a request must get."""
    tag = first
    for position, token in enumerate(prompt):
        tag = mix_token(tag, token, (contents or {}).get(position))
    found: list[int] = []
    while len(found) < count:
        found.append(next_token(tag))
        if found[-1] == stop:
            break
        tag = mix(tag, found[-1])
    return found


@dataclass
class Held:
    """A request as the worker knows it."""

    name: str
    first: int
    table: list[list[int]]
    tokens: list[int]
    num_computed: int
    tags: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    """What comes next, as the drafter has it."""
    state_block: int | None = None
    """Where the recurrent state was left."""
    contents: dict[int, int] = field(default_factory=dict)
    """Of images and embeddings, by position."""

    def replace_tokens(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.tags.clear()

    def tags_of(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """Tags of the request's own tokens, which are kept, and of what follows."""
        tags = self.tags
        for position in range(len(tags), len(self.tokens)):
            tags.append(mix_token(tags[-1] if tags else self.first, self.tokens[position], self.contents.get(position)))
        found = tags[: len(tokens)]
        for position in range(len(found), len(tokens)):
            found.append(mix(found[-1] if found else self.first, tokens[position]))
        return np.array(found, dtype=np.int64)


class ToyWorker:
    """``accepts``: of a hundred drafts, how many are what the model says.
    """

    def __init__(self, engine: Any, rank: int, where: str, accepts: int = 60) -> None:
        self.rank = rank
        groups = engine.cache_config.kv_cache_groups
        self.specs = [group.kv_cache_spec for group in groups]
        self.size = engine.shape.block_size
        self.num_drafts = engine.shape.num_drafts
        self.is_async = engine.shape.is_async
        self.max_ahead = self.num_drafts * (engine.config.max_concurrent_batches - 1)
        self.connector: Any = None
        self.has_peer = engine.shape.has_peer
        self.memory = np.full((engine.shape.num_blocks, self.size), -1, dtype=np.int64)
        if engine.shape.tiers:
            self.memory = self._connect(engine)
        self.writers = np.full((*self.memory.shape, 2), -1, dtype=np.int64)
        """Of each token's place the step and the request that wrote there last."""
        self.salts = [mix(99, number) for number in range(len(groups))]
        self.where = where
        self.accepts = accepts
        self.step = 0
        self.held: dict[str, Held] = {}
        self.last_names: list[str] = []
        """Requests of the last executed step."""
        self.delivered: list[bytes] = []
        """Steps that the worker has got and not executed, pickled as they came."""
        self.results: list[dict[str, list[int]]] = []
        """Of the executed steps what each request sampled, oldest first."""
        self.reports: list[Any] = []
        """Of the connector, for each of these steps."""
        self.num_checked = 0
        self.num_loaded = 0
        """Blocks that came from a tier below, or requests that another engine has computed."""
        self.awaited: dict[str, Any] = {}
        """Loads that requests wait for, which come when they like."""

    def _connect(self, engine: Any) -> np.ndarray[Any, Any]:
        """The real connector's half for workers, over an allocation as vLLM's; the tags are in one of the layers, another for each rank."""
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(rank=self.rank, world_size=engine.shape.num_workers),
            scheduler_config=engine.config.scheduler_config, kv_transfer_config=engine.config.kv_transfer_config,
        )  # fmt: skip
        self.connector = TieredConnector(config, KVConnectorRole.WORKER, engine.cache_config)
        tensor = engine.cache_config.kv_cache_tensors[0]
        allocation = torch.full((tensor.size,), -1, dtype=torch.int8)
        self.connector.register_kv_caches({tensor.layers[0]: allocation})
        layers = allocation.numpy().view(np.int64).reshape(-1, engine.shape.num_blocks, self.size)
        return layers[self.rank % len(layers)]

    def fail(self, name: str, what: str) -> None:
        raise WrongTagError(f"{self.where}, step {self.step}, rank {self.rank}, request {name}: {what}")

    # -- a step ------------------------------------------------------------------------------------------------------------

    def deliver(self, output: Any) -> None:
        self.delivered.append(pickle.dumps(output))

    def execute(self) -> None:
        """Execute the oldest step that was delivered."""
        output = pickle.loads(self.delivered.pop(0))
        self.step += 1
        self._update(output)
        if self.connector is not None:
            self.connector.handle_preemptions(output.kv_connector_metadata)
            self.num_loaded += sum(to_level == 0 for _, _, to_level, _, _ in output.kv_connector_metadata.copies)
            self.reports.append(self.connector.build_connector_worker_meta())
        if self.has_peer:
            for load in output.kv_connector_metadata.loads:
                self.awaited[load[0]] = load
                if not load[1]:
                    self.load(load[0])
        for copy in output.kv_cache_block_copies or ():
            self.memory[copy.dst_block_id] = self.memory[copy.src_block_id]
        work = [self._begin(name, count, output) for name, count in output.num_scheduled_tokens.items()]
        self._read_states(work)
        writes: dict[int, str] = {}
        for held, end, tags in work:
            self._write(held, end, tags, writes)
        for held, end, tags in work:
            self._read(held, end, tags)
        self.results.append({held.name: self._sample(held, end, tags, output) for held, end, tags in work})
        self.last_names = [held.name for held, _, _ in work]

    def load(self, name: str) -> None:
        """Write what another engine has computed."""
        _, _, begin, end, ids, first, tokens = self.awaited.pop(name)
        tags = Held(name, first, [], tokens, 0).tags_of(tokens)[begin:end]
        self.num_loaded += 1
        for group, table in enumerate(ids):
            positions = np.arange(begin, end)
            blocks = np.array(table, dtype=np.int64)[positions // self.size]
            # Outside a window are none.
            has_block = blocks > 0
            places = blocks[has_block], positions[has_block] % self.size
            self.memory[places] = tags[has_block] ^ self.salts[group]
            self.writers[places] = (self.step, int(name.rpartition("-")[2]))

    def _update(self, output: Any) -> None:
        for name in output.finished_req_ids:
            self.held.pop(name, None)
        for new in output.scheduled_new_reqs:
            adapter = 0 if new.lora_request is None else new.lora_request.lora_int_id
            salt = (new.sampling_params.extra_args or {}).get("salt")
            embeds = [] if new.prompt_embeds is None else new.prompt_embeds[:, 0].tolist()
            tokens = list(new.prefill_token_ids or new.prompt_token_ids or [0] * len(embeds))
            held = Held(new.req_id, first_tag(salt, adapter), [list(ids) for ids in new.block_ids], tokens, new.num_computed_tokens)
            held.contents = dict(enumerate(map(int, embeds))) | image_contents(
                (item.mm_position.offset, item.mm_position.length, item.identifier) for item in new.mm_features
            )
            self.held[new.req_id] = held
            self._check_table(held)
        cached = output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            if name not in self.held:
                self.fail(name, "a step names it, and it was never begun here")
            held = self.held[name]
            ids = cached.new_block_ids[index]
            told = cached.num_computed_tokens[index]
            if name in cached.resumed_req_ids:
                held.table = [list(group) for group in ids]
                held.replace_tokens(list(cached.all_token_ids[name]))
                held.num_computed = told
                held.drafts = []
                held.state_block = None
                self._check_table(held)
            elif ids is not None:
                for known, new_ids in zip(held.table, ids, strict=True):
                    known.extend(new_ids)
                self._check_table(held)
            # The scheduler counts drafts of steps in flight as accepted.
            if not 0 <= told - held.num_computed <= self.max_ahead:
                self.fail(name, f"computed are {held.num_computed} tokens, the scheduler says {told}")

    def _check_table(self, held: Held) -> None:
        for group, ids in enumerate(held.table):
            last = len(self.memory)
            used = [block for block in ids if block != 0]
            if any(not 0 < block < last for block in used):
                self.fail(held.name, f"group {group} has blocks {ids}, of {last}")
            # A block that has left a window may come back, and the old place in the table keeps its id.
            if isinstance(self.specs[group], FullAttentionSpec) and len(set(used)) != len(used):
                self.fail(held.name, f"group {group} has a block twice: {ids}")

    def _begin(self, name: str, count: int, output: Any) -> tuple[Held, int, np.ndarray[Any, Any]]:
        """The request, where its step ends, and the tags up to there."""
        held = self.held[name]
        drafts = list(output.scheduled_spec_decode_tokens.get(name, ()))
        if drafts and self.is_async:
            drafts = (held.drafts + [NO_TOKEN] * len(drafts))[: len(drafts)]
        begin, end = held.num_computed, held.num_computed + count
        if end - len(drafts) > len(held.tokens):
            self.fail(name, f"{count} tokens from {begin} with {len(drafts)} drafts, but it has {len(held.tokens)}")
        return held, end, held.tags_of(held.tokens[: end - len(drafts)] + drafts)

    def _places(self, held: Held, group: int, begin: int, end: int, does: str) -> tuple[Any, Any]:
        """Blocks, and where in them."""
        table = held.table[group]
        if len(table) * self.size < end:
            self.fail(held.name, f"group {group} has {len(table)} blocks, tokens up to {end} are {does}")
        positions = np.arange(begin, end)
        blocks = np.array(table, dtype=np.int64)[positions // self.size]
        if not blocks.all():
            position = int(positions[int(np.argmin(blocks))])
            self.fail(held.name, f"group {group}, position {position}: the null block is {does}")
        return blocks, positions % self.size

    def _write(self, held: Held, end: int, tags: np.ndarray[Any, Any], writes: dict[int, str]) -> None:
        for group, spec in enumerate(self.specs):
            if isinstance(spec, MambaSpec):
                position = (end - 1) // self.size
                places = self._places(held, group, position * self.size, (position + 1) * self.size, "written")
                values = np.full(self.size, int(tags[end - 1]) ^ self.salts[group])
                held.state_block = position
                self._export_state(held, group, end, tags)
            else:
                places = self._places(held, group, held.num_computed, end, "written")
                values = tags[held.num_computed : end] ^ self.salts[group]
            for block in set(places[0].tolist()):
                other = writes.setdefault(block, f"{held.name} in group {group}")
                if other != f"{held.name} in group {group}":
                    self.fail(held.name, f"group {group} writes block {block} in the step in which {other} writes it")
            self.memory[places] = values
            self.writers[places] = (self.step, int(held.name.rpartition("-")[2]))

    def _export_state(self, held: Held, group: int, end: int, tags: np.ndarray[Any, Any]) -> None:
        """Some kernels also leave the state at a chunk's last block boundary, where the table has a block for it."""
        size = self.size
        offsets, columns = compute_mamba_prefill_checkpoints(
            [end], [end - held.num_computed], size, size, self.specs[group].prefill_checkpoint_alignment, False, size
        )
        block = held.table[group][columns[0]] if offsets[0] else 0
        if block:
            self.memory[block] = int(tags[held.num_computed + offsets[0] - 1]) ^ self.salts[group]
            self.writers[block] = (self.step, int(held.name.rpartition("-")[2]))

    def _read_states(self, work: list[tuple[Held, int, np.ndarray[Any, Any]]]) -> None:
        """A step's recurrent states begin from what earlier steps left; within a step nothing is ordered."""
        for held, _, tags in work:
            begin = held.num_computed
            if begin == 0:
                continue
            for group, spec in enumerate(self.specs):
                if isinstance(spec, MambaSpec):
                    block = (begin - 1) // self.size if held.state_block is None else held.state_block
                    places = self._places(held, group, block * self.size, block * self.size + 1, "read")
                    self._compare(held, group, places, tags[begin - 1 : begin], begin - 1)

    def _read(self, held: Held, end: int, tags: np.ndarray[Any, Any]) -> None:
        for group, spec in enumerate(self.specs):
            if isinstance(spec, MambaSpec):
                continue
            # The first token of the step reads back furthest.
            begin = max(0, held.num_computed - spec.sliding_window + 1) if isinstance(spec, SlidingWindowSpec) else 0
            self._compare(held, group, self._places(held, group, begin, end, "read"), tags[begin:end], begin)

    def _compare(self, held: Held, group: int, places: Any, tags: Any, begin: int) -> None:
        found = self.memory[places]
        expected = tags ^ self.salts[group]
        self.num_checked += len(tags)
        if not np.array_equal(found, expected):
            index = int(np.argmax(found != expected))
            step, request = self.writers[places[0][index], places[1][index]]
            wrote = "nothing has been written there" if step < 0 else f"request {request} wrote that in step {step}"
            block = int(places[0][index])
            self.fail(held.name, f"group {group}, position {begin + index}, block {block} has another token's keys: {wrote}")

    def _sample(self, held: Held, end: int, tags: np.ndarray[Any, Any], output: Any) -> list[int]:
        num_drafts = len(output.scheduled_spec_decode_tokens.get(held.name, ()))
        known = end - num_drafts
        if known < len(held.tokens):
            held.num_computed = end
            return []
        sampled = [next_token(int(tags[known - 1]))]
        drafts = (held.drafts if self.is_async else list(output.scheduled_spec_decode_tokens.get(held.name, ())))[:num_drafts]
        for index, draft in enumerate(drafts):
            if draft != sampled[-1]:
                break
            sampled.append(next_token(int(tags[known + index])))
        held.num_computed = known + len(sampled) - 1
        held.tokens.extend(sampled)
        if self.num_drafts:
            self._draft(held)
        return sampled

    def _draft(self, held: Held) -> None:
        """Guess what follows: all of it, some, or none; for the same tokens the same guess on all ranks."""
        tag = int(held.tags_of(held.tokens)[-1])
        chance = mix(tag, 5)
        count = self.num_drafts if self.is_async else 1 + chance % self.num_drafts
        held.drafts = []
        for index in range(count):
            guess = next_token(tag) if mix(chance, index) % 100 < self.accepts else VOCABULARY
            held.drafts.append(guess)
            tag = mix(tag, guess)

    def take_drafts(self) -> tuple[list[str], list[list[int]]]:
        """What the scheduler gets where it knows the drafts before it schedules."""
        names = [name for name in self.last_names if name in self.held]
        return names, [list(self.held[name].drafts) for name in names]
