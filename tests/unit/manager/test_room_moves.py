"""Which pool group should have another's bytes: by tokens that a byte more saves; small steps where it goes to and fro."""

from kv_cache_manager_v2.manager.room_moves import RoomMove, RoomMoves

NOTHING = [0] * 8


def find(moves: RoomMoves, room: list[int], least: list[int], tokens: list[int], num_tokens: int = 10_000) -> tuple[int, int, int] | None:
    move = moves.find(room, least, tokens, num_tokens)
    return None if move is None else (move.giver, move.taker, move.num_bytes)


def test_bytes_go_to_where_one_more_saves_most() -> None:
    """1,000 tokens for an eighth of 8,000 bytes, 1,000 for an eighth of 80,000: a byte of the first is worth ten of the second."""
    one_eighth = [1000] + [0] * 7
    # An eighth of the giver's 80,000; but no more than the eighth of 8,000 that was missed.
    assert find(RoomMoves([100, 100]), [8000, 80_000], [0, 0], one_eighth + one_eighth) == (1, 0, 1000)
    assert find(RoomMoves([100, 100]), [80_000, 8000], [0, 0], one_eighth + one_eighth) == (0, 1, 1000)


def test_the_best_of_all_parts_counts() -> None:
    """Nothing is won before the sixth part, four times the 4,800 bytes, and then 48,000 tokens: 2.5 a byte. The other one's first eighth,
    600 bytes, brings 400 tokens: less than a third of that."""
    late = [0, 0, 0, 0, 0, 48_000, 0, 0]
    early = [400] + [0] * 7
    # An eighth of the giver's 4,800.
    assert find(RoomMoves([100, 100]), [4800, 4800], [0, 0], late + early) == (1, 0, 600)


def test_what_does_not_clearly_pay_is_left() -> None:
    moves = RoomMoves([100, 100])
    # Three times the value is not more than three times.
    assert find(moves, [8000, 8000], [0, 0], [1000] + NOTHING[1:] + [3000] + NOTHING[1:]) is None
    assert find(moves, [8000, 8000], [0, 0], [1000] + NOTHING[1:] + [3001] + NOTHING[1:]) == (0, 1, 1000)
    # A 256th of 256,000 tokens is 1,000.
    assert find(moves, [8000, 8000], [0, 0], NOTHING + [1000] + NOTHING[1:], 256_000) is None
    assert find(moves, [8000, 8000], [0, 0], NOTHING + [1001] + NOTHING[1:], 256_000) == (0, 1, 1000)
    assert find(moves, [8000, 8000], [0, 0], NOTHING + NOTHING) is None
    # Less than a slot of either.
    assert find(RoomMoves([100, 1001]), [8000, 8000], [0, 0], NOTHING + [1001] + NOTHING[1:]) is None


def test_what_open_sequences_need_is_not_given() -> None:
    tokens = NOTHING + [5000] + NOTHING[1:] + NOTHING
    moves = RoomMoves([100, 100, 100])
    assert find(moves, [8000, 8000, 8000], [7500, 0, 8000], tokens) == (0, 1, 500)
    assert find(moves, [8000, 8000, 8000], [8000, 0, 7000], tokens) == (2, 1, 1000)
    assert find(moves, [8000, 8000, 8000], [8000, 0, 8000], tokens) is None


def test_steps_become_smaller_where_it_goes_to_and_fro() -> None:
    moves = RoomMoves([1, 1])
    there = NOTHING + [10**6] + NOTHING[1:]
    back = [10**6] + NOTHING[1:] + NOTHING
    sizes: list[int] = []
    for tokens in (there, back, there, back, there, there, there, there, there):
        move = moves.find([64_000, 64_000], [0, 0], tokens, 1)
        assert isinstance(move, RoomMove)
        moves.record(move)
        sizes.append(move.num_bytes // 1000)
    assert sizes == [8, 4, 2, 1, 1, 2, 4, 8, 8]


def test_looking_changes_nothing() -> None:
    moves = RoomMoves([1, 1])
    back = [10**6] + NOTHING[1:] + NOTHING
    assert [find(moves, [6400, 6400], [0, 0], back, 1) for _look in range(3)] == [(1, 0, 800)] * 3
