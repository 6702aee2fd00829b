"""Beams share what they have in common, each has page tables of its own; reorder, widen, narrow, commit: every byte is right."""

import random
from typing import Any

import numpy as np
import pytest
from hybrid_models import hybrid_config
from small_models import config_of, free_slots, manager_of, run_prompt, used_slots

from kv_cache_manager_v2 import (
    BatchPageTable,
    HostDevice,
    KVCacheManager,
    LayerGroupId,
    LayerId,
    LogicError,
    StridedPages,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step


def test_beams_cost_one_block_each() -> None:
    """102 tokens in 26 blocks of 4, the last half full. Four beams: three copies of it at the first step, nothing before."""
    with manager_of() as manager, run_prompt(manager, list(range(102))) as kv_cache:
        kv_cache.beam_width = 4
        assert kv_cache.beam_width == 4 and used_slots(manager) == 26
        tables = [kv_cache.get_base_page_indices(0, beam).tolist() for beam in range(4)]
        assert tables[1:] == tables[:1] * 3
        assert kv_cache.resize(103, 102)
        manager.check_invariants()
        assert used_slots(manager) == 29
        tables = [kv_cache.get_base_page_indices(0, beam).tolist() for beam in range(4)]
        assert len({table[25] for table in tables}) == 4
        assert all(table[:25] == tables[0][:25] for table in tables)
        with pytest.raises(ValueError, match="beam"):
            kv_cache.get_base_page_indices(0, 4)
        kv_cache.beam_width = 2
        manager.check_invariants()
        assert used_slots(manager) == 27
        kv_cache.suspend()
        manager.check_invariants()
        assert kv_cache.resume()
        manager.check_invariants()
        kv_cache.beam_width = 1
        assert used_slots(manager) == 26
        for width in (0, 2**16 + 1, 2**31):
            with pytest.raises(ValueError, match="beam_width"):
                kv_cache.beam_width = width
        assert kv_cache.beam_width == 1


def test_no_room_for_one_beam_is_no_room_for_any() -> None:
    """Five slots: two for six tokens; at the seventh three beams need two copies more, four three, and there is one too few."""
    with manager_of(num_slots=4) as manager, run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
        kv_cache.beam_width = 4
        before = manager.describe()
        assert not kv_cache.resize(7, 6)
        assert manager.describe() == before
        kv_cache.beam_width = 3
        assert kv_cache.resize(7, 6)
        manager.check_invariants()
        assert used_slots(manager) == 4


def token_of(view: Any, manager: KVCacheManager, kv_cache: Any, beam: int, position: int) -> Any:
    (index,) = manager.get_page_index_converter(LayerId(0), "key")([kv_cache.get_base_page_indices(0, beam)[position // 4]])
    return np.asarray(view)[index].reshape(4, 8)[position % 4]


def test_beams_that_share_unequally_have_room_in_their_turns() -> None:
    """Seven beams of a window of four tokens, of which 0, 1 and 6 share their blocks, and 3 and 4 theirs, in a step that adds a block to
    each and releases four blocks of each. A shared block has to be copied for all its beams but one: three copies.

    Slots taken after each turn, with pages that beams share not counted as released: 2, 4, 1, 3, 4, 1, 2; and before their turns the
    copies of later beams, which are made first, 2, 1 and 1. So 5 free slots do.
    """
    for num_free in range(10):
        with manager_of(windows=[4], num_slots=64, max_util_for_resume=1.0) as manager:
            kv_cache = run_prompt(manager, [1, 2, 3, 4])
            kv_cache.beam_width = 7
            assert kv_cache.resize(28, 4)
            kv_cache.reorder_beams([0, 0, 2, 3, 3, 5, 0])
            with run_prompt(manager, [9]) as other:
                assert other.resize(4 * (free_slots(manager) - num_free + 1), 1)
                assert free_slots(manager) == num_free
                before = manager.describe()
                assert kv_cache.resize(29, 26) is (num_free >= 5)
                manager.check_invariants()
                assert num_free >= 5 or manager.describe() == before
            kv_cache.close()


@pytest.mark.parametrize("num_free", range(8, 14))
def test_copies_of_later_beams_are_made_first(num_free: int) -> None:
    """Seven beams of ten blocks with a window of four tokens, of which 0, 4 and 6 share all their blocks, in a step that writes blocks 5 to
    9, adds a block and releases the first five. Beams 0 and 4 copy five blocks each; four blocks of each beam alone are released at once,
    the other ones by the last beam that has them.

    Slots taken after each turn: 6, 3, 0, -3, 3, 0, -4, and before beam 4's turn its five copies: 11 free slots do.
    """
    with manager_of(windows=[4], num_slots=96, max_util_for_resume=1.0) as manager:
        kv_cache = run_prompt(manager, [1, 2, 3, 4, 5])
        kv_cache.beam_width = 7
        assert kv_cache.resize(40, 5)
        kv_cache.reorder_beams([0, 6, 2, 1, 0, 5, 0])
        with run_prompt(manager, [9]) as other:
            assert other.resize(4 * (free_slots(manager) - num_free + 1), 1)
            before = manager.describe()
            assert kv_cache.resize(43, 23) is (num_free >= 11)
            manager.check_invariants()
            assert num_free >= 11 or manager.describe() == before
        kv_cache.close()


@pytest.mark.parametrize("seed", range(4))
def test_however_beams_share_a_resize_is_done_or_refused(seed: int) -> None:
    """With every number of free slots up to a few: never broken, and a refusal changes nothing."""
    random_source = random.Random(seed)
    for _ in range(12):
        windows: list[int | None] = random_source.choice([[4], [4], [8], [None, 4]])
        width = random_source.randint(2, 8)
        parents = [random_source.choice((own, 0, width // 2)) for own in range(width)]
        length = random_source.randint(8, 40)
        capacity = random_source.randint(length - 3, length + 6)
        history = random_source.randint(5, capacity)
        room = None
        for num_free in range(9):
            with manager_of(windows=windows, num_slots=256, max_util_for_resume=1.0) as manager:
                kv_cache = run_prompt(manager, [1, 2, 3, 4, 5])
                kv_cache.beam_width = width
                assert kv_cache.resize(length, 5)
                kv_cache.reorder_beams(parents)
                with run_prompt(manager, [9]) as other:
                    # The filler's blocks have a page in each layer group.
                    assert other.resize(4 * (1 + (free_slots(manager) - num_free) // len(windows)), 1)
                    before = manager.describe()
                    is_done = kv_cache.resize(capacity, history)
                    manager.check_invariants()
                    assert is_done or (manager.describe() == before and room is None), "refused with more room than was enough"
                    room = num_free if is_done and room is None else room
                kv_cache.close()


@pytest.mark.parametrize("seed", range(10))
def test_committed_tokens_come_from_the_beams_that_have_them(seed: int) -> None:
    """Each beam writes 10 * position + beam; afterwards all beams have the byte of the beam that was named, and their own behind."""
    rng = random.Random(seed)
    start, width = rng.randrange(1, 9), rng.randrange(2, 5)
    end = start + rng.randrange(1, 11)
    with manager_of() as manager, run_prompt(manager, list(range(start))) as kv_cache:
        kv_cache.beam_width = width
        assert kv_cache.resize(end, start)
        view = manager.pool_view(LayerId(0), "key")
        for beam in range(width):
            for position in range(start, end):
                token_of(view, manager, kv_cache, beam, position)[:] = 10 * position % 250 + beam
        sources = [rng.randrange(width) for _ in range(rng.randrange(1, end - start + 1))]
        kv_cache.commit([100 + i for i in range(len(sources))], beam_search_indices=sources)
        manager.check_invariants()
        for beam in range(width):
            for position in range(start, end):
                committed = position < start + len(sources)
                source = sources[position - start] if committed else beam
                assert set(token_of(view, manager, kv_cache, beam, position).tolist()) == {10 * position % 250 + source}
        num_full = (start + len(sources)) // 4
        tables = [kv_cache.get_base_page_indices(0, beam).tolist() for beam in range(width)]
        assert all(table[:num_full] == tables[0][:num_full] for table in tables)
        view.release()


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("window", [None, 1, 2, 5, 9])
@pytest.mark.parametrize("seed", range(4))
def test_what_beams_publish_is_what_was_committed(seed: int, window: int | None, stays: bool) -> None:
    """Three beams compute texts of their own, and tokens of one of them are committed, block by block from any beam that agrees with
    it. Blocks that fill up and leave the window in that same call are published with these bytes too, not with another beam's: later
    prompts that share any number of tokens read them."""
    rng = random.Random(seed)
    num_tokens = 13
    first = [rng.randrange(1000) for _token in range(num_tokens)]
    texts = [first, [rng.randrange(1000) for _token in range(num_tokens)], first[:6] + [1000 + rng.randrange(9) for _token in range(7)]]
    rng.shuffle(texts)
    chosen = texts.index(first)
    alike = next(beam for beam, text in enumerate(texts) if beam != chosen and text[:6] == first[:6])
    sources = [rng.choice([chosen, alike]) if position < 6 else chosen for position in range(num_tokens)]
    config = config_of([None] if window is None else [None, window], allow_seq_rebasing=not stays)
    device = HostDevice()
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            kv_cache.beam_width = 3
            assert kv_cache.resize(num_tokens)
            engine.execute([Step(kv_cache, texts, [[], [], []])])
            kv_cache.commit(first, beam_search_indices=sources)
            manager.check_invariants()
            for num_shared in range(1, num_tokens):
                prompt = [*first[:num_shared], 2000]
                with manager.create_kv_cache(input_tokens=prompt) as reader:
                    num_found = reader.num_committed_tokens
                    assert reader.resume() and reader.resize(len(prompt))
                    engine.execute([Step(reader, prompt[num_found:], prompt[:num_found])])
                    manager.check_invariants()
            engine.synchronize()


@pytest.mark.parametrize("seed", range(16))
def test_beam_search_in_any_order(seed: int) -> None:
    """Steps, reordering, commits, other widths, suspensions, on a device that reports races; the fake engine checks every beam.

    From seed 12 on the model has recurrent layers too: the state goes with its beam.
    """
    has_state = seed >= 12
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4])
    windows: list[int | None] = rng.choice([[None], [None, 2 * size + 1], [3 * size]])
    device = SimulatedDevice(seed)
    config = config_of(windows, tokens_per_block=size, num_slots=300)
    if has_state:
        config = hybrid_config(windows, size, quota=1 << 17)
    manager = KVCacheManager(config, device=device)
    engine = FakeEngine(config, device)
    streams = [device.default_stream(), device.create_stream()]
    kv_cache = manager.create_kv_cache()
    assert kv_cache.resume() and kv_cache.resize(5, 0)
    texts: list[list[int]] = [[1, 2, 3, 4, 5]]
    engine.execute([Step(kv_cache, texts[0], [])])
    kv_cache.commit(texts[0])
    for number in range(100):
        kind = rng.random()
        width = len(texts)
        num_committed = kv_cache.num_committed_tokens
        length = len(texts[0])
        if kind < 0.15:
            new_width = rng.randrange(1, 5)
            kv_cache.beam_width = new_width
            texts = texts[:new_width] + [list(texts[0]) for _ in range(new_width - width)]
        elif kind < 0.3:
            parents = [rng.randrange(width) for _ in range(width)]
            kv_cache.reorder_beams(parents)
            texts = [list(texts[parent]) for parent in parents]
        elif kind < 0.45 and length > num_committed:
            # All of one beam's text is what the others go on from too.
            beam = rng.randrange(width)
            sources = [beam] * (length - num_committed)
            if has_state:
                if beam != 0:
                    with pytest.raises(LogicError, match="recurrent"):
                        kv_cache.commit(texts[beam][num_committed:], sources)
                kv_cache.reorder_beams([beam] * width)
                sources = [0] * (length - num_committed)
            kv_cache.commit(texts[beam][num_committed:], sources)
            texts = [list(texts[beam]) for _ in range(width)]
        elif kind < 0.52 and length > num_committed:
            # What all have in common, if it is anything.
            common = num_committed
            while common < length and all(text[common] == texts[0][common] for text in texts):
                common += 1
            kv_cache.commit(texts[0][num_committed:common])
        elif kind < 0.58:
            kv_cache.suspend()
            manager.check_invariants()
            assert kv_cache.resume(rng.choice(streams))
        elif kind < 0.62:
            kv_cache.cuda_stream = rng.choice(streams)
        elif kind < 0.7 and not has_state:
            kept = num_committed + rng.randrange(length - num_committed + 1)
            if kept >= kv_cache.history_length:
                assert kv_cache.resize(kept)
                texts = [text[:kept] for text in texts]
        else:
            count = rng.randrange(1, size + 3)
            inputs = [[number * 100 + beam * 20 + i for i in range(count)] for beam in range(width)]
            assert kv_cache.resize(length + count, length)
            histories = texts if width > 1 else texts[0]
            engine.execute([Step(kv_cache, inputs if width > 1 else inputs[0], histories)])
            for text, tokens in zip(texts, inputs):
                text.extend(tokens)
        manager.check_invariants()
    engine.execute([Step(kv_cache, [], texts if len(texts) > 1 else texts[0])])
    kv_cache.close()
    engine.close()
    manager.check_invariants()
    assert not device.races
    manager.clear_reusable_blocks()
    for counts in manager.get_storage_statistics():
        assert counts.free == counts.total
    manager.shutdown()


def test_the_callers_buffers_are_per_beam() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
        kv_cache.beam_width = 2
        buffers = [np.zeros(6, np.int32) for _ in range(2)]
        for beam, buffer in enumerate(buffers):
            kv_cache.set_base_page_index_buf(beam, 0, buffer.data)
        assert kv_cache.resize(9, 5)
        kv_cache.reorder_beams([1, 1])
        for beam, buffer in enumerate(buffers):
            assert buffer.tolist() == kv_cache.get_base_page_indices(0, beam).tolist() + [-1] * 3
        with pytest.raises(ValueError, match="buffer"):
            kv_cache.resize(30, 9)
        kv_cache.set_base_page_index_buf(0, 0, None)
        with pytest.raises(ValueError, match="buffer"):
            kv_cache.resize(30, 9)


def test_the_stream_of_suspended_beams_is_that_of_their_next_step() -> None:
    device = HostDevice()
    with KVCacheManager(config_of(), device=device) as manager, run_prompt(manager, [1, 2, 3, 4, 5, 6]) as kv_cache:
        kv_cache.beam_width = 2
        kv_cache.suspend()
        stream = device.create_stream()
        kv_cache.cuda_stream = stream
        assert kv_cache.cuda_stream == stream
        assert kv_cache.resume() and kv_cache.resize(7, 6)
        assert kv_cache.cuda_stream == stream
        manager.check_invariants()
        kv_cache.close()
        device.destroy_stream(stream)


def test_mistakes_change_nothing() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
        kv_cache.beam_width = 2
        assert kv_cache.resize(8, 5)
        before = manager.describe()
        with pytest.raises(ValueError):
            kv_cache.beam_width = 0
        for indices in ([0], [0, 2], [0, -1]):
            with pytest.raises(ValueError):
                kv_cache.commit([6, 7], beam_search_indices=indices)
        for parents in ([0], [0, 2], [0, 1, 1]):
            with pytest.raises(ValueError):
                kv_cache.reorder_beams(parents)
        for call in (kv_cache.fork, kv_cache.reserve_transfer, lambda: kv_cache.commit_tree([6], [5])):
            with pytest.raises(LogicError, match="beams"):
                call()
        assert manager.describe() == before
        with manager.create_kv_cache(input_tokens=[1, 2, 3]) as partial:
            with pytest.raises(LogicError, match="resume"):
                partial.beam_width = 2
        kv_cache.suspend()
        kv_cache.beam_width = 3
        manager.check_invariants()
        assert kv_cache.resume()
        manager.check_invariants()
        kv_cache.beam_width = 1
        kv_cache.commit([6], beam_search_indices=[0])
        with pytest.raises(ValueError):
            kv_cache.commit([7], beam_search_indices=[1])


def test_beams_may_be_there_from_the_start() -> None:
    """Wider than one before the prompt: each beam has pages of its own for it."""
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        kv_cache.beam_width = 2
        assert kv_cache.resume() and kv_cache.resize(6)
        manager.check_invariants()
        assert used_slots(manager) == 4
        kv_cache.commit([1, 2, 3, 4, 5, 6])
        manager.check_invariants()
        # The full block is one for both, each has its own partial one.
        assert used_slots(manager) == 3


def test_beams_do_without_scratch_slots() -> None:
    with manager_of([8], num_slots=32, swa_scratch_reuse=SwaScratchReuseConfig()) as manager:
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(64, 0)
        kv_cache.commit(list(range(64)))
        with pytest.raises(LogicError, match="scratch"):
            kv_cache.beam_width = 2
        kv_cache.close()


def test_beams_are_recorded_and_run_again(tmp_path: Any) -> None:
    from kv_cache_manager_v2.replay.rerun import rerun

    path = tmp_path / "journal"
    with KVCacheManager(config_of(), device=HostDevice(), journal=path) as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
            kv_cache.beam_width = 3
            assert kv_cache.resize(7, 5)
            kv_cache.reorder_beams([2, 0, 0])
            kv_cache.commit([6, 7], [1, 2])
            kv_cache.beam_width = 2
        digest = manager.state_digest()
    assert rerun(path, HostDevice(), True).digest == digest


def test_each_beam_is_a_row_of_a_batch() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
        kv_cache.beam_width = 3
        assert kv_cache.resize(9, 5)
        table = BatchPageTable(manager, 4, 8)
        blocks = table.add_block_table(StridedPages(LayerGroupId(0)), filler=-1)
        assert [table.add(kv_cache, beam) for beam in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="beam"):
            table.add(kv_cache, 3)
        with pytest.raises(ValueError, match="already"):
            table.add(kv_cache, 1)
        table.update()
        for step in range(2):
            for beam in range(3):
                entries = kv_cache.get_base_page_indices(0, beam).tolist()
                assert blocks.rows[beam].tolist()[: len(entries)] == entries
            kv_cache.reorder_beams([2, 2, 1])
            assert kv_cache.resize(10 + step, 9)
            table.update()
        kv_cache.beam_width = 2
        with pytest.raises(LogicError, match="remove"):
            table.update()
        assert table.remove(kv_cache, 2) == 2
        table.update()


@pytest.mark.parametrize("tokens", [6, 9])
def test_a_device_that_refuses_a_copy_changes_nothing(tokens: int) -> None:
    """Four beams write into one block: three copies of its page in each of two groups of layers. Each of the six is refused in turn."""
    config = config_of([None, 8], num_slots=40)
    device = SimulatedDevice(tokens)
    manager = KVCacheManager(config, device=device)
    engine = FakeEngine(config, device)
    text = list(range(tokens))
    kv_cache = manager.create_kv_cache()
    assert kv_cache.resume() and kv_cache.resize(tokens, 0)
    engine.execute([Step(kv_cache, text, [])])
    kv_cache.commit(text)
    kv_cache.beam_width = 4
    before = manager.describe()
    num_refused = 0
    while True:
        device.faults.fail("copy", num_refused + 1, RuntimeError("no more copies"))
        digest = manager.state_digest()
        try:
            assert kv_cache.resize(tokens + 1, tokens)
        except RuntimeError:
            num_refused += 1
            assert manager.describe() == before and manager.state_digest() == digest
            manager.check_invariants()
            continue
        break
    assert num_refused == 6
    device.faults.clear()
    engine.execute([Step(kv_cache, [[100 + beam] for beam in range(4)], text)])
    engine.execute([Step(kv_cache, [], [[*text, 100 + beam] for beam in range(4)])])
    engine.synchronize()
    assert device.races == ()
    kv_cache.close()
    engine.close()
    manager.clear_reusable_blocks()
    manager.shutdown()
    device.close()
