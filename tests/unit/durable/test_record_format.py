"""Records say the same after a round trip; a file cut or changed at any byte says what came before that byte, and nothing else."""

import random

import pytest

from kv_cache_manager_v2.durable.index_snapshot import encode_state
from kv_cache_manager_v2.durable.index_state import IndexState
from kv_cache_manager_v2.durable.record_format import (
    MIXED,
    PACKED,
    BadRecordError,
    decode_mixed,
    encode_clear_all,
    encode_clear_scope,
    encode_free,
    encode_mixed,
    encode_node,
    encode_order,
    encode_page,
    encode_root,
    frame,
    split_frames,
)
from kv_cache_manager_v2.replay.stored_index import list_nodes, list_stored_pages


def tokens_of(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def outline(state: IndexState) -> tuple[object, ...]:
    nodes = {number: (node.parent, node.form, node.tokens, node.lora_id, node.salt) for number, node in list_nodes(state).items()}
    pages = {place: (page.node, page.life_cycle, page.generation, page.checksums) for place, page in list_stored_pages(state).items()}
    return nodes, list(pages.items()), state.next_node, state.next_generation


HISTORY = (
    encode_root(1, None, None) + encode_node(2, 1, tokens_of(5, 6), PACKED),
    encode_page(2, 1, 7, 0, 0, [-5, 6]),
    encode_root(3, None, "a tenant") + encode_node(4, 3, encode_mixed([7, b"digest", 8]), MIXED) + encode_page(4, 2, 8, 1, 1, [1]),
    encode_free(7, 0),
    encode_node(5, 2, tokens_of(9), PACKED) + encode_page(5, 3, 7, 0, 0, [8, 9]) + encode_page(2, 4, 9, 0, 0, [10, 11]),
    encode_clear_scope(None, "a tenant"),
    encode_page(4, 5, 10, 1, 1, [1]),
)


def states_of(history: tuple[bytes, ...]) -> list[tuple[object, ...]]:
    """The outline after none of the records, after the first, and so on."""
    state = IndexState()
    outlines = [outline(state)]
    for records in history:
        state.apply(records)
        outlines.append(outline(state))
    return outlines


def test_the_last_word_counts() -> None:
    state = IndexState()
    for records in HISTORY:
        state.apply(records)
    assert sorted(list_nodes(state)) == [1, 2, 5], "the tenant's scope is cleared, with all below it"
    found = {place: page.node for place, page in list_stored_pages(state).items()}
    assert found == {(0, 7): 5, (0, 9): 2}, "a page of a forgotten node is none"
    assert (state.next_node, state.next_generation) == (6, 6), "numbers are never given again"


def test_a_snapshot_says_the_same() -> None:
    state = IndexState()
    for records in HISTORY:
        state.apply(records)
    again = IndexState()
    for records in encode_state(state):
        again.apply(records)
    assert again.is_whole and outline(again) == outline(state)


def test_everything_can_be_cleared() -> None:
    state = IndexState()
    for records in HISTORY[:5]:
        state.apply(records)
    state.apply(encode_clear_all())
    assert not list_nodes(state) and not list_stored_pages(state) and state.next_node == 6


def test_pages_get_new_generations_and_descriptions() -> None:
    state = IndexState()
    for records in HISTORY[:3]:
        state.apply(records)
    places = {place: page.generation for place, page in list_stored_pages(state).items()}
    (group, slot), generation = next(iter(places.items()))
    state.apply(encode_order(group, [slot, 70, 5, 1000, 71, 6]) + encode_order(9, [slot, 72, 7]))
    assert {place: page.generation for place, page in list_stored_pages(state).items()} == {**places, (group, slot): 70} != places
    assert state.next_generation == 73, "what names no page has its generation all the same"
    again = IndexState()
    for records in encode_state(state):
        again.apply(records)
    (page,) = [page for page in again.list_pages() if again.slots[page] == slot and again.pool_group_of(page) == group]
    assert again.description_of(page) == 5 and again.generations[page] == 70 != generation
    for wrong in ([-1, 1, 1], [1, -1, 1], [1, 1, -1], [1, 1 << 60, 1]):
        with pytest.raises(BadRecordError):
            state.apply(encode_order(group, wrong))


def test_digests_are_kept_in_full() -> None:
    tokens: list[int | bytes] = [1, b"aaaa", b"\xff\xff\xff\xffcccc", 0]
    assert decode_mixed(encode_mixed(tokens)) == tokens
    assert encode_mixed([b"aaaa", b"\xff\xff\xff\xffcccc"]) != encode_mixed([b"aaaa\xff\xff\xff\xff", b"cccc"])


def test_cut_anywhere_it_says_what_came_before() -> None:
    outlines = states_of(HISTORY)
    data = b"".join(frame(records) for records in HISTORY)
    ends = [0]
    for records in HISTORY:
        ends.append(ends[-1] + len(frame(records)))
    for length in range(len(data) + 1):
        frames, num_left, is_torn = split_frames(data[:length], 0)
        whole = len([end for end in ends[1:] if end <= length])
        assert len(frames) == whole and num_left == length - ends[whole] and is_torn == (num_left > 0)
        assert states_of(tuple(frames))[-1] == outlines[whole]


def test_changed_anywhere_it_says_what_came_before() -> None:
    data = bytearray(b"".join(frame(records) for records in HISTORY))
    ends = [0]
    for records in HISTORY:
        ends.append(ends[-1] + len(frame(records)))
    for position in range(len(data)):
        for bit in (1, 128):
            data[position] ^= bit
            frames, _num_left, is_torn = split_frames(bytes(data), 0)
            data[position] ^= bit
            whole = len([end for end in ends[1:] if end <= position])
            assert frames == list(HISTORY[:whole]) and is_torn, f"byte {position}"


@pytest.mark.parametrize("seed", range(40))
def test_records_that_nothing_wrote_are_refused_or_harmless(seed: int) -> None:
    """With a right checksum, as another program could make them: an error of its own kind, and a law that still holds."""
    choices = random.Random(seed)
    state = IndexState()
    for _round in range(40):
        records = bytearray(choices.choice(HISTORY))
        for _change in range(choices.randrange(4)):
            records[choices.randrange(len(records))] = choices.randrange(256)
        try:
            state.apply(bytes(records[: choices.randrange(len(records) + 1)]))
        except BadRecordError:
            continue
        nodes = list_nodes(state)
        assert all(node < state.next_node for node in nodes)
        assert all(node.parent == 0 or node.parent in nodes for node in nodes.values())
