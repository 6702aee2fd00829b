"""The fake engine writes what the model would, sees every wrong byte that a layer reads, and no other."""

import random

import pytest

from kv_cache_manager_v2.base.errors import LogicError
from kv_cache_manager_v2.base.ids import BAD_PAGE_INDEX, PageIndexMode
from kv_cache_manager_v2.config.layer_config import SsmLayerConfig
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.testing import FakeEngine, KVMismatch, Step
from kv_cache_manager_v2.testing.token_layout import TokenLayout
from kv_cache_manager_v2.testing.token_values import buffer_key, prefix_values, token_numbers

from .models import MODELS, TOKENS_PER_BLOCK, attention, model, prompt, state
from .paged_stand_in import StandInManager, StandInScratch, StandInSequence, bytes_at, flip_byte

GRANULARITY_BYTES = 4096


@pytest.fixture
def device():
    device = HostDevice(GRANULARITY_BYTES)
    yield device
    device.close()


def generate(engine, sequence, tokens, chunks):
    """Prefill in chunks of these lengths, then a token at a time to the end."""
    at = 0
    lengths = list(chunks) + [1] * (len(tokens) - sum(chunks))
    for length in lengths:
        sequence.grow(at + length)
        engine.execute([Step(sequence, tokens[at : at + length], tokens[:at])])
        at += length


def expected_bytes(config, layer_id, role, size, override, tokens, token):
    """What one token of a buffer owns, by the definition."""
    tokens_per_page = override or config.tokens_per_block
    value = int(prefix_values(token_numbers(tokens))[token]) ^ buffer_key(layer_id, role)
    return TokenLayout(size, tokens_per_page).token_bytes(value, token % tokens_per_page)


@pytest.mark.parametrize("mode", list(PageIndexMode))
@pytest.mark.parametrize("name", list(MODELS))
def test_a_correct_run_has_no_mismatch_and_every_byte_is_there(device, name, mode):
    config = MODELS[name]
    tokens = prompt(1, 30)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device, index_mode=mode)
        sequence = StandInSequence(manager)
        generate(engine, sequence, tokens, [9, 8, 1, 5])
        assert engine.mismatches == 0
        assert engine.num_steps == 4 + 7
        assert engine.num_tokens == 30
        for layer in config.layers:
            for buffer in layer.buffers:
                if isinstance(layer, SsmLayerConfig):
                    value = int(prefix_values(token_numbers(tokens))[-1]) ^ buffer_key(layer.layer_id, buffer.role)
                    address = manager.state_address(sequence, layer.layer_id, buffer.role)
                    assert bytes_at(address, buffer.size) == TokenLayout(buffer.size, 1).token_bytes(value, 0)
                    continue
                layout = TokenLayout(buffer.size, buffer.tokens_per_block_override or config.tokens_per_block)
                for token in range(30):
                    page, in_page = manager.address_of(sequence, layer.layer_id, buffer.role, token)
                    beg, end = layout.first_byte(in_page), layout.first_byte(in_page + 1)
                    expected = expected_bytes(
                        config, layer.layer_id, buffer.role, buffer.size, buffer.tokens_per_block_override, tokens, token
                    )
                    assert bytes_at(page + beg, end - beg) == expected


@pytest.mark.parametrize("mode", list(PageIndexMode))
@pytest.mark.parametrize("name", list(MODELS))
def test_a_flipped_byte_is_seen_exactly_where_a_layer_reads_it(device, name, mode):
    """For random bytes: by the first step whose window shows the token, and by none where no window does."""
    config = MODELS[name]
    rng = random.Random(f"{name}/{int(mode)}")
    num_seen = 0
    for _ in range(60):
        history, num_input = rng.randrange(1, 25), rng.randrange(0, 5)
        tokens = prompt(rng.randrange(1000), history + num_input)
        layer = rng.choice([layer for layer in config.layers if not isinstance(layer, SsmLayerConfig)])
        buffer = rng.choice(layer.buffers)
        token = rng.randrange(history)
        tokens_per_page = buffer.tokens_per_block_override or TOKENS_PER_BLOCK
        layout = TokenLayout(buffer.size, tokens_per_page)
        num_bytes = layout.first_byte(token % tokens_per_page + 1) - layout.first_byte(token % tokens_per_page)
        if num_bytes == 0:
            continue
        with StandInManager(config, device) as manager:
            engine = FakeEngine(config, device, index_mode=mode, raise_on_mismatch=False)
            sequence = StandInSequence(manager, history + num_input)
            engine.execute([Step(sequence, tokens[:history], [])])
            page, in_page = manager.address_of(sequence, layer.layer_id, buffer.role, token)
            address = page + layout.first_byte(in_page) + rng.randrange(num_bytes)
            original = bytes_at(page + layout.first_byte(in_page), num_bytes)
            flip_byte(address)
            found = bytes_at(page + layout.first_byte(in_page), num_bytes)
            engine.execute([Step(sequence, tokens[history:], tokens[:history])])
            window = layer.window_size
            # The query at position `history` reads that position and the window_size - 1 before it.
            is_read = window is None or token > history - window or token < (layer.num_sink_tokens or 0)
            assert engine.mismatches == (1 if is_read else 0)
            if is_read:
                num_seen += 1
                seen = engine.first_mismatches[0]
                assert (seen.layer, seen.role, seen.beam) == (layer.layer_id, buffer.role, 0)
                assert (seen.block, seen.token) == (token // TOKENS_PER_BLOCK, token)
                assert (seen.expected, seen.found) == (original, found)
                assert seen.sequence == "sequence"
    assert num_seen > 10


def test_a_chunk_reads_the_union_of_its_windows(device):
    # Window 6, queries at 20 to 23: positions 15 to 23. Block 3 holds 12 to 15, so it must be there; block 2 need not.
    config = model(attention(0, window=6))
    tokens = prompt(6, 24)
    for missing, num_wrong in ((2, 0), (3, 2), (4, 8)):  # key and value of token 15; of tokens 16 to 19
        with StandInManager(config, device) as manager:
            engine = FakeEngine(config, device, raise_on_mismatch=False)
            sequence = StandInSequence(manager, 24)
            engine.execute([Step(sequence, tokens[:20], [])])
            sequence.tables[0][0][missing] = BAD_PAGE_INDEX
            engine.execute([Step(sequence, tokens[20:], tokens[:20])])
            assert engine.mismatches == num_wrong
            for seen in engine.first_mismatches:
                assert seen.block == missing
                assert seen.found is None


def test_input_without_a_page_is_a_mismatch(device):
    config = model(attention(0, window=2), attention(1))
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 8)
        sequence.tables[0][1][1] = BAD_PAGE_INDEX
        with pytest.raises(KVMismatch) as caught:
            engine.execute([Step(sequence, prompt(1, 8), [])])
        assert (caught.value.layer, caught.value.block, caught.value.token, caught.value.found) == (1, 1, 4, None)


def test_pages_that_were_mixed_up_are_seen(device):
    config = MODELS["windows"]
    tokens = prompt(2, 13)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 13)
        engine.execute([Step(sequence, tokens[:12], [])])
        table = sequence.tables[0][1]
        table[0], table[1] = table[1], table[0]
        with pytest.raises(KVMismatch) as caught:
            engine.execute([Step(sequence, tokens[12:], tokens[:12])])
        assert caught.value.layer == 20
        assert caught.value.token == 0
        assert "token 4" in caught.value.explanation


def test_layers_that_overwrite_each_other_are_seen(device):
    config = model(attention(0), attention(1))
    tokens = prompt(2, 8)
    with StandInManager(config, device) as manager:
        manager.places[1, "value"] = manager.places[0, "value"]
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 8)
        engine.execute([Step(sequence, tokens[:7], [])])  # each layer reads what it has just written
        with pytest.raises(KVMismatch) as caught:
            engine.execute([Step(sequence, tokens[7:], tokens[:7])])
        assert (caught.value.layer, caught.value.role) == (0, "value")


def test_a_wrong_prefix_is_seen_although_the_token_is_right(device):
    config = model(attention(0))
    tokens = prompt(2, 9)
    other = tokens.copy()
    other[0] += 1
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device, raise_on_mismatch=False)
        sequence = StandInSequence(manager, 9)
        engine.execute([Step(sequence, tokens[:8], [])])
        engine.execute([Step(sequence, other[8:], other[:8])])
        assert engine.mismatches == 16


def test_the_batch_says_which_sequence(device):
    config = model(attention(0))
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device, raise_on_mismatch=False)
        sequences = [StandInSequence(manager, 9, id=f"s{number}") for number in range(3)]
        tokens = [prompt(number, 9) for number in range(3)]
        engine.execute([Step(sequences[number], tokens[number][:8], []) for number in range(3)])
        sequences[1].tables[0][0][1] = sequences[2].tables[0][0][1]
        engine.execute([Step(sequences[number], tokens[number][8:], tokens[number][:8]) for number in range(3)])
        assert engine.mismatches == 8
        assert {seen.sequence for seen in engine.first_mismatches} == {"s1"}
        assert "'s2'" in engine.first_mismatches[0].explanation


# -- scratch ----------------------------------------------------------------------------------------------------------


def test_sequences_with_and_without_scratch_in_one_batch(device):
    config = model(attention(0, window=5), attention(1), attention(2, window=5, override=2), scratch=True)
    tokens = [prompt(number, 20) for number in range(2)]
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequences = [StandInSequence(manager, 20, id=number) for number in range(2)]
        # Layers 0 and 2 differ in page size: each has a pool with its own 2 sub-pages a slot, so a slot holds one
        # block.
        sequences[0].tables[0][0][:4] = [BAD_PAGE_INDEX] * 4
        sequences[0].scratch[0] = StandInScratch(0, 4, [manager.allocate(0) for _ in range(4)])
        engine.execute([Step(sequences[number], tokens[number], []) for number in range(2)])
        sequences[0].scratch.clear()
        engine.execute([Step(sequences[number], [], tokens[number]) for number in range(2)])
        assert engine.mismatches == 0


# -- recurrent state, beams -------------------------------------------------------------------------------------------


def test_a_state_of_another_length_is_seen(device):
    config = model(state(4))
    tokens = prompt(8, 12)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device, raise_on_mismatch=False)
        sequence = StandInSequence(manager, 12)
        engine.execute([Step(sequence, tokens[:6], [])])
        engine.execute([Step(sequence, tokens[6:8], tokens[:6])])
        assert engine.mismatches == 0
        engine.execute([Step(sequence, tokens[6:7], tokens[:6])])  # back by two tokens: the state cannot
        assert engine.mismatches == 2
        seen = engine.first_mismatches[0]
        assert (seen.layer, seen.role, seen.block, seen.token) == (4, "conv", 0, 5)
        assert "token 7" not in seen.explanation  # that token is not in this batch
        engine.execute([Step(sequence, tokens[7:], tokens[:7])])
        assert engine.mismatches == 2


def test_a_missing_state_is_seen(device):
    config = model(state(0))
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 6)
        engine.execute([Step(sequence, prompt(1, 5), [])])
        sequence.states[0][0] = BAD_PAGE_INDEX
        with pytest.raises(KVMismatch) as caught:
            engine.execute([Step(sequence, [3], prompt(1, 5))])
        assert caught.value.found is None


def test_beams_share_what_is_equal_and_differ_where_they_differ(device):
    config = MODELS["hybrid"]
    history = prompt(4, 8)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device, raise_on_mismatch=False)
        sequence = StandInSequence(manager, 12, beam_width=3)
        for beam in (1, 2):
            for group in range(len(manager.num_allocated)):
                sequence.tables[beam][group][:2] = sequence.tables[0][group][:2]
        engine.execute([Step(sequence, history, [])])
        inputs = [[1, 2], [1, 3], [4, 2]]
        engine.execute([Step(sequence, inputs, history)])
        histories = [history.tolist() + tokens for tokens in inputs]
        engine.execute([Step(sequence, [7], histories)])
        assert engine.mismatches == 0
        assert engine.num_tokens == 3 * (8 + 2 + 1)
        # Beam 2 writes into beam 1's partial page: as after a fork that forgot to copy.
        full_group = manager.group_of_layer[3]
        sequence.tables[2][full_group][2] = sequence.tables[1][full_group][2]
        histories = [tokens + [7] for tokens in histories]
        engine.execute([Step(sequence, [[8], [9], [10]], histories)])
        # Layer 3, key and value: beam 1's token 11 was overwritten, beam 2 misses its tokens 8, 9 and 10.
        assert engine.mismatches == 2 * 4
        assert {(seen.layer, seen.beam, seen.block) for seen in engine.first_mismatches} == {(3, 1, 2), (3, 2, 2)}


# -- the engine itself ------------------------------------------------------------------------------------------------


def test_checked_bytes_are_counted(device):
    # Window 6, 8 bytes per token, key and value. Prefill: all 10 tokens. Then history 10: tokens 5 to 9 and the input.
    # Then no input at history 11: tokens 6 to 10.
    config = model(attention(0, window=6))
    tokens = prompt(1, 11)
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        sequence = StandInSequence(manager, 11)
        for beg, end, num_checked in ((0, 10, 10), (10, 11, 16), (11, 11, 21)):
            engine.execute([Step(sequence, tokens[beg:end], tokens[:beg])])
            assert engine.num_checked_bytes == num_checked * 8 * 2


def test_misuse_launches_nothing(device):
    config = model(attention(0))
    with StandInManager(config, device) as manager:
        engine = FakeEngine(config, device)
        good, bad = StandInSequence(manager, 8), StandInSequence(manager, 8)
        page, _ = manager.address_of(good, 0, "key", 0)
        bad.is_active = False
        with pytest.raises(LogicError):
            engine.execute([Step(good, prompt(1, 8), []), Step(bad, prompt(1, 8), [])])
        bad.is_active = True
        with pytest.raises(LogicError, match="8.*7.*2"):
            engine.execute([Step(good, prompt(1, 8), []), Step(bad, prompt(1, 2), prompt(1, 7))])
        two_beams = StandInSequence(manager, 8, beam_width=2)
        with pytest.raises(ValueError):
            engine.execute([Step(good, prompt(1, 8), []), Step(two_beams, [[1, 2], [1]], [])])
        with pytest.raises(ValueError):
            engine.execute([Step(good, prompt(1, 8), []), Step(two_beams, [[1], [1], [1]], [])])
        assert bytes_at(page, 32) == bytes(32)
        assert engine.num_steps == 0
        engine.execute([])


def test_errors_are_raised_once_and_can_be_left_out(device):
    config = model(attention(0))
    tokens = prompt(1, 8)
    with StandInManager(config, device) as manager:
        with FakeEngine(config, device) as engine:
            sequence = StandInSequence(manager, 8)
            engine.execute([Step(sequence, tokens, [])])
            flip_byte(manager.address_of(sequence, 0, "key", 0)[0])
            with pytest.raises(KVMismatch):
                engine.execute([Step(sequence, [], tokens)])
            engine.synchronize()
            engine.raise_on_mismatch = False
            engine.execute([Step(sequence, [], tokens)])
            assert engine.mismatches == 2
            assert len(engine.first_mismatches) == 2


def test_leaving_the_context_keeps_the_users_error(device):
    config = model(attention(0))
    with pytest.raises(ZeroDivisionError):
        with FakeEngine(config, device):
            raise ZeroDivisionError


def test_a_mismatch_survives_pickling():
    import pickle

    seen = KVMismatch(3, "key", 1, 2, 9, b"12345678", None, "s", "why")
    again = pickle.loads(pickle.dumps(seen))
    assert isinstance(again, KVMismatch)
    assert vars(again) == vars(seen)
    assert "no page" in str(again)
