"""On the host device a plain numpy kernel may touch pages as soon as a call returns: the call has waited for slow disks."""

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiered_models import TOKENS_PER_BLOCK, tiered_config
from unit.device.fake_files import FakeFiles

from kv_cache_manager_v2 import HostDevice, KVCache, KVCacheManager, LayerGroupId, LayerId

ROLES = ("key", "value")
WINDOWS = (None, 6)
MOST_TOKENS = 19
Page = npt.NDArray[np.uint16]


class SlowFiles(FakeFiles):
    """So slow that a kernel which does not wait for the disk comes before it."""

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        time.sleep(0.002)
        return super().transfer(file, is_write, addresses, sizes, offset)


class NumpyEngine:
    """Each token's place gets what its prefix determines, and is read in every later step."""

    def __init__(self, manager: KVCacheManager, waits: bool) -> None:
        self.manager = manager
        self.waits = waits
        self.views: dict[tuple[int, str], Page] = {
            (layer, role): np.asarray(manager.pool_view(LayerId(layer), role, "uint16", by_slot=True))
            for layer in range(len(WINDOWS))
            for role in ROLES
        }
        self.texts: dict[int, list[int]] = {}
        self.num_read = 0

    def places(self, kv_cache: KVCache, begin: int, text: list[int]) -> list[tuple[Page, int]]:
        """Where tokens from ``begin`` on lie that have a page, and what belongs there."""
        if self.waits:
            self.manager.device.synchronize_stream(kv_cache.cuda_stream)
        found: list[tuple[Page, int]] = []
        for (layer, role), view in self.views.items():
            slots = kv_cache.get_base_page_indices(self.manager.get_layer_group_id(LayerId(layer)))
            for position in range(begin, len(text)):
                slot = int(slots[position // TOKENS_PER_BLOCK])
                if slot >= 0:
                    page = view[slot].reshape(TOKENS_PER_BLOCK, -1)
                    belongs = hash((tuple(text[: position + 1]), layer, ROLES.index(role))) % 60_000
                    found.append((page[position % TOKENS_PER_BLOCK], belongs))
        return found

    def check(self, kv_cache: KVCache) -> None:
        for place, belongs in self.places(kv_cache, 0, self.texts[kv_cache.id]):
            assert (place == belongs).all(), (kv_cache, place, belongs)
            self.num_read += 1

    def step(self, kv_cache: KVCache, new: list[int]) -> bool:
        """Compute these tokens; False: no room."""
        text = self.texts[kv_cache.id]
        if not kv_cache.resize(len(text) + len(new)):
            return False
        self.check(kv_cache)
        text += new
        for place, belongs in self.places(kv_cache, len(text) - len(new), text):
            place[:] = belongs
        kv_cache.commit(new)
        self.check(kv_cache)
        return True


@pytest.mark.parametrize("calls_wait", [True, False], ids=["calls-wait", "kernels-wait"])
@pytest.mark.parametrize("settings", [{}, {"write_policy": "through"}, {"allow_seq_rebasing": False}], ids=["back", "through", "twins"])
@pytest.mark.parametrize("lower", [[("disk", 40)], [("host", 5), ("disk", 40)]], ids=["disk", "host-disk"])
@pytest.mark.parametrize("num_streams", [1, 3])
def test_every_byte_of_every_step(lower: list[tuple[str, int]], settings: dict[str, Any], num_streams: int, calls_wait: bool) -> None:
    """Up to six sequences in 14 slots, so that most steps evict; prompts come again, sequences fork, some are suspended before they
    are ready, and pages are prefetched."""
    device = HostDevice(files=SlowFiles(), calls_wait_for_disk=calls_wait)
    chance = random.Random(num_streams)
    prompts = [[100 * number + position for position in range(3 * TOKENS_PER_BLOCK + 2)] for number in range(3)]
    with KVCacheManager(tiered_config(14, lower, windows=WINDOWS, **settings), device=device) as manager:
        engine = NumpyEngine(manager, not calls_wait)
        streams = [device.default_stream(), *[device.create_stream() for _ in range(num_streams - 1)]]
        sequences: list[KVCache] = []
        num_reused = num_forked = 0
        for turn in range(100):
            if len(sequences) < 4 or (len(sequences) < 6 and chance.random() < 0.3):
                prompt = chance.choice(prompts)
                kv_cache = manager.create_kv_cache(input_tokens=prompt[:-1], id=turn)
                num_reused += int(kv_cache.num_committed_tokens)
                engine.texts[turn] = prompt[: kv_cache.num_committed_tokens]
                sequences.append(kv_cache)
                new = prompt[kv_cache.num_committed_tokens :]
            else:
                kv_cache = chance.choice(sequences)
                new = [chance.randrange(1000) for _ in range(chance.randint(1, 3))]
            if not kv_cache.is_active and not kv_cache.resume(chance.choice(streams), wait=chance.random() < 0.5):
                for other in sequences:
                    if other.is_active:
                        other.suspend()
                continue
            if chance.random() < 0.5:
                while not kv_cache.ready:
                    time.sleep(0.001)
                engine.check(kv_cache)
            if chance.random() < 0.1:
                kv_cache.suspend()  # whether or not its pages have arrived
                kv_cache.prefetch(chance.randrange(2))
                continue
            is_done = engine.step(kv_cache, new)
            if is_done and chance.random() < 0.3 and len(sequences) < 6:
                child = kv_cache.fork(id=1000 + turn)
                engine.texts[child.id] = list(engine.texts[kv_cache.id])
                sequences.append(child)
                num_forked += 1
            if not is_done or len(engine.texts[kv_cache.id]) > MOST_TOKENS:
                sequences.remove(kv_cache)
                kv_cache.close()
            elif chance.random() < 0.7:
                kv_cache.suspend()
        for kv_cache in sequences:
            kv_cache.close()
        num_onboarded = sum([one.blocks for one in manager.get_statistics().transfers if one.target_level == 0])
        engine.views.clear()
        gc.collect()
    device.close()
    counts = (engine.num_read, num_reused, num_forked, num_onboarded)
    assert engine.num_read > 3000 and num_reused > 40 and num_forked > 3 and num_onboarded > 30, counts


def fill_and_evict(manager: KVCacheManager) -> KVCache:
    """A closed sequence of 8 published blocks, all of level 0, and an ACTIVE one of other tokens that has no slot yet."""
    first = manager.create_kv_cache(id=0)
    assert first.resume() and first.resize(8 * TOKENS_PER_BLOCK)
    first.commit(list(range(8 * TOKENS_PER_BLOCK)))
    first.close()
    second = manager.create_kv_cache(id=1)
    assert second.resume()
    return second


def test_only_calls_that_hand_out_pages_wait() -> None:
    """The disk answers nothing: a request for pages that are on it is made, asked for, preempted and closed."""
    files = FakeFiles()
    device = HostDevice(files=files)
    with KVCacheManager(tiered_config(8, [("disk", 40)]), device=device) as manager:
        second = fill_and_evict(manager)
        assert second.resize(8 * TOKENS_PER_BLOCK)
        second.close()
        files.hold()
        again = manager.create_kv_cache(input_tokens=list(range(5 * TOKENS_PER_BLOCK)), id=2)
        assert again.num_committed_tokens == 5 * TOKENS_PER_BLOCK
        assert again.resume(wait=False) and not again.ready
        again.suspend()
        assert again.prefetch()
        assert again.resume(wait=False) and not again.ready
        again.close()
        assert manager.probe_reuse(None, list(range(20))) == 20
        files.let_go()
        # Another one on the same stream, whose slots the reads above may still write into.
        with manager.create_kv_cache(id=3) as other:
            assert other.resume() and other.resize(8 * TOKENS_PER_BLOCK)
            assert files._num_waiting == 0, "the disk is done with these slots"
    device.close()


def test_ctrl_c_while_a_call_waits_breaks_nothing() -> None:
    files = FakeFiles()
    device = HostDevice(files=files)
    with KVCacheManager(tiered_config(8, [("disk", 40)]), device=device) as manager:
        second = fill_and_evict(manager)
        files.hold()

        def press() -> None:
            files.wait_until_held(1)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            second.resize(8 * TOKENS_PER_BLOCK)
        thread.join()
        manager.check_invariants()
        assert second.capacity == 8 * TOKENS_PER_BLOCK, "the call was done but for the waiting"
        files.let_go()
        assert second.resize(8 * TOKENS_PER_BLOCK)
        assert files._num_waiting == 0
        page = np.asarray(manager.pool_view(LayerId(0), "key", "uint16", by_slot=True))
        page[:] = 7
        second.close()
        with manager.create_kv_cache(input_tokens=list(range(8 * TOKENS_PER_BLOCK)), id=2) as again:
            assert again.num_committed_tokens == 8 * TOKENS_PER_BLOCK and again.resume()
            assert (page[np.asarray(again.get_base_page_indices(LayerGroupId(0)))] == 0).all()
        del page
        gc.collect()
    device.close()
