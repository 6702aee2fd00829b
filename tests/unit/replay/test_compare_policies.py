"""`kvcm compare-policies`: the block cache against plain counting, the optimum against trying everything, the command and its errors."""

import json
import re
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.replay.block_cache import BlockCache
from kv_cache_manager_v2.replay.block_requests import BlockRequests, read_blocks
from kv_cache_manager_v2.replay.compare_command import POLICY_NAMES
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.made_hints import RECORDED, find_continued, make_hints
from kv_cache_manager_v2.replay.generators import WORKLOAD_NAMES, make_workload
from kv_cache_manager_v2.replay.offline_caches import count_hits_of_reused, count_optimal_hits, count_reusable, next_uses
from kv_cache_manager_v2.replay.policies.own_policy import ComparedPolicy
from kv_cache_manager_v2.replay.policies.published import COMPARED
from kv_cache_manager_v2.replay.trace import TraceWorkload

LINES = [
    b'{"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]}',
    b'{"timestamp": 1, "input_length": 900, "output_length": 3, "hash_ids": [7, 4]}',
    b'{"timestamp": 2, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]}',
]
BAD = b'{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0]}'


def random_requests(seed: int, num_requests: int = 60) -> BlockRequests:
    """Walks down a small tree of blocks."""
    random = Random(seed)
    parents = [-1, -1]
    requests: list[list[int]] = []
    for _ in range(num_requests):
        path: list[int] = []
        block = random.randrange(2)
        while True:
            path.append(block)
            children = [child for child, parent in enumerate(parents) if parent == block]
            if len(path) > 5 or random.random() < 0.2:
                break
            if not children or random.random() < 0.3:
                parents.append(block)
                children = [len(parents) - 1]
            block = random.choice(children)
        requests.append(path)
    return BlockRequests("random", requests, parents)


def lru_hits(blocks: BlockRequests, num_slots: int) -> int:
    """Plainly: least recently used last; of a prompt the last block is the least recent."""
    cached: list[int] = []
    hits = 0
    for request in blocks.requests:
        hit = [block for block in request if block in cached]
        hits += len(hit)
        kept = request[:num_slots]
        cached = [block for block in cached if block not in kept]
        cached = (cached + kept[::-1])[-num_slots:]
    return hits


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_slots", [1, 3, 8, 30])
def test_lru_is_what_plain_counting_says(seed: int, num_slots: int) -> None:
    blocks = random_requests(seed)
    cache = BlockCache(EvictionPolicy.LRU, num_slots, blocks)
    for request in blocks.requests:
        cache.serve(request)
        assert cache.num_cached == cache.queue.num_pages <= num_slots
    assert cache.num_hits == lru_hits(blocks, num_slots)


@pytest.mark.parametrize("policy", COMPARED, ids=lambda policy: policy.value)
def test_no_policy_beats_the_optimum_and_all_are_perfect_with_room_for_everything(policy: ComparedPolicy) -> None:
    for seed in range(4):
        blocks = random_requests(seed)
        uses = next_uses(blocks)
        for num_slots in (1, 4, 12, blocks.num_blocks):
            cache = BlockCache(policy, num_slots, blocks)
            for request in blocks.requests:
                cache.serve(request)
            assert cache.num_hits <= count_optimal_hits(blocks, uses, num_slots) <= count_reusable(blocks)
        assert cache.num_hits == count_reusable(blocks)


def best_by_trying(blocks: BlockRequests, num_slots: int) -> int:
    """Every set of blocks that could be kept beside each request while it runs, and after it."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for request in blocks.requests:
        following: dict[frozenset[int], int] = {}
        for cached, hits in states.items():
            prefix = 0
            while prefix < len(request) and request[prefix] in cached:
                prefix += 1
            running = frozenset(request[:num_slots])
            others = sorted(cached - running)
            for size in range(min(num_slots - len(running), len(others)) + 1):
                for kept in combinations(others, size):
                    # What is dropped after the request is as good as dropped before the next one.
                    state = running | frozenset(kept)
                    following[state] = max(following.get(state, 0), hits + prefix)
        states = following
    return max(states.values())


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_is_one(seed: int) -> None:
    blocks = random_requests(seed, 7)
    uses = next_uses(blocks)
    for num_slots in (1, 2, 3, 4, 5):
        assert count_optimal_hits(blocks, uses, num_slots) == best_by_trying(blocks, num_slots)
        assert count_hits_of_reused(blocks, uses, num_slots) <= best_by_trying(blocks, num_slots)


def write_trace(folder: Path, *lines: bytes) -> str:
    path = folder / "trace.jsonl"
    path.write_bytes(b"\n".join(lines))
    return str(path)


def test_blocks_of_a_trace_are_its_hash_ids(tmp_path: Path) -> None:
    blocks = read_blocks(TraceWorkload(write_trace(tmp_path, *LINES)), 512)
    assert blocks.requests == [[0, 1, 2], [0, 3], [0, 1, 2]]
    assert blocks.parents == [-1, 0, 1, 0]


QWEN = [b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 1, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 3]}',
        b'{"chat_id": 2, "parent_chat_id": -1, "timestamp": 2, "input_length": 16, "output_length": 3, "hash_ids": [1]}',
        b'{"chat_id": 3, "parent_chat_id": -1, "timestamp": 3, "input_length": 9, "output_length": 3, "hash_ids": [7]}']  # fmt: skip
CONVERTED = [b'{"timestamp": 1, "input_length": 64, "output_length": 3, "hash_ids": [1, 2], "block_tokens": 32}',
             b'{"timestamp": 2, "input_length": 32, "output_length": 3, "hash_ids": [1], "block_tokens": 32}',
             b'{"timestamp": 3, "input_length": 31, "output_length": 3, "hash_ids": [7], "block_tokens": 32}']  # fmt: skip
TEXTS = [b'{"prompt": "%s", "output_tokens": 4}' % (b"a" * 1024), b'{"prompt": "%s", "output_tokens": 4}' % (b"a" * 512)]


@pytest.mark.parametrize(
    ("lines", "options", "num_whole", "num_blocks"),
    [
        # 40 tokens are 16, 16 and 8; 32 are one block of the converted log. A text's tokens are 4 bytes: 256 and 128, blocks of 64.
        (QWEN, [], [2, 1, 0], 4), (CONVERTED, [], [2, 1, 0], 3), (TEXTS, [], [4, 2], 4), (TEXTS, ["--trace-block", "128"], [2, 1], 2),
    ],
    ids=["qwen", "converted", "texts", "texts-128"],
)  # fmt: skip
def test_a_log_has_its_own_block_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[bytes], options: list[str], num_whole: list[int], num_blocks: int
) -> None:
    path = write_trace(tmp_path, *lines)
    assert main(["compare-policies", path, "--blocks", "4", "--policies", "lru", "--json", "-", *options]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["num_blocks"] == num_blocks and source["requests"] == len(lines)
    given = int(options[1]) if options else None
    assert read_blocks(TraceWorkload(path, None, given), given or 64).num_whole == num_whole


def test_blocks_of_a_workload_are_its_tokens() -> None:
    workload = make_workload("chat", 1, 30)
    blocks = read_blocks(workload, 64)
    lengths = [-(-request.num_prompt_tokens // 64) for request in workload.requests()]
    assert [len(one) for one in blocks.requests] == lengths
    assert 0 < count_reusable(blocks) < blocks.num_accesses


def test_the_command_on_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path, *LINES)
    assert main(["compare-policies", path, "--blocks", "3,4", "--policies", "lru,arc", "--json", "-"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert (source["requests"], source["accesses"], source["num_blocks"], source["block_tokens"]) == (3, 8, 4, 512)
    small, large = source["rows"]
    # With 3 slots the second prompt's block 4 takes the place of 9: hits 0, 1, then 7 and 8. While 7 and 4 run, one slot
    # is left, so no cache keeps both 8 and 9.
    assert small["hit_rates"]["lru"] == 3 / 8
    assert small["hit_rates"]["optimum"] == 3 / 8
    assert large["hit_rates"] == {"lru": 4 / 8, "arc": 4 / 8, "lru-of-reused": 4 / 8, "optimum": 4 / 8, "infinite": 4 / 8}


def test_sizes_follow_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """100 different blocks: without --blocks, sizes of 1 to 50 of them, each a row; the title says how long a block is."""
    lines = [b'{"timestamp": 0, "input_length": 512, "output_length": 3, "hash_ids": [%d]}' % block for block in range(100)]
    assert main(["compare-policies", write_trace(tmp_path, *lines), "--policies", "lru", "--quiet"]) == 0
    title, _, *rows = capsys.readouterr().out.splitlines()
    assert "100 blocks of 512 tokens" in title
    assert [row.split()[0] for row in rows] == ["1", "2", "5", "10", "20", "50"]


def test_the_command_on_made_workloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "figures.json"
    arguments = ["compare-policies", "--limit", "60", "--blocks", "10%,50", "--json", str(report), "--quiet"]
    for name in WORKLOAD_NAMES:
        arguments += ["--workload", name]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    sources = json.loads(report.read_text())["sources"]
    assert [source["name"] for source in sources] == [f"{name}, seed 0" for name in WORKLOAD_NAMES]
    for source in sources:
        assert source["name"] in output and source["block_tokens"] == 64
        for row in source["rows"]:
            rates = row["hit_rates"]
            assert set(POLICY_NAMES) <= set(rates)
            assert max(rates[policy] for policy in POLICY_NAMES) <= rates["optimum"] <= rates["infinite"]


def test_bad_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare-policies", str(tmp_path / "none.jsonl")]) == 3
    path = write_trace(tmp_path, LINES[0], BAD, LINES[2])
    assert main(["compare-policies", path]) == 3
    assert f"{path}:2: " in capsys.readouterr().err
    assert main(["compare-policies", path, "--skip-bad", "--blocks", "2", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert f"{path}:2: " in captured.err
    assert json.loads(captured.out)["sources"][0]["requests"] == 2


def test_levels_are_compared_by_hits_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path, *LINES)
    assert main(["compare-policies", trace, "--levels", "3,5", "--policies", "lru,learned", "--json", "-"]) == 0
    source = json.loads(capsys.readouterr().out)["sources"][0]
    # [0, 1, 2], [0, 3], [0, 1, 2] on 3 slots: 0 is a hit, 2 was written for 3, and comes back with 0 and 1.
    assert [row["policy"] for row in source["level_rows"]] == ["lru", "learned"] and source["rows"] == []
    for row in source["level_rows"]:
        assert row["hit_rates"] == [3 / 8, 1 / 8] and row["written"] == [2 / 8]
    assert main(["compare-policies", trace, "--levels", "3,5", "--policies", "lru"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split("  ")[0] == "policy" and lines[-1].split() == ["lru", "50.0", "37.5", "12.5", "25.0"]


def test_a_floor_writes_less(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path, *LINES)
    arguments = ["compare-policies", trace, "--levels", "3,5", "--policies", "learned", "--min-reuse-probability", "1", "--json", "-"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["sources"][0]["level_rows"][0]["written"] == [0.0]


# -- hints ----------------------------------------------------------------------------------------------------------------


def test_a_request_continues_if_a_later_prompt_begins_with_its_whole_blocks(tmp_path: Path) -> None:
    lines = [
        b'{"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9], "stop": "tool_use"}',
        b'{"timestamp": 1, "input_length": 1700, "output_length": 3, "hash_ids": [7, 8, 10, 11], "stop": "end_turn"}',
        b'{"timestamp": 2, "input_length": 1536, "output_length": 3, "hash_ids": [7, 8, 9], "stop": "max_tokens"}',
        b'{"timestamp": 3, "input_length": 100, "output_length": 3, "hash_ids": [5], "stop": 3}',
        b'{"timestamp": 4, "input_length": 100, "output_length": 3, "hash_ids": [5]}',
    ]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(lines))
    blocks = read_blocks(TraceWorkload(str(path)), 512)
    assert blocks.num_whole == [2, 3, 3, 0, 0]
    # The first goes on in the second one, which nothing extends, as 10 never comes again; the fourth is repeated.
    assert find_continued(blocks) == [True, False, False, True, False]
    assert blocks.recorded_hints == [True, False, None, None, None]
    assert make_hints(blocks, RECORDED, 0) == [1, 2, 0, 0, 0]
    assert make_hints(blocks, None, 0) == [0] * 5
    assert make_hints(blocks, 1.0, 0) == [1, 2, 2, 1, 2]
    assert make_hints(blocks, 0.0, 0) == [2, 1, 1, 2, 1]


def test_hints_are_wrong_as_often_as_asked_and_by_the_seed() -> None:
    blocks = random_requests(1, 2000)
    right = make_hints(blocks, 1.0, 0)
    hints = make_hints(blocks, 0.8, 3)
    num_right = sum([hint == truth for hint, truth in zip(hints, right, strict=True)])
    # Four standard deviations of 2,000 draws are 0.036.
    assert abs(num_right / 2000 - 0.8) < 0.036
    assert hints == make_hints(blocks, 0.8, 3) != make_hints(blocks, 0.8, 4)


def learned_rates(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    command = ["compare-policies", "--workload", "chat", "--limit", "400", "--blocks", "5%", "--policies", "lru,learned", "--json", "-"]
    assert main([*command, "--quiet", *arguments]) == 0
    source = json.loads(capsys.readouterr().out)["sources"][0]
    rates: dict[str, float] = source["rows"][0]["hit_rates"]
    return rates


def test_hints_are_for_learned_alone(capsys: pytest.CaptureFixture[str]) -> None:
    without = learned_rates(capsys)
    told = learned_rates(capsys, "--hints", "1")
    assert told["lru"] == without["lru"] and told["learned"] > without["learned"]


def test_recorded_hints_need_stop_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare-policies", write_trace(tmp_path, *LINES), "--quiet", "--hints", "recorded"]) != 0
    assert re.search("no request of .* has a stop reason", capsys.readouterr().err) is not None
