"""Blocks that share a text: keys, how far a prompt follows a text, and how much text is kept for blocks that are gone.

Expected numbers come from comparing texts token by token, and from adding up what blocks are in the tree.
"""

from random import Random

import pytest
from mypy_extensions import i64
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import KVCacheManager, RetentionConfig, TokenRangeRetention
from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.reuse.block_tokens import MAX_SHARED_BYTES, count_equal_bytes, key_of, own_tokens, share_tokens

BLOCK = 4
BLOCK_BYTES = 16
BLOCKS_PER_TEXT = MAX_SHARED_BYTES // BLOCK_BYTES


def share(packed: bytes, block_bytes: i64) -> list[Block]:
    """A path of blocks that share texts."""
    blocks = [Block(number) for number in range(len(packed) // block_bytes)]
    share_tokens(blocks, packed, 0, block_bytes)
    return blocks


@pytest.mark.parametrize("block_bytes", [4, 12, 128, 1024, 1028, 4096])
def test_each_block_has_its_key(block_bytes: int) -> None:
    packed = Random(block_bytes).randbytes(5000 // block_bytes * block_bytes + 2 * block_bytes)
    blocks = share(packed, block_bytes)
    assert b"".join(key_of(block, block_bytes) for block in blocks) == packed
    per_text = max(MAX_SHARED_BYTES // block_bytes, 1)
    # As many texts as are needed and no more, each as long as may be but the last.
    assert len({id(block.tokens) for block in blocks}) == -(-len(blocks) // per_text)
    assert all(len(block.tokens) <= max(MAX_SHARED_BYTES, block_bytes) for block in blocks)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 7, 8, 16])
def test_a_prompt_is_never_taken_to_follow_a_text_further_than_it_does(num_blocks: int) -> None:
    """Every place in which one byte may differ, every block to begin with, every length of the prompt."""
    size = 8
    random = Random(num_blocks)
    packed = random.randbytes(num_blocks * size)
    blocks = share(packed, size)
    front = random.randbytes(3 * size)
    for first in range(num_blocks):
        for length in range(1, num_blocks - first + 1):
            same = packed[first * size : (first + length) * size]
            # Ends that are no whole block count for nothing.
            assert count_equal_bytes(blocks[first], front + same + b"....", len(front), size) == length * size
            for place in range(length * size):
                other = bytearray(front + same)
                other[len(front) + place] ^= 1
                found = count_equal_bytes(blocks[first], bytes(other), len(front), size)
                num_equal = place // size * size
                assert found % size == 0 and found <= num_equal
                # Something is found whenever there is something to find.
                assert (found > 0) == (num_equal > 0)


def test_a_block_with_its_own_text_keeps_it() -> None:
    blocks = share(bytes(range(64)), 16)
    key = own_tokens(blocks[1], 16)
    assert key == bytes(range(16, 32))
    assert own_tokens(blocks[1], 16) is key
    assert [key_of(block, 16) for block in blocks] == [bytes(range(at, at + 16)) for at in (0, 16, 32, 48)]


def count_text_bytes(manager: KVCacheManager) -> tuple[int, int]:
    """Bytes of all different texts in the tree, and of all keys."""
    tree = manager._shared.tree
    texts: dict[int, int] = {}
    num_key_bytes = 0
    pending = [root for root in map(tree.find_root, tree.scopes()) if root is not None]
    while len(pending) > 0:
        block = pending.pop()
        if block.parent is not None:
            texts[id(block.tokens)] = len(block.tokens)
            num_key_bytes += len(tree.key_of(block))
        pending.extend(tree.children_of(block))
    return sum(texts.values()), num_key_bytes


def branch(random: Random, known: list[list[int]], longest: int) -> list[int]:
    """A text that leaves one of the known ones somewhere, often where a block or a text ends."""
    old = random.choice(known)
    place = random.randrange(len(old) + 1)
    if random.random() < 0.5:
        place -= place % random.choice((BLOCK, BLOCK * BLOCKS_PER_TEXT))
    return old[:place] + [random.randrange(1000) for _ in range(random.randrange(1, longest))]


def count_shared(first: list[int], second: list[int]) -> int:
    shared = 0
    for one, other in zip(first, second):
        if one != other:
            break
        shared += 1
    return shared


@pytest.mark.parametrize("seed", range(6))
def test_matches_among_long_texts_are_those_of_their_tokens(seed: int) -> None:
    """Some twenty texts of up to 2,000 tokens that share beginnings, committed in parts, nothing evicted."""
    random = Random(seed)
    texts: list[list[int]] = [[7]]
    with manager_of(num_slots=12000) as manager:
        for _ in range(20):
            text = branch(random, texts, 1000)[:2000]
            expected = max(count_shared(text, other) for other in texts[1:]) if len(texts) > 1 else 0
            assert manager.probe_reuse(input_tokens=text) == expected
            with manager.create_kv_cache(input_tokens=text) as kv_cache:
                assert kv_cache.num_committed_tokens == expected
                assert kv_cache.committed_tokens == text[:expected]
                assert kv_cache.resume()
                while kv_cache.num_committed_tokens < len(text):
                    begin = kv_cache.num_committed_tokens
                    end = min(len(text), begin + random.choice((1, BLOCK, 30, 700)))
                    assert kv_cache.resize(end)
                    kv_cache.commit(text[begin:end])
                assert kv_cache.committed_tokens == text
            texts.append(text)
            manager.check_invariants()


@pytest.mark.parametrize("seed", range(6))
def test_texts_of_what_is_evicted_go_with_it(seed: int) -> None:
    """Never more text than twice the keys that are left, whichever parts of the paths go."""
    random = Random(seed)
    texts: list[list[int]] = [[7]]
    with manager_of(num_slots=700) as manager:
        for _ in range(60):
            text = branch(random, texts[-8:], 900)[:1500]
            kv_cache = run_prompt(manager, text)
            assert kv_cache.committed_tokens == text
            kv_cache.close()
            texts.append(text)
            num_text_bytes, num_key_bytes = count_text_bytes(manager)
            assert num_text_bytes <= 2 * num_key_bytes
            manager.check_invariants()


def test_retained_blocks_are_found_again() -> None:
    """A block that is retained gets a text of its own, in the middle of what the others share, and the prompt still matches."""
    text = list(range(40 * BLOCK))
    with manager_of(num_slots=64) as manager:
        run_prompt(manager, text).close()
        manager.retain(input_tokens=text[: 10 * BLOCK], priority=80)
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=text) == len(text)
        assert manager.probe_reuse(input_tokens=text[: 5 * BLOCK + 2] + [9999]) == 5 * BLOCK + 2
        # Room for 50 blocks: what is not retained goes.
        run_prompt(manager, list(range(1000, 1000 + 50 * BLOCK))).close()
        assert manager.probe_reuse(input_tokens=text) == 14 * BLOCK
        manager.check_invariants()


def test_texts_go_with_what_was_retained_for_a_while() -> None:
    """12 prompts of 8 blocks, of which the last 6 have a text of their own; then these alone are evicted."""
    size = 8 * BLOCK
    retention = RetentionConfig([TokenRangeRetention(2 * BLOCK, size, 0, 3600.0)])
    with manager_of(num_slots=12 * 8) as manager:
        for number in range(12):
            run_prompt(manager, list(range(1000 * number, 1000 * number + size)), retention=retention, expected_prompt_length=size).close()
        assert count_text_bytes(manager)[1] == 12 * 8 * BLOCK_BYTES
        run_prompt(manager, list(range(50_000, 50_000 + 12 * 6 * BLOCK))).close()
        manager.check_invariants()
        for number in range(12):
            assert manager.probe_reuse(input_tokens=list(range(1000 * number, 1000 * number + size))) == 2 * BLOCK
        num_text_bytes, num_key_bytes = count_text_bytes(manager)
        # All of it is needed: 2 blocks of each prompt, and the 72 that have driven the others out.
        assert num_text_bytes == num_key_bytes == (12 * 2 + 72) * BLOCK_BYTES


def list_published(manager: KVCacheManager) -> list[Block]:
    tree = manager._shared.tree
    found: list[Block] = []
    pending = [root for scope in tree.scopes() if (root := tree.find_root(scope)) is not None]
    while pending:
        children = list(tree.children_of(pending.pop()))
        found.extend(children)
        pending.extend(children)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_of_a_text_is_at_most_twice_what_is_needed(seed: int) -> None:
    """However its blocks leave: one by one as slots run short, as the end of a plan, or many at a time."""
    choices = Random(seed)
    with manager_of([None, 8], num_slots=60) as manager:
        for _ in range(150):
            text = [choices.randrange(2) for _ in range(choices.randrange(1, 70))]
            with run_prompt(manager, text) as kv_cache:
                kv_cache.stop_committing()
                plan = kv_cache.plan_committed_block_drop() if choices.random() < 0.4 else None
            if plan is not None:
                plan.drop()
            needed: dict[int, int] = {}
            texts: dict[int, bytes] = {}
            for block in list_published(manager):
                texts[id(block.tokens)] = block.tokens
                end = min(int(block.tokens_begin) + BLOCK_BYTES, len(block.tokens))
                needed[id(block.tokens)] = max(needed.get(id(block.tokens), 0), end)
            for number, tokens in texts.items():
                assert 2 * needed[number] > len(tokens)
        manager.check_invariants()
