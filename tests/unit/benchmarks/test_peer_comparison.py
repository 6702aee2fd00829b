"""`make bench-peers`: each piece of work runs on this library and is counted right, and the page says what was measured."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "peers"
sys.path.append(str(FOLDER))

import run_peers  # noqa: E402
from ours import Ours, OursTuned  # noqa: E402
from peer import TOKENS_PER_BLOCK, Peer  # noqa: E402
from peer_workloads import BETWEEN, WORK, Size, answer_token, make_chats  # noqa: E402

SMALL = Size(
    prompt=128, long_prompt=256, num_prompts=3, num_repeats=2, num_running=2, num_steps=20, num_chats=4, num_cached_blocks=80
)


class Counting(Peer):
    """Counts calls and tokens; caches whole blocks of everything that was published, and never evicts."""

    name = "counting"

    def version(self) -> str:
        return "0"

    def open(self, num_blocks, window=None):
        self.cached = set()
        self.num_prefilled = self.num_stepped = 0
        self.num_open = 0

    def publish(self, tokens):
        self.cached |= {tuple(tokens[:end]) for end in range(TOKENS_PER_BLOCK, len(tokens) + 1, TOKENS_PER_BLOCK)}

    def probe(self, prompt):
        end = 0
        while end + TOKENS_PER_BLOCK < len(prompt) and tuple(prompt[: end + TOKENS_PER_BLOCK]) in self.cached:
            end += TOKENS_PER_BLOCK
        return end

    def begin(self, prompt):
        self.num_open += 1
        return list(prompt), self.probe(prompt)

    def num_reused(self, sequence):
        return sequence[1]

    def prefill(self, sequence):
        self.num_prefilled += len(sequence[0]) - sequence[1]
        self.publish(sequence[0])

    def step(self, sequences, tokens):
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence[0].append(token)
            self.num_stepped += 1

    def end(self, sequence):
        self.publish(sequence[0])
        self.num_open -= 1

    def close(self):
        assert self.num_open == 0


@pytest.mark.parametrize("peer", [Ours(), OursTuned(), Counting()], ids=lambda peer: peer.name)
@pytest.mark.parametrize("work", [name for name in WORK if name != "memory"])
def test_each_piece_of_work_runs(work: str, peer: Peer) -> None:
    found = WORK[work](peer, SMALL)
    assert all(figure > 0 for figure in found.values()), found
    assert found["longest_us"] * 1000 <= found.get("ns", float("inf")) * 10**6


def test_memory_is_counted_where_the_system_tells_it() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    assert WORK["memory"](Counting(), SMALL)["bytes"] >= 0


def test_peers_reuse_alike() -> None:
    """What is reused in the chats: this library finds at least the whole blocks that a cache of any size would find."""
    counting = Counting()
    least = WORK["trace"](counting, SMALL)["hit_percent"]
    turns = make_chats(7, SMALL.num_chats)
    assert counting.num_stepped == sum(answer for _, answer in turns)
    assert counting.num_prefilled == pytest.approx((1 - least / 100) * sum(len(prompt) for prompt, _ in turns))
    assert WORK["trace"](Ours(), SMALL)["hit_percent"] >= least > 20
    # The later turns of a chat repeat what the trace answers.
    first, answer = turns[0]
    (second,) = [prompt for prompt, _ in turns[SMALL.num_chats : 2 * SMALL.num_chats] if prompt[: len(first)] == first]
    assert second[len(first) : len(first) + answer] == [answer_token(len(first) + index) for index in range(answer)]


class Described:
    def __init__(self, name, title):
        self.name = name
        self.describe = {"name": title, "version": "1.2", "windowed": name != "sglang"}


def test_the_page_has_medians_maxima_and_ratios() -> None:
    workers = [Described("ours", "ours"), Described("tuned", "ours, tuned"), Described("sglang", "SGLang")]
    rounds = {"ours": (100, 200, 900), "tuned": (50, 50, 50), "sglang": (300, 400, 900)}
    results = {
        name: {
            work: [{key: float(value), "longest_us": 5.0, "hit_percent": 50.0} for value in values]
            for row, key, _, _ in run_peers.ROWS
            for work in {row, row + BETWEEN} & WORK.keys()
            if name != "sglang" or "_windows" not in work
        }
        | {"memory": [{"bytes": 300.0}]}
        for name, values in rounds.items()
    }
    page = run_peers.write_page(workers, results, {"vllm": "there is no index"}, 3)
    times = page.partition("## Times")[2].partition("## The longest call")[0]
    # Ratios of the rounds: 3, 2 and 1.
    assert f"| {run_peers.ROWS[0][2]} | ns a block | 200 (900) | 50.0 (50.0) | 400 (900) | 2.0 |" in times
    assert times.count("| - | - |") == 4, "what was not run"
    assert "vllm: left out, there is no index" in page and "SGLang: 1.2" in page and "{" not in page
