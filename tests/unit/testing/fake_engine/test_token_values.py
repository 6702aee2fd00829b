"""The values that the fake engine stores name a token and everything before it."""

from array import array

import numpy as np
import pytest

from kv_cache_manager_v2.testing.token_values import buffer_key, prefix_values, token_numbers, tree_values

MASK = 2**64 - 1


def test_values_are_the_sum_of_mixed_tokens():
    # The same arithmetic, one token at a time in Python's own ints.
    tokens = [5, 0, 2**31 - 1, 5, 5]
    expected, total = [], 0
    for position, token in enumerate(tokens):
        x = ((position + 1) * 0x9E3779B97F4A7C15 + token * 0xD1342543DE82EF95) & MASK
        x ^= x >> 30
        x = x * 0xBF58476D1CE4E5B9 & MASK
        x ^= x >> 27
        x = x * 0x94D049BB133111EB & MASK
        x ^= x >> 31
        total = (total + x) & MASK
        expected.append(total)
    assert prefix_values(token_numbers(tokens)).tolist() == expected


def test_a_node_of_a_tree_has_the_value_of_its_branch_as_a_text():
    """Behind 7, 8: a, with children b and d, and c below b; written as a b d c."""
    history, nodes = token_numbers([7, 8]), token_numbers([1, 2, 4, 3])
    values = tree_values(history, nodes, [-1, 0, 0, 1])
    chain = prefix_values(token_numbers([7, 8, 1, 2, 3]))
    fork = prefix_values(token_numbers([7, 8, 1, 4]))
    assert values.tolist() == [*chain[:4].tolist(), int(fork[3]), int(chain[4])]


def test_a_change_anywhere_changes_every_later_value():
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 1000, 200)
    values = prefix_values(token_numbers(tokens))
    for position in (0, 1, 99, 199):
        other = tokens.copy()
        other[position] += 1
        other_values = prefix_values(token_numbers(other))
        assert (other_values[:position] == values[:position]).all()
        assert (other_values[position:] != values[position:]).all()


def test_order_matters():
    values = prefix_values(token_numbers([1, 2, 3]))
    swapped = prefix_values(token_numbers([2, 1, 3]))
    assert values[2] != swapped[2]


def test_every_form_of_tokens_gives_the_same_numbers():
    tokens = [3, 1, 2**31 - 1, 0]
    expected = np.array(tokens, dtype=np.uint64)
    forms = [
        tokens,
        tuple(tokens),
        np.array(tokens, dtype=np.int32),
        np.array(tokens, dtype=np.int64),
        array("i", tokens),
        memoryview(array("i", tokens)),
    ]
    for form in forms:
        assert token_numbers(form).tolist() == expected.tolist()
    assert len(token_numbers([])) == 0


def test_digests_are_numbers_that_no_token_id_has():
    numbers = token_numbers([7, b"7", b"dump", b"dump", b"other dump"]).tolist()
    assert numbers[0] == 7
    assert all(number >= 2**63 for number in numbers[1:])
    assert numbers[2] == numbers[3]
    assert len(set(numbers)) == 4


def test_arrays_of_another_shape_or_kind_are_refused():
    for tokens in (np.zeros((2, 2), dtype=np.int32), np.zeros(3)):
        with pytest.raises(TypeError):
            token_numbers(tokens)


def test_each_layer_and_role_has_its_own_key():
    keys = {buffer_key(layer_id, role) for layer_id in range(100) for role in ("key", "value", "key_scale")}
    assert len(keys) == 300
