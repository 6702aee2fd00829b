"""Whatever a copy or a disk does wrong: never a wrong byte, never a lost slot, an error that names the level, and others go on."""

import contextlib
import errno

import pytest
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config
from unit.device.fake_files import FakeFiles

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DropReason,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    KVCacheRemovedData,
    LayerId,
    LoadFailed,
    MissCause,
    PageMoveError,
    StorageIOError,
)
from kv_cache_manager_v2.testing import SimulatedDevice, Step


class Refused(Exception):
    """What the device says."""


def finish(bench: Bench) -> None:
    """A failure that no call raised is raised to the engine, which waits for everything."""
    for _attempt in range(20):
        try:
            bench.engine.synchronize()
        except StorageIOError:
            continue
        break


def try_to_run(bench: Bench, kv_cache: KVCache, turn: int, stream: int) -> bool:
    """One turn of a sequence; False: it is lost, and was closed."""
    for _attempt in range(3):
        try:
            if turn % 5 == 3:
                kv_cache.prefetch(turn % 3)
            if not kv_cache.resume(stream, wait=turn % 2 == 0):
                # Held pages have nowhere to go once the disk takes none.
                assert failures_of(bench) != [None, None, None]
                return True
            break
        except (PageMoveError, StorageIOError, Refused) as error:
            assert isinstance(error, Refused) or "level" in str(error)
            bench.manager.check_invariants()
            assert not kv_cache.is_active
            if "are lost" in str(error):
                kv_cache.close()
                return False
    try:
        while turn % 4 < 2 and not kv_cache.ready:
            pass
        length = len(bench.texts[kv_cache.id])
        if kv_cache.resize(length + 1, length):
            if turn % 3 == 0:
                bench.write(kv_cache, 1, commit=True)
            else:
                bench.check(kv_cache)
        kv_cache.suspend()
    except StorageIOError as error:
        assert "level" in str(error) and "are lost" in str(error)
        kv_cache.close()
        return False
    except (Refused, PageMoveError):
        kv_cache.suspend()
    return True


def failures_of(bench: Bench) -> list[str | None]:
    """By level, what its disk said when it did not take a write."""
    return [level["failure"] for level in bench.manager.describe()["levels"]]


def run_for_a_while(device: SimulatedDevice) -> int:
    """Sequences over three levels, some of them with the same beginning; returns how many were lost."""
    num_lost = 0
    with Bench(tiered_config(9, [("host", 4), ("disk", 60)], windows=(None, 8)), device) as bench:
        streams = [device.default_stream(), device.create_stream()]
        sequences: list[KVCache] = []
        for number in range(5):
            kv_cache = bench.manager.create_kv_cache(id=number)
            try:
                if not kv_cache.resume(streams[number % 2]):
                    assert failures_of(bench) != [None, None, None]
                    kv_cache.close()
                    continue
                while not bench.write(kv_cache, 3 * TOKENS_PER_BLOCK, commit=number != 1):
                    if failures_of(bench) != [None, None, None]:
                        break
                if len(bench.texts[number]) < 3 * TOKENS_PER_BLOCK:
                    kv_cache.close()
                    continue
            except (PageMoveError, StorageIOError, Refused) as error:
                assert isinstance(error, Refused) or "level" in str(error)
                kv_cache.close()
                continue
            kv_cache.suspend()
            sequences.append(kv_cache)
            if number >= 3:
                again = bench.manager.create_kv_cache(input_tokens=list(bench.texts[0])[:10], id=number + 10)
                bench.texts[again.id] = list(bench.texts[0])[: again.num_committed_tokens]
                sequences.append(again)
        for turn in range(24):
            if len(sequences) > 0:
                kv_cache = sequences[turn * 4 % len(sequences)]
                if not try_to_run(bench, kv_cache, turn, streams[turn % 2]):
                    sequences.remove(kv_cache)
                    num_lost += 1
                bench.manager.check_invariants()
        for kv_cache in sequences:
            kv_cache.close()
        device.faults.clear()
        finish(bench)
        assert device.races == ()
    return num_lost


@pytest.mark.parametrize("kind", ["copy", "disk_read", "disk_write"])
def test_every_copy_and_every_transfer_fails_in_turn(kind: str) -> None:
    """The n-th one fails, for n up to all that there are: every third copy, every second write."""
    nth = 1
    num_runs = 0
    num_lost = 0
    while True:
        device = SimulatedDevice(nth)
        device.faults.fail(kind, nth, Refused(f"{kind} number {nth}"))
        num_lost += run_for_a_while(device)
        if device.faults.num_fired == 0:
            break
        num_runs += 1
        nth += {"copy": 3, "disk_read": 1, "disk_write": 2}[kind]
    assert num_runs > 10
    # A copy that is refused, or a write that fails, costs no sequence its pages.
    assert (num_lost > 0) == (kind == "disk_read")


def fill_disk(bench: Bench) -> tuple[KVCache, KVCache]:
    """Two suspended sequences of 4 published blocks in 4 slots: the first one's are on the disk."""
    first = bench.suspended(1, 4 * TOKENS_PER_BLOCK, commit=True)
    second = bench.suspended(2, 4 * TOKENS_PER_BLOCK, commit=True)
    assert bench.num_copied(0, 1) == 4
    return first, second


def wait_for_failure(kv_cache: KVCache) -> str:
    with pytest.raises(StorageIOError) as caught:
        while not kv_cache.ready:
            pass
    return str(caught.value)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("engine_hears_first", [False, True])
def test_a_read_that_fails_behind_the_back(seed: int, engine_hears_first: bool) -> None:
    device = SimulatedDevice(seed, eager=False)
    events = KVCacheEventManager(1000)
    with Bench(tiered_config(4, [("disk", 12)]), device, events) as bench:
        first, second = fill_disk(bench)
        text = list(bench.texts[1])
        assert bench.manager.probe_reuse(input_tokens=text) == 16
        device.faults.fail("disk_read", 1, Refused("a scratch on the platter"))
        assert first.resume(wait=False)
        # Another sequence matches the pages before the failure is known, and waits for them as well.
        sharing = bench.manager.create_kv_cache(input_tokens=text, id=3)
        assert sharing.num_committed_tokens == 16
        if engine_hears_first:
            with pytest.raises(StorageIOError):
                device.drain()
        said = wait_for_failure(first)
        assert "level 1 (DISK)" in said and "a scratch on the platter" in said
        assert wait_for_failure(first) == said, "it stays so"
        with pytest.raises(LoadFailed, match="sequence 3 cannot go on") as failure:
            sharing.resume()
        kept = failure.value.first_bad_token
        assert kept < 16 and kept % TOKENS_PER_BLOCK == 0
        assert bench.manager.probe_reuse(input_tokens=text) == kept, "held, and not to be had"
        first.close()
        sharing.close()
        again = bench.manager.create_kv_cache(input_tokens=text, id=4)
        assert again.num_committed_tokens == kept
        missed = dict(again.statistics.prompts.missed_tokens)
        assert missed.pop(MissCause.LOAD_FAILED) == TOKENS_PER_BLOCK
        assert sum(missed.values()) == 12 - kept and missed.keys() <= {MissCause.UNREACHABLE}
        assert bench.manager.get_statistics().count_drops(DropReason.FAILURE) > 0
        events.flush_iteration_events()
        told = [event.data for event in events.get_latest_events()]
        assert "failure" in [data.reason for data in told if isinstance(data, KVCacheRemovedData)]
        again.close()
        assert second.resume()
        bench.check(second)
        second.close()
        finish(bench)


@pytest.mark.parametrize("waits", [True, False])
def test_a_failed_prefetch_is_known_before_any_read(waits: bool) -> None:
    device = SimulatedDevice(1, eager=False)
    with Bench(tiered_config(4, [("host", 2), ("disk", 12)]), device) as bench:
        first, second = fill_disk_behind_host(bench)
        device.faults.fail("disk_read", 1, Refused("unreadable"))
        assert first.prefetch(1)
        # On its way from the disk to the host, it is copied on to the GPU; the failure is not known yet. A resume that does not wait for
        # it finds one that has happened.
        if not waits:
            with contextlib.suppress(StorageIOError):
                device.drain()
        with pytest.raises(StorageIOError, match=r"level 2 \(DISK\)"):
            first.resume(wait=waits)
        assert first.status is first.Status.SUSPENDED
        first.close()
        assert second.resume()
        bench.check(second)
        second.close()
        finish(bench)


def fill_disk_behind_host(bench: Bench) -> tuple[KVCache, KVCache]:
    """2 pages of the first on the disk, none of the second's."""
    first = bench.suspended(1, 2 * TOKENS_PER_BLOCK)
    second = bench.suspended(2, 4 * TOKENS_PER_BLOCK)
    third = bench.suspended(3, 2 * TOKENS_PER_BLOCK)
    assert bench.num_copied(1, 2) == 2
    third.close()
    return first, second


def test_a_disk_that_recovers_loses_nothing() -> None:
    """Reads fail while a call waits for them: the pages are still there, and come when the disk works again."""
    files = FakeFiles()
    with Bench(tiered_config(4, [("disk", 12)]), HostDevice(files=files)) as bench:
        first, second = fill_disk(bench)
        files.fail(errno.EIO, reads=True)
        for _attempt in range(2):
            with pytest.raises((StorageIOError, PageMoveError), match="level 1"):
                first.resume()
            bench.manager.check_invariants()
        assert bench.manager.describe()["sequences"][0]["page_levels"] == [[1, 1, 1, 1]]
        files.fail(errno.EIO)
        assert first.resume()
        bench.check(first)
        first.close()
        assert second.resume()
        bench.check(second)
        second.close()
        finish(bench)


def test_a_disk_that_takes_no_writes_loses_nothing() -> None:
    files = FakeFiles()
    with Bench(tiered_config(4, [("disk", 12)]), HostDevice(files=files)) as bench:
        files.fail(errno.ENOSPC, writes=True)
        first, second = fill_disk(bench)
        assert failures_of(bench) == [None, None], "no call has looked since"
        # The first one's pages would need the slots of the second's, which are held and have nowhere to go.
        assert not first.resume()
        failure = failures_of(bench)[1]
        assert failure is not None and "No space left" in failure
        refusal = bench.manager.last_refusal
        assert refusal is not None and "Level 1 takes no pages: " in refusal.text
        assert second.resume()
        bench.check(second)
        second.close()
        assert first.resume()
        bench.check(first)


@pytest.mark.parametrize("write_policy", ["back", "through"])
@pytest.mark.parametrize("seed", range(4))
def test_a_level_that_failed_gets_no_more_pages(write_policy: str, seed: int) -> None:
    """GPU, host, disk: after the failure droppable pages of the host are dropped where they would go to the disk; those on the
    disk are reused, and others of the host come and go as before."""
    device = SimulatedDevice(seed, eager=True)
    with Bench(tiered_config(4, [("host", 4), ("disk", 60)], write_policy=write_policy), device) as bench:
        device.faults.fail("disk_write", 1, Refused("worn out"))
        bench.suspended(1, 4 * TOKENS_PER_BLOCK, commit=True).close()
        bench.suspended(2, 4 * TOKENS_PER_BLOCK, commit=True).close()
        bench.suspended(3, 4 * TOKENS_PER_BLOCK, commit=True).close()
        num_written = bench.num_copied(1, 2) + bench.num_copied(0, 2)
        assert num_written >= 4
        for number in range(4, 9):
            bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True).close()
            bench.manager.check_invariants()
        assert bench.num_copied(1, 2) + bench.num_copied(0, 2) == num_written
        failures = failures_of(bench)
        assert failures[:2] == [None, None] and failures[2] is not None and "worn out" in failures[2]
        text = bench.texts[1]
        again = bench.manager.create_kv_cache(input_tokens=list(text), id=1)
        assert again.num_committed_tokens == 16
        assert again.resume()
        bench.check(again)
        again.close()
        assert device.races == ()


@pytest.mark.parametrize("seed", range(6))
def test_the_same_tokens_computed_again_repair_the_page(seed: int) -> None:
    """A page is lost while a sequence holds it; another one that commits the same block repairs the page with its bytes."""
    device = SimulatedDevice(seed)
    with Bench(tiered_config(12, [("disk", 12)]), device) as bench:
        first = bench.suspended(1, 4 * TOKENS_PER_BLOCK, commit=True)
        filler = bench.suspended(2, 12 * TOKENS_PER_BLOCK)
        filler.close()
        assert bench.num_copied(0, 1) == 4
        device.faults.fail("disk_read", 1, Refused("unreadable"))
        assert first.resume(wait=False)
        wait_for_failure(first)
        text = bench.texts[1]
        again = bench.manager.create_kv_cache(input_tokens=list(text), id=1)
        assert again.num_committed_tokens == 0
        assert again.resume() and again.resize(16, 0)
        del bench.texts[1]
        assert bench.write(again, 16, commit=True)
        bench.check(again)
        assert bench.manager.probe_reuse(input_tokens=list(text)) == 16
        assert first.ready
        bench.check(first)
        first.close()
        again.close()
        finish(bench)


def test_a_beam_with_another_text_repairs_no_page() -> None:
    """Of two beams the first commits the lost block again, and the device refuses to copy its bytes over the lost page. The second
    beam's page has another text's bytes: the published page stays lost."""
    device = SimulatedDevice(1)
    with Bench(tiered_config(12, [("disk", 12)]), device) as bench:
        first = bench.suspended(1, TOKENS_PER_BLOCK, commit=True)
        bench.suspended(2, 12 * TOKENS_PER_BLOCK).close()
        assert bench.num_copied(0, 1) == 1
        device.faults.fail("disk_read", 1, Refused("unreadable"))
        assert first.resume(wait=False)
        wait_for_failure(first)
        text = list(bench.texts[1])
        beams = bench.manager.create_kv_cache()
        assert beams.resume()
        beams.beam_width = 2
        assert beams.resize(TOKENS_PER_BLOCK)
        bench.engine.execute([Step(beams, [text, [token + 1 for token in text]], [[], []])])
        device.faults.fail("copy", 1, Refused("not now"))
        beams.commit(text, beam_search_indices=[0] * TOKENS_PER_BLOCK)
        assert device.faults.num_fired == 2
        assert "lost" in wait_for_failure(first)
        assert bench.manager.probe_reuse(input_tokens=text) == 0
        beams.close()
        first.close()
        finish(bench)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_level_that_cannot_shrink_is_written_in_order(nth: int) -> None:
    """A slot has two pools: the first copy is under way when the second is refused, and reads what the sequence writes next."""
    buffers = [BufferConfig("key", 64), BufferConfig("scale", 16)]
    layers = [AttentionLayerConfig(LayerId(0), buffers)]
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(8 * 80)], layers, max_util_for_resume=1.0)
    device = SimulatedDevice(3, eager=False, granularity_bytes=16)
    with Bench(config, device) as bench:
        manager = bench.manager
        first, second = manager.create_kv_cache(id=1), manager.create_kv_cache(id=2)
        assert first.resume() and first.resize(16)
        assert second.resume(device.create_stream())
        assert bench.write(second, 6)
        first.close()
        device.faults.fail("copy", nth, Refused("not now"))
        with pytest.raises(PageMoveError):
            manager.resize(0, 4 * 80)
        assert device.faults.num_fired == 1
        assert bench.write(second, 1)
        second.close()
        assert manager.resize(0, 4 * 80)
        assert device.races == ()


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_page_repaired_on_another_stream_is_waited_for(seed: int, is_lost: bool) -> None:
    """A sequence resumed without waiting, before the page was repaired, does not read it while its new bytes are on their way."""
    device = SimulatedDevice(seed)
    with Bench(tiered_config(12, [("disk", 12)]), device) as bench:
        one, other = device.create_stream(), device.create_stream()
        first = bench.suspended(1, 4 * TOKENS_PER_BLOCK, commit=True, stream=one)
        bench.suspended(2, 12 * TOKENS_PER_BLOCK, stream=one).close()
        assert bench.num_copied(0, 1) == 4
        text = bench.texts.pop(1)
        again = bench.manager.create_kv_cache(id=1)
        assert again.resume(other) and bench.write(again, 16)
        if is_lost:
            device.faults.fail("disk_read", 1, Refused("unreadable"))
        assert first.resume(one, wait=False)
        if is_lost:
            wait_for_failure(first)
        again.commit(text)
        while not first.ready:
            pass
        bench.check(first)
        bench.check(again)
        first.close()
        again.close()
        finish(bench)
        assert device.races == ()


@pytest.mark.parametrize("middle", ["host", "disk"])
@pytest.mark.parametrize("seed", range(2))
def test_a_read_that_fails_behind_a_page_that_came_up_further(seed: int, middle: str) -> None:
    """4 pages go from level 2 to level 1 and on to level 0, all without waiting, and leave a clean copy on level 1. When they go
    down to that copy it is no better than the read from level 2."""
    device = SimulatedDevice(seed, eager=False)
    with Bench(tiered_config(4, [(middle, 4), ("disk", 8)]), device) as bench:
        first = bench.suspended(1, 16, commit=True)
        second = bench.suspended(2, 16)
        third = bench.suspended(3, 16)
        second.close()
        third.close()
        assert first.committed_tokens == bench.texts[1] and bench.num_copied(1, 2) == 4
        device.faults.fail("disk_read", 1, Refused("unreadable"))
        assert first.prefetch(1)
        assert first.resume(wait=False)
        first.suspend()
        num_copied = bench.num_copied(0, 1)
        other = bench.manager.create_kv_cache(id=4)
        assert other.resume() and bench.write(other, 16)
        assert bench.num_copied(0, 1) == num_copied, "all four were there"
        other.close()
        with pytest.raises(StorageIOError, match="are lost"):
            first.resume()
        first.close()
        finish(bench)


@pytest.mark.parametrize("seed", range(2))
def test_a_page_that_may_be_lost_repairs_none(seed: int) -> None:
    """The same text twice, once published and once private, both on their way from the disk as the second is committed; only the
    second read fails."""
    device = SimulatedDevice(seed, eager=False)
    with Bench(tiered_config(12, [("disk", 12)]), device) as bench:
        one, other = device.create_stream(), device.create_stream()
        first = bench.suspended(1, 16, commit=True, stream=one)
        text = bench.texts.pop(1)
        again = bench.suspended(1, 16, stream=other)
        bench.suspended(2, 12 * TOKENS_PER_BLOCK, stream=one).close()
        assert bench.num_copied(0, 1) == 8
        device.faults.fail("disk_read", 2, Refused("unreadable"))
        assert first.resume(one, wait=False) and again.resume(other, wait=False)
        again.commit(text)
        while not first.ready or not again.ready:
            pass
        bench.check(first)
        bench.check(again)
        finish(bench)
        first.close()
        again.close()
        assert device.races == ()


@pytest.mark.parametrize("fails", [False, True])
def test_a_read_that_fails_is_of_its_page_alone_whatever_became_of_that(fails: bool) -> None:
    """Private pages are awaited from the disk as their text is committed: where the tree has the block without such a page, the page
    goes over to that block. Who then gets the private block's place for a text of its own awaits no disk, and loses nothing."""
    device = SimulatedDevice(1, eager=False)
    config = tiered_config(16, [("disk", 40)], windows=(None, 8))
    with KVCacheManager(config, device=device) as manager:
        text = list(range(16))
        # Computed elsewhere: the windowed layers of blocks 0 and 1 have no pages in the tree.
        first = manager.create_kv_cache()
        assert first.resume() and first.resize(16, 16)
        first.commit(text)
        first.close()
        second = manager.create_kv_cache()
        assert second.resume() and second.resize(16, 0)
        second.suspend()
        filler = manager.create_kv_cache()
        assert filler.resume() and filler.resize(32, 0)
        filler.close()
        if fails:
            device.faults.fail("disk_read", 1, Refused("unreadable"))
        assert second.resume(wait=False)
        second.commit(text)
        manager.check_invariants()
        others = []
        for _number in range(2):
            other = manager.create_kv_cache()
            assert other.resume() and other.resize(8, 0)
            manager.check_invariants()
            others.append(other)
        if fails:
            wait_for_failure(second)
        else:
            while not second.ready:
                pass
        for number, other in enumerate(others):
            assert other.ready
            other.suspend()
            assert other.resume()
            other.commit([1000 * number + position for position in range(8)])
            assert manager.probe_reuse(input_tokens=other.committed_tokens) == 8
            other.close()
        second.close()
        manager.check_invariants()
    device.close()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("windows", [(None,), (None, 8)])
def test_a_read_and_a_copy_of_one_exchange_fail(windows: tuple[int | None, ...], seed: int) -> None:
    """Level 0 and the disk are full of pages that must stay, so pages change places through memory of the host. The first read
    fails behind the back, and one of the copies is refused, for each copy in turn."""
    num_refused = 0
    num_lost = 0
    for nth in range(1, 14):
        device = SimulatedDevice(seed, eager=False)
        with Bench(tiered_config(4, [("disk", 4)], windows=windows), device) as bench:
            sequences = [bench.suspended(number, 16 if len(windows) == 1 else 8) for number in (1, 2)]
            device.faults.fail("disk_read", 1, Refused("unreadable"))
            device.faults.fail("copy", nth, Refused("refused"))
            try:
                assert sequences[0].resume(wait=False)
                sequences[0].suspend()
            except PageMoveError:
                num_refused += 1
            device.faults.clear()
            bench.manager.check_invariants()
            finish(bench)
            for kv_cache in sequences:
                try:
                    assert kv_cache.resume()
                    bench.check(kv_cache)
                    kv_cache.suspend()
                except StorageIOError as error:
                    assert "are lost" in str(error)
                    num_lost += 1
                finish(bench)
        assert device.races == ()
    assert num_refused > 3 and 0 < num_lost <= 13


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("windows", [(None,), (None, 8)])
def test_a_read_that_fails_in_an_exchange_is_a_failed_load(windows: tuple[int | None, ...], is_eager: bool) -> None:
    """Pages change places as above, and `resume` waits for them: `LoadFailed`, counted once, and nothing is lost."""
    for nth in range(1, 5):
        device = SimulatedDevice(nth, eager=is_eager)
        with Bench(tiered_config(4, [("disk", 4)], windows=windows), device) as bench:
            sequences = [bench.suspended(number, 16 if len(windows) == 1 else 8) for number in (1, 2)]
            device.faults.fail("disk_read", nth, Refused("unreadable"))
            with pytest.raises(LoadFailed, match="there still"):
                sequences[0].resume()
            device.faults.clear()
            assert bench.manager.get_statistics().count_drops(DropReason.FAILURE) == 1
            bench.manager.check_invariants()
            for kv_cache in sequences:
                assert kv_cache.resume()
                bench.check(kv_cache)
                kv_cache.suspend()
            finish(bench)
            for kv_cache in sequences:
                kv_cache.close()
            assert bench.manager.get_statistics().count_drops(DropReason.FAILURE) == 1
        assert device.races == ()


def test_a_read_that_fails_while_a_disk_level_shrinks() -> None:
    """Pages at its end are read and written in front of it, behind the back: the page that could not be read is lost, and no other."""
    device = SimulatedDevice(1, eager=False)
    with Bench(tiered_config(4, [("disk", 16)]), device) as bench:
        sequences = [bench.suspended(number, 8) for number in range(8)]
        device.drain()
        assert bench.counts(1) == (16, 4)
        # Each has its two pages in neighbouring slots; those of the first ones are free again.
        for kv_cache in sequences[:4]:
            kv_cache.close()
        del sequences[:4]
        device.faults.fail("disk_read", 1, Refused("unreadable"))
        assert bench.manager.resize(1, bench.manager.get_quota(1) // 4)
        device.drain()
        device.faults.clear()
        num_lost = 0
        for kv_cache in sequences:
            try:
                assert kv_cache.resume()
                bench.check(kv_cache)
            except LoadFailed as failure:
                assert "are lost" in str(failure)
                num_lost += 1
            kv_cache.close()
        finish(bench)
        assert num_lost == bench.manager.get_statistics().count_drops(DropReason.FAILURE) == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_what_is_left_of_a_trimmed_match_is_whole(lost: int) -> None:
    """With `reuse_match_backoff` the end of a match is taken off, and what is left is looked for again: a block that begins alike and is
    lost may serve it no more than the match."""
    device = SimulatedDevice(1)
    with Bench(tiered_config(12, [("disk", 16)], reuse_match_backoff=1), device) as bench:
        texts = [[1, 2, 3, last] for last in (4, 5)]
        sequences = []
        for number, text in enumerate(texts):
            kv_cache = bench.manager.create_kv_cache(id=number)
            assert kv_cache.resume() and kv_cache.resize(4, 0)
            bench.engine.execute([Step(kv_cache, text, [])])
            kv_cache.commit(text)
            kv_cache.suspend()
            sequences.append(kv_cache)
        bench.suspended(2, 12 * TOKENS_PER_BLOCK).close()
        device.faults.fail("disk_read", 1, Refused("unreadable"))
        assert sequences[lost].prefetch(0)
        with contextlib.suppress(StorageIOError):
            device.drain()
        again = bench.manager.create_kv_cache(input_tokens=texts[1 - lost], id=3)
        assert again.num_committed_tokens in (0, 3)
        bench.texts[3] = [1, 2, 3][: again.num_committed_tokens]
        assert again.resume()
        bench.check(again)
        again.close()
        with pytest.raises(StorageIOError, match="are lost"):
            sequences[lost].resume()
