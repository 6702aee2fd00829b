"""The reference model's idea of reuse, held against the worked examples of the design and against counting by hand."""

from random import Random

import pytest

from kv_cache_manager_v2.testing.reference_tree import GroupRule, ReferenceTree

DEFAULT_SCOPE = (None, None)


def publish(tree, text, tokens_per_block, num_groups=1, scope=DEFAULT_SCOPE):
    """Every block of a text, the last one perhaps partial; returns its pages."""
    pages = set()
    node = tree.root(scope)
    for beg in range(0, len(text), tokens_per_block):
        node = tree.child(node, tuple(text[beg : beg + tokens_per_block]))
        pages |= {(node, group) for group in range(num_groups)}
    return pages


def test_stale_block_is_one_whose_last_token_no_layer_reads():
    for window in (1, 2, 5, 8):
        for size in (1, 3, 4):
            rule = GroupRule(window, 1)
            for history in range(40):
                read = set(range(max(0, history + 1 - window), history + 1))
                for ordinal in range(12):
                    tokens = set(range(ordinal * size, (ordinal + 1) * size))
                    is_past = max(tokens) < history + 1
                    assert rule.is_stale(ordinal, history, size) == (ordinal >= 1 and is_past and not tokens & read)


def test_window_needs_only_its_end():
    """T = 1, W = 2, ABCDE with pages for D and E only, or for E alone: all five tokens are reusable."""
    tree = ReferenceTree(1, [GroupRule(2, 0)])
    abcde = (65, 66, 67, 68, 69)
    pages = sorted(publish(tree, abcde, 1))
    assert tree.match(DEFAULT_SCOPE, abcde, set(pages[3:]), True).best == 5
    assert tree.match(DEFAULT_SCOPE, abcde, set(pages[4:]), True).best == 5
    assert tree.match(DEFAULT_SCOPE, abcde, set(pages[:4]), True).best == 4
    assert tree.match(DEFAULT_SCOPE, abcde[:4], set(pages[4:]), True).best == 0
    assert tree.match(DEFAULT_SCOPE, abcde, set(), True).best == 0


def test_scopes_do_not_see_each_other():
    tree = ReferenceTree(4, [GroupRule(None, 0)])
    scopes = [(None, None), (0, None), (None, 0), (7, 11), (7, 12)]
    pages = publish(tree, range(8), 4, scope=scopes[0])
    for scope in scopes[1:]:
        assert tree.match(scope, tuple(range(8)), pages, True).best == 0
    pages |= publish(tree, range(4), 4, scope=scopes[3])
    assert [tree.match(scope, tuple(range(8)), pages, True).best for scope in scopes] == [8, 0, 0, 4, 0]


def test_every_group_must_have_its_pages():
    tree = ReferenceTree(2, [GroupRule(None, 0), GroupRule(3, 0)])
    pages = publish(tree, range(8), 2, num_groups=2)
    nodes = sorted({node for node, _group in pages})
    # At 8 tokens the window reads positions 6..8, so blocks 0..2 are stale for group 1 and block 3 is not.
    assert tree.match(DEFAULT_SCOPE, tuple(range(8)), pages - {(nodes[0], 1), (nodes[1], 1), (nodes[2], 1)}, True).best == 8
    # Without block 3 of group 1: at 7 tokens it is needed too; at 6 the window reads 4..6, that is block 2.
    assert tree.match(DEFAULT_SCOPE, tuple(range(8)), pages - {(nodes[3], 1)}, True).best == 6
    assert tree.match(DEFAULT_SCOPE, tuple(range(8)), pages - {(nodes[0], 0)}, True).best == 0


def test_longest_common_beginning_of_many_siblings():
    tree = ReferenceTree(4, [GroupRule(None, 0)])
    pages = set()
    for last in range(30):
        pages |= publish(tree, (1, 2, 3, last), 4)
    few = ReferenceTree(4, [GroupRule(None, 0)])
    few_pages = publish(few, (1, 2, 3, 4), 4) | publish(few, (1, 2, 9), 4)
    match = few.match(DEFAULT_SCOPE, (1, 2, 3, 99), few_pages, True)
    assert match.best == 3 and match.allows(3) and not match.allows(2)
    assert few.partial_matches(DEFAULT_SCOPE, (1, 2, 3, 99), 3, few_pages) == [min(few_pages)[0]]
    assert len(few.partial_matches(DEFAULT_SCOPE, (1, 2, 3, 99), 2, few_pages)) == 2
    # Among many children the library may look at a few only.
    match = tree.match(DEFAULT_SCOPE, (1, 2, 3, 99), pages, True)
    assert match.best == 3 and match.allows(0) and match.allows(2) and not match.allows(4)


@pytest.mark.parametrize("with_partial_blocks", [True, False])
def test_against_a_flat_search(with_partial_blocks):
    """Without windows a prefix is reusable exactly if it begins some published text, up to the blocks' ends."""
    for seed in range(50):
        random = Random(seed)
        size = random.choice((1, 2, 3))
        tree = ReferenceTree(size, [GroupRule(None, 0)])
        texts = [[random.randrange(2) for _ in range(random.randrange(9))] for _ in range(4)]
        pages = set().union(*(publish(tree, text, size) for text in texts))
        wanted = tuple(random.randrange(2) for _ in range(8))
        best = 0
        for text in texts:
            common = 0
            while common < min(len(text), 8) and text[common] == wanted[common]:
                common += 1
            best = max(best, common if with_partial_blocks else common // size * size)
        assert tree.match(DEFAULT_SCOPE, wanted, pages, with_partial_blocks).best == best
