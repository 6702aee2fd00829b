"""Real traces: with unlimited memory, hit tokens are what the trace's own ids say is reusable, to the token.

KV_CACHE_MANAGER_V2_TRACES names the folder with the traces; unset, ../shared/traces beside the repository is tried.
"""

import json
import os
from pathlib import Path

import pytest
from unit.replay.serving import FULL, WINDOWED, replay

from kv_cache_manager_v2 import is_compiled
from kv_cache_manager_v2.replay.presets import PRESETS, ModelPreset
from kv_cache_manager_v2.replay.serving_limits import ServingLimits
from kv_cache_manager_v2.replay.trace import TraceWorkload

NAMES = ("synthetic_trace.jsonl", "conversation_first_4000.jsonl")


def find_trace(name: str) -> Path:
    given = os.environ.get("KV_CACHE_MANAGER_V2_TRACES")
    folder = Path(given) if given else Path(__file__).resolve().parents[3].parent / "shared" / "traces"
    if not (folder / name).is_file():
        pytest.skip(f"no {name} in {folder}; KV_CACHE_MANAGER_V2_TRACES names the folder with the traces")
    return folder / name


def reusable_tokens(path: Path, limit: int) -> int:
    """From the lines alone, one request after the other: the longest prefix of ids shared with any earlier request.

    Of a block whose id is shared, as many tokens as both have; all but the last token of the prompt can be reused.
    """
    longest_part: dict[tuple[int, ...], int] = {}
    total = 0
    for line in path.read_text().splitlines()[:limit]:
        record = json.loads(line)
        length = record["input_length"]
        ids = record["hash_ids"]
        parts = [(tuple(ids[: at + 1]), min(512, length - 512 * at)) for at in range(len(ids))]
        matched = 0
        for prefix, tokens in parts:
            common = min(longest_part.get(prefix, 0), tokens)
            matched += common
            if common < tokens:
                break
        total += min(matched, length - 1)
        for prefix, tokens in parts:
            longest_part[prefix] = max(longest_part.get(prefix, 0), tokens)
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [FULL, WINDOWED], ids=lambda model: model.name)
def test_unlimited_hits_one_at_a_time(name: str, model: ModelPreset) -> None:
    check_unlimited_hits(find_trace(name), model, 60)


@pytest.mark.parametrize("name", NAMES)
def test_unlimited_hits_of_the_whole_trace(name: str) -> None:
    # Some ten seconds a trace compiled, and minutes interpreted: there the beginning has to do.
    check_unlimited_hits(find_trace(name), PRESETS["gemma-3-12b"], 4000 if is_compiled() else 60)


def check_unlimited_hits(path: Path, model: ModelPreset, limit: int) -> None:
    limits = ServingLimits(max_running=1, token_budget=1 << 20, chunk_tokens=1 << 20)
    workload = TraceWorkload(str(path), limit)
    report = replay(
        workload, model=model, tokens_per_block=32, memory_bytes=None, limits=limits, check_invariants=False
    )
    assert report.requests == workload.summary().num_requests
    assert report.hit_tokens == report.reusable_tokens == reusable_tokens(path, limit) > 0


@pytest.mark.parametrize("name", NAMES)
def test_unlimited_hits_side_by_side(name: str) -> None:
    path = find_trace(name)
    workload = TraceWorkload(str(path), 4000 if is_compiled() else 60)
    report = replay(workload, model=WINDOWED, tokens_per_block=32, memory_bytes=None, check_invariants=False)
    assert report.requests == workload.summary().num_requests
    # Requests that run at the same time do not find each other's last blocks.
    same_time = report.missed_tokens.get("computed at the same time", 0)
    assert report.reusable_tokens == reusable_tokens(path, report.requests)
    assert 0 < report.reusable_tokens - same_time <= report.hit_tokens <= report.reusable_tokens


@pytest.mark.parametrize(("name", "limit", "num_blocks"), [(NAMES[0], 5, 1500), (NAMES[1], 6, 800)])
def test_scarce_memory_with_every_byte_checked(name: str, limit: int, num_blocks: int) -> None:
    # A block of both layers is 32 tokens of 2 * 2 * 8 bytes. The longest of the requests takes 1256 and 230 blocks.
    report = replay(
        TraceWorkload(str(find_trace(name)), limit), model=FULL, tokens_per_block=32, memory_bytes=num_blocks * 1024,
        verify=True, device="host", check_invariants=False,
    )  # fmt: skip
    assert report.requests == limit
    assert report.mismatches == 0
    assert report.evicted_pages > 0
