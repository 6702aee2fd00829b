"""What may come from outside, as functions of bytes: each input is served or refused by a named error.

A target draws what it needs from the bytes, so that a fuzzer which sees which lines run (`run_fuzz.py`, atheris) and plain random
bytes (`test_targets.py`) drive the same code. `seeds` are inputs that already come far. Anything but a named error is a finding.
"""

import json
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from every_call import EveryCall, config_of_every_kind
from small_models import config_of, manager_of, run_prompt

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheEvent,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    KVCacheManagerError,
    LayerId,
    SsmLayerConfig,
)
from kv_cache_manager_v2.base.errors import CorruptedError
from kv_cache_manager_v2.config.config_codec import decode_config, encode_config
from kv_cache_manager_v2.testing.journal_reader import JournalError
from kv_cache_manager_v2.testing import read_batch
from kv_cache_manager_v2.replay.rerun import RerunMismatch, rerun
from kv_cache_manager_v2.replay.bad_input import BadInputError
from kv_cache_manager_v2.replay.logs.hash_readers import IdTable, request_of_record
from kv_cache_manager_v2.replay.logs.recognise import parse_line, require_record
from kv_cache_manager_v2.replay.trace import TraceWorkload

REFUSALS: Final = (ValueError, TypeError, KVCacheManagerError, RerunMismatch, JournalError)
MAX_QUOTA: Final = 1 << 22
"""Configurations that ask for more are only decoded: reserving a terabyte takes too long."""
MAX_ROUNDS: Final = 8
LONG_JOURNAL_BYTES: Final = 600


def refuses(error: BaseException) -> bool:
    """Whether an input may end so. A broken manager never is an answer."""
    return isinstance(error, REFUSALS) and not isinstance(error, CorruptedError)


class Draw:
    """Values from bytes; when they are used up, zeros."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def byte(self) -> int:
        self.position += 1
        return self.data[self.position - 1] if self.position <= len(self.data) else 0

    def below(self, end: int) -> int:
        return self.byte() % end

    def integer(self) -> int:
        """Small ones mostly, and those at the edges of C types."""
        kind = self.below(8)
        if kind < 5:
            return self.byte()
        if kind == 5:
            return -self.byte()
        edges = (2**15, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)
        return edges[self.below(len(edges))] * (-1 if kind == 7 else 1)

    def rest(self) -> bytes:
        rest = self.data[self.position :]
        self.position = len(self.data)
        return rest

    @property
    def is_used_up(self) -> bool:
        return self.position >= len(self.data)

    def anything(self, depth: int = 0) -> Any:
        kind = self.below(15 if depth < 2 else 8)
        if kind < 3:
            return self.integer()
        if kind < 8:
            return [None, True, 0.5, float("nan"), "text"][kind - 3]
        if kind == 8:
            return bytes([self.byte() for _ in range(self.below(40))])
        if kind == 9:
            return [self.anything(depth + 1) for _ in range(self.below(9))]
        if kind == 10:
            return {str(self.byte()): self.anything(depth + 1) for _ in range(self.below(3))}
        if kind == 11:
            dtypes = (np.int8, np.int32, np.int64, np.uint32, np.uint64, np.float32, np.float64, np.bool_, np.complex64)
            array: Any = np.array([self.byte() for _ in range(self.below(12))]).astype(dtypes[self.below(len(dtypes))])
            return (array, array[::2], array.reshape(1, -1), array[::-1])[self.below(4)]
        if kind == 12:
            view = memoryview(bytearray(self.byte() for _ in range(8 * self.below(6))))
            return view.cast("BbhHiIlLqQfd"[self.below(12)])
        return [object(), iter([1, 2]), range(3), {1, 2}][self.below(4)] if kind == 13 else (self.integer(), self.integer())


def fuzz_configuration(data: bytes) -> None:
    """As text, as an engine's own file would have it; or field by field. What is accepted survives being encoded."""
    draw = Draw(data)
    if draw.below(2) == 0:
        config = decode_config(draw.rest())
    else:
        buffers = [BufferConfig(draw.anything(), draw.anything(), draw.anything()) for _ in range(draw.below(3))]
        layers: list[Any] = []
        for _ in range(draw.below(4)):
            layer_id = LayerId(draw.integer())
            if draw.below(4) == 0:
                layers.append(SsmLayerConfig(layer_id, buffers))
            else:
                layers.append(AttentionLayerConfig(layer_id, buffers, draw.anything(), draw.anything()))
        tiers: list[Any] = [GpuCacheTierConfig(draw.anything()), HostCacheTierConfig(draw.anything())][: draw.below(3)]
        config = KVCacheManagerConfig(draw.anything(), tiers, layers, max_util_for_resume=draw.anything())
    assert decode_config(encode_config(config)) == config
    if len(config.layers) < 9 and sum([tier.quota for tier in config.cache_tiers]) <= MAX_QUOTA:
        with KVCacheManager(config, device=HostDevice()) as manager, manager.create_kv_cache(None, [1, 2, 3]) as kv_cache:
            if kv_cache.resume():
                kv_cache.resize(5)
            manager.check_invariants()


def fuzz_trace(data: bytes) -> None:
    """A file, of which each line is a request or is said to be none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_bytes(data)
        trace = TraceWorkload(str(path), limit=50, block_tokens=16)
        try:
            scan = trace.scan()
        except BadInputError:
            return
        assert len(scan.bad_lines) <= scan.MAX_KEPT
        for request in trace.requests():
            assert request.num_prompt_tokens > 0
    request_of_record(require_record(parse_line(1, data)), 0, 16, IdTable(False))


def fuzz_tokens(data: bytes) -> None:
    """Refused tokens leave everything as it was; accepted ones are found again."""
    draw = Draw(data)
    with manager_of([None, 8]) as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        assert kv_cache.resize(80)
        for _ in range(MAX_ROUNDS):
            if draw.is_used_up:
                break
            tokens = draw.anything()
            before = (manager.state_digest(), kv_cache.num_committed_tokens, kv_cache.history_length)
            try:
                kv_cache.commit(tokens)
            except REFUSALS as error:
                now = (manager.state_digest(), kv_cache.num_committed_tokens, kv_cache.history_length)
                assert refuses(error) and now == before
            try:
                manager.probe_reuse(None, tokens)
                kv_cache.commit_tree(tokens, draw.anything(), draw.anything())
            except REFUSALS as error:
                assert refuses(error)
        manager.check_invariants()


def fuzz_index_buffer(data: bytes) -> None:
    """What is taken is written exactly as far as it goes."""
    draw = Draw(data)
    with manager_of([None, 8]) as manager, run_prompt(manager, list(range(9))) as kv_cache:
        for _ in range(MAX_ROUNDS):
            if draw.is_used_up:
                break
            taken: Any = None
            buffer = draw.anything()
            if draw.below(2) == 0:
                buffer = np.full(draw.below(9), 77, np.int32)[:: 1 + draw.below(2)]
            try:
                kv_cache.set_base_page_index_buf(draw.below(3) // 2, draw.integer(), buffer)
                taken = buffer
                kv_cache.resize(draw.integer(), None)
                kv_cache.set_base_page_index_buf(0, 0, None)
                kv_cache.set_base_page_index_buf(0, 1, None)
            except REFUSALS as error:
                assert refuses(error)
            if isinstance(taken, np.ndarray) and taken.dtype == np.int32:
                assert 77 not in taken.tolist()
        manager.check_invariants()
        kv_cache.set_base_page_index_buf(0, 0, None)
        kv_cache.set_base_page_index_buf(0, 1, None)


def fuzz_arguments(data: bytes) -> None:
    """Calls with anything for their arguments."""
    draw = Draw(data)
    with manager_of([None, 8]) as manager, run_prompt(manager, [1, 2, 3]) as kv_cache:
        for _ in range(MAX_ROUNDS):
            if draw.is_used_up:
                break
            first, second, third = draw.anything(), draw.anything(), draw.anything()
            for call in (
                lambda: kv_cache.resize(first, second),
                lambda: kv_cache.get_base_page_indices(first, second),
                lambda: manager.get_page_stride(first, second),
                lambda: manager.get_storage_statistics(first),
                lambda: manager.create_kv_cache(first, second, third).close(),
                lambda: manager.resize_batch(first, second, third),
                lambda: manager.commit_batch(first, second),
                lambda: manager.commit_batch([kv_cache], [first]),
                lambda: setattr(kv_cache, "cuda_stream", object() if isinstance(first, int) else first),
            ):
                try:
                    call()
                except REFUSALS as error:
                    assert refuses(error)
                manager.check_invariants()


def fuzz_journal(data: bytes) -> None:
    """A journal whose configuration is one that can be had, with whatever behind it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.journal"
        path.write_bytes(_journal_head() + data)
        # After every call of a short one; a long one would be all that a fuzzer has time for.
        rerun(path, HostDevice(), check_invariants=len(data) < LONG_JOURNAL_BYTES)


def fuzz_event_consumer(data: bytes) -> None:
    """Bytes from a socket; and events of a manager in any order, some never, some twice."""
    draw = Draw(data)
    index = KVCacheEventIndex(draw.below(20))
    events = _some_events()
    for _ in range(draw.below(64)):
        position = draw.byte() % len(events)
        index.apply(events[position : position + draw.below(9)])
        index.find(events[position].layer_group_id)
    for block in index.blocks():
        assert block.places()
    read_batch(draw.rest())


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "configuration": fuzz_configuration,
    "trace": fuzz_trace,
    "tokens": fuzz_tokens,
    "index_buffer": fuzz_index_buffer,
    "arguments": fuzz_arguments,
    "journal": fuzz_journal,
    "event_consumer": fuzz_event_consumer,
}


def run_target(name: str, data: bytes) -> bool:
    """Whether the input was served; False: it was refused as it should be. Anything else is raised."""
    try:
        TARGETS[name](data)
    except REFUSALS as error:
        if not refuses(error):
            raise
        return False
    return True


# -- inputs that come far -------------------------------------------------------------------------------------------------

_JOURNAL_CONFIG: Final = config_of([None, 8], num_slots=40)
_HEAD: list[bytes] = []
_EVENTS: list[KVCacheEvent] = []


def _record_journal(num_calls: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls.journal"
        with KVCacheManager(_JOURNAL_CONFIG, device=HostDevice(), journal=path) as manager:
            calls = EveryCall(manager, 5)
            calls.run(num_calls)
            calls.finish()
        return path.read_bytes()


def _journal_head() -> bytes:
    """Of a journal without calls: all but the last record, a digest of 1 + 8 bytes."""
    if not _HEAD:
        _HEAD.append(_record_journal(0)[:-9])
    return _HEAD[0]


def _some_events() -> list[KVCacheEvent]:
    if not _EVENTS:
        events = KVCacheEventManager(10_000)
        with KVCacheManager(config_of([None, 8], num_slots=24), device=HostDevice(), event_manager=events) as manager:
            calls = EveryCall(manager, 6)
            calls.run(300)
            calls.finish()
            events.flush_iteration_events()
            _EVENTS.extend(events.get_latest_events(0))
    return _EVENTS


def make_seeds(name: str) -> list[bytes]:
    """A few inputs for a target that are valid, or nearly so."""
    rng = random.Random(0)
    noise = [rng.randbytes(length) for length in (1, 40, 400)]
    if name == "configuration":
        configs = [config_of(), config_of_every_kind(True, "/tmp"), config_of_every_kind(False, "/tmp")]
        return [b"\0" + encode_config(config) for config in configs] + noise
    if name == "trace":
        lines = [
            json.dumps({"timestamp": 10 * i, "input_length": 40, "output_length": i, "hash_ids": [i, 0, 7]}) for i in range(3)
        ]
        return ["\n".join(lines).encode(), lines[0].encode(), *noise]
    if name == "journal":
        return [_record_journal(count)[len(_journal_head()) :] for count in (3, 10, 30, 100)] + noise
    if name == "event_consumer":
        import msgspec

        stored = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}
        removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}
        batches = [[1.5, [stored, removed], 0], [2.0, [["AllBlocksCleared"], ["BlockRemoved", [1]]]], [0.0, [], None]]
        return [b"\5" + struct.pack("B", 0) + msgspec.msgpack.encode(batch) for batch in batches] + noise
    # Of each kind of value that `Draw.anything` knows; the first byte says which.
    return [bytes([kind, 3, 1, 2, 0, 5, 1]) * 8 for kind in range(8, 15)] + noise
