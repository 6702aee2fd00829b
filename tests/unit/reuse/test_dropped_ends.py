"""Notes of what was dropped on request: as many as there may be, then the oldest go."""

from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.reuse.content_key import text_key
from kv_cache_manager_v2.reuse.dropped_ends import DroppedEnds

MOST_NOTES = 10_000


def test_the_oldest_of_too_many_notes_go() -> None:
    root = Block(-1)
    root.content_key = text_key(b"root")
    ends = DroppedEnds(8)
    for number in range(MOST_NOTES + 2):
        block = Block(number)
        block.parent = root
        block.tokens = number.to_bytes(4, "little") * 2
        ends.note(block, 1)
    tokens = [number.to_bytes(4, "little") for number in (0, 1, 2, MOST_NOTES + 1, MOST_NOTES + 2)]
    assert [ends.count_tokens(root, token) for token in tokens] == [0, 0, 1, 1, 0]
