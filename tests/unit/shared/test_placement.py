"""Blocks of one path lie together, each segment of it on its first or second choice, whatever the order in which servers are listed."""

import random
from hashlib import sha256

import pytest

from kv_cache_manager_v2.shared.placement import FIRST_SEGMENT, Placement, segment_begin


def test_segments_double() -> None:
    begins = sorted({segment_begin(block) for block in range(5000)})
    assert begins == [0, 128, 256, 512, 1024, 2048, 4096]
    for block in range(5000):
        begin = segment_begin(block)
        assert begin <= block and (begin == 0) == (block < FIRST_SEGMENT) and segment_begin(begin) == begin


@pytest.mark.parametrize("num_servers", [3, 10, 30])
def test_one_server_away_leaves_most_of_the_hits(num_servers: int) -> None:
    """At least 1 - 2/N of the blocks, over prompts of 300 blocks: by brute force."""
    servers = tuple(f"cache-{number}:6379" for number in range(num_servers))
    placement = Placement(servers)
    rng = random.Random(num_servers)
    left = 0
    for _prompt in range(2000):
        name = rng.randbytes(32)
        away = rng.choice(servers)
        for block in range(300):
            digest = sha256(name + segment_begin(block).to_bytes(4, "little")).digest()
            if placement.choices(digest)[0] == away:
                break
            left += 1
    assert left >= (1 - 2 / num_servers) * 300 * 2000


@pytest.mark.parametrize("num_servers", [3, 10, 30])
def test_sessions_go_on_while_a_server_is_away(num_servers: int) -> None:
    """From its half on a run of sessions, whose prompts grow, has one server less; what is computed again is on second choices then."""
    servers = tuple(f"cache-{number}:6379" for number in range(num_servers))
    placement = Placement(servers)

    def count_hits(away: str) -> int:
        rng = random.Random(num_servers)
        lengths = [80] * 40
        stored: set[tuple[int, int, str]] = set()
        hits = 0
        for turn in range(240):
            session = rng.randrange(40)
            lengths[session] += rng.randrange(10, 60)
            gone = away if turn >= 120 else ""
            is_hit = True
            for block in range(lengths[session]):
                shared = session if block >= 64 else -1  # a system prompt of 64 blocks
                begin = segment_begin(block)
                owner = session if begin > 0 else -1
                choices = [place for place in placement.choices(sha256(b"%d %d" % (owner, begin)).digest()) if place != gone]
                is_there = any((shared, block, place) in stored for place in choices)
                is_hit = is_hit and is_there
                hits += is_hit and turn >= 120
                if not is_there:
                    stored.add((shared, block, choices[0]))
        return hits

    whole = count_hits("")
    shares = [count_hits(away) / whole for away in servers[:3]]
    assert sum(shares) / len(shares) >= 1 - 2 / num_servers and max(shares) < 1.001, shares


def test_shares_are_alike_and_a_new_server_takes_its_own_only() -> None:
    servers = tuple(f"cache-{number}" for number in range(10))
    before, after = Placement(servers), Placement((*reversed(servers), "new"))
    counts = dict.fromkeys((*servers, "new"), 0)
    for number in range(5000):
        digest = sha256(b"%d" % number).digest()
        first, second = after.choices(digest)
        counts[first] += 1
        # What is not the new server's is where it was; what is, is found on the second choice.
        assert before.choices(digest)[0] == (second if first == "new" else first)
    assert max(counts.values()) < 1.3 * 5000 / 11 and min(counts.values()) > 0.7 * 5000 / 11


def test_one_server_has_no_second_choice() -> None:
    assert Placement(("only",)).choices(bytes(32)) == ["only"]
