"""A device that refuses something at any place of a call: the call says so and has changed nothing that matters, or has been
done after all; nothing is lost, every byte is right, and the same call passes when the device works again."""

from collections.abc import Callable
from typing import Any

import pytest
from hybrid_models import hybrid_config
from refused_work import PartlyCopyingDevice, Refused, Story
from small_models import BYTES_PER_TOKEN, config_of
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import CorruptedError, GpuCacheTierConfig, HostCacheTierConfig, PageMoveError, SnapshotPolicy
from kv_cache_manager_v2.base.errors import PartlyCopiedError
from kv_cache_manager_v2.testing import SimulatedDevice, Step

Make = Callable[[int], tuple[Story, Callable[[], Any]]]
KINDS = ("copy", "wait", "record", "create_stream")


def refuse_each(make: Make, kind: str, lasts: bool, moves: bool = False) -> int:
    """Let the n-th call of a kind be refused (``lasts``: and all behind it), for every n; how many were refused in an error.

    ``moves``: pages may be on other levels afterwards.
    """
    num_errors = 0
    for nth in range(1, 100):
        story, call = make(nth)
        before, digest = story.manager.describe(), story.manager.state_digest()
        for further in range(50 if lasts else 1):
            story.device.faults.fail(kind, nth + further, Refused(f"{kind} {nth}"))
        refused = False
        try:
            assert call() is not False
        except (Refused, PageMoveError) as error:
            refused = True
            num_errors += 1
            assert f"{kind} {nth}" in str(error)
        has_fired = story.device.faults.num_fired > 0
        story.device.faults.clear()
        if refused:
            assert moves or (story.manager.describe() == before and story.manager.state_digest() == digest)
            story.check()
            assert call() is not False
        story.finish()
        if not has_fired:
            return num_errors
    raise AssertionError("a call that never ends")


# -- a step that copies what another owner has ----------------------------------------------------------------------------


def step_behind_a_lease(
    windows: list[int | None], num_slots: int, committed: int, history: int, make_device: Callable[[int], Any] = SimulatedDevice
) -> Make:
    """11 tokens in 3 blocks; another machine has the last one, so that the next step, from ``history``, copies it."""

    def make(seed: int) -> tuple[Story, Callable[[], Any]]:
        story = Story(config_of(windows, num_slots=num_slots), make_device(seed))
        kv_cache = story.begin(1, range(11), 0, committed)
        if committed < 10:
            assert kv_cache.resize(11, 10)
        lease = kv_cache.reserve_transfer(2)
        story.at_end = lease.settle

        def step() -> bool:
            # What lies between is computed elsewhere.
            return kv_cache.resize(history + 1, history)

        return story, step

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("committed", [0, 8, 10])
def test_a_copy_has_the_last_slot(kind: str, lasts: bool, committed: int) -> None:
    """Four slots, window of 8. At 11 the next token reads 4..11, so block 0 is passed, private or published, once block 2 is copied."""
    num_errors = refuse_each(step_behind_a_lease([8], 4, committed, 11), kind, lasts)
    assert num_errors == (1 if kind == "copy" else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("committed", [0, 8])
def test_copies_of_two_groups_are_all_undone(kind: str, committed: int) -> None:
    """Six pages of 8 slots. At 15 windows of 8 and of 12 read 8..15 and 4..15: 2 + 1 pages go, 2 copies and 2 new ones are needed."""
    num_errors = refuse_each(step_behind_a_lease([8, 12], 8, committed, 15), kind, False)
    assert num_errors == (2 if kind == "copy" else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lasts", [False, True])
def test_a_beam_has_its_copy_before_another_ones_window_leaves(kind: str, lasts: bool) -> None:
    """10 slots: another sequence has 3, beam 0 three, beams 1 and 2 three together. At 11 beam 0 alone gives a page, beam 1 needs one."""

    def make(seed: int) -> tuple[Story, Callable[[], Any]]:
        story = Story(config_of([8], num_slots=10), SimulatedDevice(seed))
        kv_cache = story.begin(1, [7, 8], 0, 0)
        kv_cache.beam_width = 3
        assert kv_cache.resize(11, 2)
        texts = [[100 * beam + position for position in range(9)] for beam in range(3)]
        story.engine.execute([Step(kv_cache, texts, [[7, 8]] * 3)])
        kv_cache.reorder_beams([0, 1, 1])
        story.texts[1] = [[7, 8, *texts[beam]] for beam in (0, 1, 1)]
        story.begin(2, range(50, 62), 1, 0)
        return story, lambda: kv_cache.resize(12, 11)

    num_errors = refuse_each(make, kind, lasts)
    assert num_errors == (1 if kind == "copy" else 0)


# -- beams ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("checkpoints", [0, 2])
def test_states_of_beams_are_copied_at_once(kind: str, lasts: bool, checkpoints: int) -> None:
    """Beams 0 and 2 go on from beam 1, whose recurrent state they get in the slots of their own: one batch, whatever it is made of."""

    def make(seed: int) -> tuple[Story, Callable[[], Any]]:
        story = Story(hybrid_config([None, 8], state_checkpoints=checkpoints), SimulatedDevice(seed))
        kv_cache = story.begin(1, range(6), 0, 6)
        kv_cache.beam_width = 3
        assert kv_cache.resize(7, 6)
        story.write(kv_cache, 100)

        def reorder() -> None:
            kv_cache.reorder_beams([1, 1, 1])
            story.texts[1] = [story.texts[1][1]] * 3

        return story, reorder

    num_errors = refuse_each(make, kind, lasts)
    assert num_errors == (1 if kind == "copy" else 0)


@pytest.mark.parametrize("kind", [*KINDS, "fill"])
@pytest.mark.parametrize("matches", [False, True])
def test_first_states_of_beams_come_together_or_not_at_all(kind: str, matches: bool) -> None:
    """Two beams before the first resume: each begins with zeros, or with a copy of the snapshot, which has two pools."""

    def make(seed: int) -> tuple[Story, Callable[[], Any]]:
        story = Story(hybrid_config([None], quota=1 << 13), SimulatedDevice(seed))
        text = list(range(8))
        story.begin(1, text, 0, 8).close()
        story.open.clear()
        kv_cache = story.manager.create_kv_cache(input_tokens=text if matches else None, id=2)
        assert kv_cache.num_committed_tokens == (8 if matches else 0)
        kv_cache.beam_width = 2
        story.open.append(kv_cache)
        story.texts[2] = [text, text] if matches else [[], []]
        return story, lambda: kv_cache.resume(story.streams[1])

    num_errors = refuse_each(make, kind, False)
    assert (num_errors > 1) == (kind == ("copy" if matches else "fill"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("has_state", [False, True])
def test_all_beams_come_up_or_none(kind: str, waits: bool, has_state: bool) -> None:
    """Three beams on level 1, in part with pages of their own; another sequence drove them down."""

    def make(seed: int) -> tuple[Story, Callable[[], Any]]:
        layer_bytes = 2 * BYTES_PER_TOKEN * TOKENS_PER_BLOCK
        config = tiered_config(8, [("host", 20)])
        if has_state:
            tiers: list[Any] = [GpuCacheTierConfig(12 * layer_bytes), HostCacheTierConfig(40 * layer_bytes)]
            config = hybrid_config([None], cache_tiers=tiers, num_state_layers=1)
        story = Story(config, SimulatedDevice(seed))
        kv_cache = story.begin(1, range(6), 0, 6)
        kv_cache.beam_width = 3
        assert kv_cache.resize(7, 6)
        story.write(kv_cache, 100)
        kv_cache.suspend()
        num_blocks = story.manager.get_storage_statistics()[0].total
        other = story.begin(2, range(50, 50 + 4 * num_blocks), 1, 0)
        other.close()
        story.open.remove(other)

        def resume() -> bool:
            done = kv_cache.resume(story.streams[2], waits)
            while done and not kv_cache.ready:
                pass
            return done

        return story, resume

    refuse_each(make, kind, False, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_beams", [1, 2])
@pytest.mark.parametrize("waits", [False, True])
def test_a_snapshot_that_came_up_for_nothing_is_in_line_again(kind: str, waits: bool, num_beams: int) -> None:
    """A prompt begins with a snapshot on level 1; the copy to the sequence's own state is refused once the snapshot is on level 0."""

    def make(seed: int) -> tuple[Story, Callable[[], Any]]:
        tiers = [GpuCacheTierConfig(2048), HostCacheTierConfig(1 << 14)]
        config = hybrid_config(cache_tiers=tiers, max_util_for_resume=1.0, snapshot_policy=SnapshotPolicy(at_close=True))
        story = Story(config, SimulatedDevice(seed))
        text = list(range(8))
        story.begin(1, text, 0, 8).close()
        story.open.clear()
        for number in range(2, 8):
            story.begin(number, range(10 * number, 10 * number + 8), 0, 0).suspend()
        kv_cache = story.manager.create_kv_cache(input_tokens=text, id=1)
        assert kv_cache.num_committed_tokens == 8
        kv_cache.beam_width = num_beams
        story.texts[1] = text if num_beams == 1 else [text] * num_beams
        story.open.append(kv_cache)

        def resume() -> bool:
            done = kv_cache.resume(story.streams[1], waits)
            while done and not kv_cache.ready:
                pass
            return done

        return story, resume

    num_errors = refuse_each(make, kind, False, True)
    # Up, and then to the state's own slot: each from its pools.
    assert kind != "copy" or num_errors >= 2


def test_a_refused_resume_of_beams_moves_nothing() -> None:
    """4 slots: three beams of one block each; two slots are locked, so two beams would fit, and would have to be onboarded for it."""
    device = SimulatedDevice(1)
    with Bench(tiered_config(4, [("host", 8)]), device) as bench:
        manager = bench.manager
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(2)
        kv_cache.beam_width = 3
        assert kv_cache.resize(3, 2)
        kv_cache.suspend()
        filler = bench.suspended(7, 16)
        filler.close()
        other = manager.create_kv_cache()
        assert other.resume() and other.resize(8)
        before, copied = manager.describe(), (bench.num_copied(1, 0), bench.num_copied(0, 1))
        assert copied[1] == 3
        assert not kv_cache.resume()
        assert manager.describe() == before and copied == (bench.num_copied(1, 0), bench.num_copied(0, 1))
        refusal = manager.last_refusal
        assert refusal is not None and refusal.asked == 3
        other.close()
        assert kv_cache.resume()
        kv_cache.close()


# -- a device that takes copies one by one, and refuses one in the middle of a batch --------------------------------------


def break_in_the_middle(story: Story, call: Callable[[], Any]) -> None:
    """The bytes of pages that the sequence still has may be other sequences' by now: every later call is refused, and memory is freed."""
    story.device.faults.fail("copy", 1, Refused("not now"))
    with pytest.raises(PartlyCopiedError, match=r"of \d+ copies \d+ were enqueued, then not now"):
        call()
    assert story.device.faults.num_fired == 1
    for attempt in (story.manager.probe_reuse, call, *[kv_cache.close for kv_cache in story.open]):
        with pytest.raises(CorruptedError, match="not now"):
            attempt()
    story.engine.close()
    story.manager.shutdown()
    for stream in story.streams:
        story.device.destroy_stream(stream)
    story.device.close()


def test_states_of_beams_that_were_written_over() -> None:
    story = Story(hybrid_config([None, 8], state_checkpoints=2), PartlyCopyingDevice())
    kv_cache = story.begin(1, range(6), 0, 6)
    kv_cache.beam_width = 3
    assert kv_cache.resize(7, 6)
    story.write(kv_cache, 100)
    break_in_the_middle(story, lambda: kv_cache.reorder_beams([1, 1, 1]))


def test_a_tail_stays_published_where_its_resume_fails() -> None:
    """Two slots beside another sequence's, two blocks that come up into them, and no room for an own copy of the second, which is cached:
    the sequence takes it out of the tree instead; but not if the device has no stream for what is on its way."""
    device = SimulatedDevice(1)
    with Bench(tiered_config(3, [("host", 4)]), device) as bench:
        manager = bench.manager
        other = manager.create_kv_cache(id=4)
        assert other.resume() and bench.write(other, 1)
        bench.suspended(1, 6, commit=True).close()
        tokens = list(bench.texts[1])
        kv_cache = manager.create_kv_cache(input_tokens=tokens, id=2)
        bench.texts[2] = list(tokens)
        bench.suspended(3, 8).close()
        assert kv_cache.num_committed_tokens == 6 and bench.counts(1) == (4, 2)
        device.faults.fail("create_stream", 2, Refused("no stream"))
        with pytest.raises(PageMoveError, match="no stream"):
            kv_cache.resume(wait=False)
        assert device.faults.num_fired == 1
        assert manager.probe_reuse(None, tokens) == 6
        manager.check_invariants()
        assert kv_cache.resume(wait=False)
        assert manager.probe_reuse(None, tokens) == 4
        kv_cache.suspend()
        assert kv_cache.resume()
        bench.check(kv_cache)
        kv_cache.close()
        other.close()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_tail_that_is_taken_back_waits_for_its_early_copy(seed: int, waits: bool) -> None:
    """It was cached, and is still being copied down when a sequence takes it out of the tree, and writes into it; another one has the
    rest of the pool."""
    device = SimulatedDevice(seed)
    with Bench(tiered_config(3, [("host", 4)], write_policy="through"), device) as bench:
        streams = [device.create_stream() for _ in range(2)]
        other = bench.manager.create_kv_cache(id=3)
        assert other.resume(streams[0]) and bench.write(other, 1)
        first = bench.manager.create_kv_cache(id=1)
        assert first.resume(streams[0]) and bench.write(first, 6, commit=True)
        first.close()
        bench.texts[2] = list(bench.texts[1])
        kv_cache = bench.manager.create_kv_cache(input_tokens=bench.texts[2], id=2)
        assert kv_cache.num_committed_tokens == 6
        assert kv_cache.resume(streams[1], waits)
        assert bench.manager.probe_reuse(None, bench.texts[2]) == 4
        while not kv_cache.ready:
            pass
        assert bench.write(kv_cache, 2)
        bench.check(kv_cache)
        kv_cache.close()
        other.close()
    assert device.races == ()
