"""Device failures in the middle of a history: which call fails, and what is checked afterwards.

Some scenarios plan a failure before some actions: the n-th copy, transfer, mapping, stream, event or wait from there on, a full
disk, or (which breaks the manager for good) a refused event together with the host's wait in its place.
The failure is drawn from the action's number, so it stays with the action when a history is shortened. After an action with a
failure, all enqueued work is run, so that the losses are known; reads that fail while another sequence already
relies on them have tests of their own.
"""

import errno
import gc
import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from mypy_extensions import mypyc_attr

from ...base.errors import CorruptedError, LoadFailed, OutOfMemoryError, PageMoveError, StorageIOError
from ...manager.kv_cache import KVCache
from ...manager.kv_cache_manager import KVCacheManager
from ..reference_pages import ModelDisagreement, StateDump
from ..simulated_device import SimulatedDevice
from .scenario import Action
from .simulated_sequence import SimulatedSequence


@mypyc_attr(native_class=False)
class PlannedFault(Exception):
    """The device's error."""


FAILURES: Final = (PageMoveError, StorageIOError, OutOfMemoryError, PlannedFault)
"""The errors that a call may raise if the device fails; nothing has changed then, but pages may have been evicted."""

_KINDS: Final = (
    "copy", "copy", "copy", "copy", "disk_read", "disk_read", "disk_write", "full", "map", "record", "wait", "create_stream",
)  # fmt: skip
_KINDS_BUT_WRITES: Final = ("copy", "copy", "copy", "disk_read", "disk_read", "disk_read", "record", "wait")
_KINDS_OF_LEVELS: Final = ("copy", "copy", "copy", "copy", "map", "record", "wait")
_BREAKING_KINDS: Final = ("record", "wait")
_NTHS: Final = (1, 1, 2, 2, 2, 3, 4)
"""Every second copy is one between two parts of a page, if pages have two."""
_SHARE_OF_BREAKING: Final = 0.02
_SHARE_OF_LEVELS: Final = 0.8
"""The share of level resizes, which are rare, with a failure of the device."""
_MAX_DRAINS: Final = 100
_UNUSED_PREFIX: Final = [2**31 - 1]


def plan_fault(device: SimulatedDevice, action: Action, share: float, spares_writes: bool) -> None:
    """Plan a fault before that share of the actions."""
    random = Random(action.number + 1)
    if random.random() >= (_SHARE_OF_LEVELS if action.kind == "resize_level" else share):
        return
    breaks = random.random() < _SHARE_OF_BREAKING
    kinds = _KINDS_BUT_WRITES if spares_writes else _KINDS
    kind = random.choice(_BREAKING_KINDS if breaks else kinds)
    nth = random.choice(_NTHS)
    if action.kind == "resize_level" and not breaks:
        kind = random.choice(_KINDS_OF_LEVELS)
    elif kind == "map":
        kind = "copy"
    if kind == "full":
        for further in range(nth):
            device.faults.fail("disk_write", 1 + further, OSError(errno.ENOSPC, "No space left on device"))
    elif kind == "map":
        device.faults.fail("map", 1, OutOfMemoryError("planned: no memory"))
    else:
        device.faults.fail(kind, nth, PlannedFault(f"planned: {kind} number {nth} from {action} on"))
        if breaks:
            device.faults.fail("synchronize", 1, PlannedFault("planned: nor may the host wait"))


def look_around(manager: KVCacheManager) -> None:
    """A call that finds lost pages and closes forgotten sequences, and does nothing else; a probe does neither."""
    manager.prefetch(_UNUSED_PREFIX)


def settle_failures(device: SimulatedDevice, manager: KVCacheManager) -> bool:
    """Run all enqueued work, and let the manager see what failed; False if it is broken."""
    for _drain in range(_MAX_DRAINS):
        try:
            device.drain()
            break
        except FAILURES:
            continue
    # The traceback of an error may keep a handle alive that the user is going to forget.
    gc.collect()
    try:
        manager.probe_reuse()
    except CorruptedError:
        return False
    look_around(manager)
    for handle in manager.open_kv_caches:
        if handle.is_active:
            try:
                is_ready(handle)
            except FAILURES:
                is_ready(handle)  # this call was the one that a planned fault waited for; the next one has an answer
    return True


def decisions_in(dump: StateDump, streams: Sequence[int]) -> bytes:
    """The state dump without the device's error texts, which contain addresses, and without its handles of ``streams``."""
    levels = [{**level, "failure": level["failure"] is not None} for level in dump["levels"]]
    names = {stream: name for name, stream in enumerate(streams)}
    sequences = [_with_stream_names(sequence, names) for sequence in dump["sequences"]]
    return json.dumps({**dump, "levels": levels, "sequences": sequences}, sort_keys=True).encode()


def _with_stream_names(sequence: dict[str, Any], names: dict[int, int]) -> dict[str, Any]:
    named = {**sequence, "stream": names.get(sequence["stream"], -1)}
    if "beams" in sequence:
        named["beams"] = [_with_stream_names(beam, names) for beam in sequence["beams"]]
    return named


def change_all(batch: Sequence[SimulatedSequence], draws: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The same steps with changed capacities, which show which sequences were resized before a failure."""
    return [
        (num_tokens, capacity + (capacity == sequence.model.capacity), history)
        for sequence, (num_tokens, capacity, history) in zip(batch, draws)
    ]


def count_resized(handles: Sequence[KVCache], capacities: Sequence[int], histories: Sequence[int]) -> int:
    """How many sequences of a batch were resized before a failure."""
    count = 0
    for handle, capacity, history in zip(handles, capacities, histories):
        if (handle.capacity, handle.history_length) != (capacity, history):
            break
        count += 1
    return count


def is_ready(handle: KVCache) -> bool:
    """Whether the sequence is ready; True as well if it never will be, because a page is lost."""
    try:
        return handle.ready
    except StorageIOError:
        return True


def await_ready(handle: KVCache) -> bool:
    """Wait for a sequence that was resumed without waiting, before it gets work; False if a page is lost."""
    try:
        while not handle.ready:
            pass
    except StorageIOError:
        return False
    return True


def list_lost(dump: StateDump) -> list[int]:
    """The sequences that hold a lost page."""
    return [sequence["id"] for sequence in dump["sequences"] if sequence.get("has_lost_pages", False)]


def require_lost(handle: KVCache, capacity: int) -> int:
    """A sequence that holds a lost page must refuse to continue; returns how many of its tokens it says that it keeps."""
    try:
        passed = handle.resize(capacity + 1, capacity) if handle.is_active else handle.resume()
    except LoadFailed as error:
        if "are lost" in str(error):
            return error.first_bad_token
        raise
    raise ModelDisagreement(f"{handle!r} {'continued' if passed else 'found no room'}, although it holds a lost page")


def require_broken(handle: KVCache, manager: KVCacheManager) -> None:
    """Every call must raise the first reason again."""
    reasons: set[str] = set()
    try:
        handle.close()
    except CorruptedError as closing:
        reasons.add(str(closing))
    try:
        manager.probe_reuse()
    except CorruptedError as probing:
        reasons.add(str(probing))
    if len(reasons) != 1:
        raise ModelDisagreement(f"a broken manager must give one reason in every call; it gave {sorted(reasons)}")
