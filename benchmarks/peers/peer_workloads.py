"""The work of the comparison: each function opens a cache of its own, does the work once, and returns figures.

Times are CPU time of the thread, so that other processes are not counted. ``longest`` is the longest single call of the run.
"""

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from peer import TOKENS_PER_BLOCK, Peer

Figures = dict[str, float]
WINDOW = 1024


@dataclass(frozen=True)
class Size:
    """How much work. Tests run a little of it."""

    prompt: int = 8192
    long_prompt: int = 32768
    num_prompts: int = 24
    num_repeats: int = 20
    num_running: int = 64
    num_steps: int = 256
    num_chats: int = 60
    num_cached_blocks: int = 50_000
    other_bytes: int = 0
    """Read and written where an engine runs a step of its model: before a sequence begins, before each decode step, and before the end."""

    @property
    def prompt_blocks(self) -> int:
        return self.prompt // TOKENS_PER_BLOCK

    @property
    def roomy(self) -> int:
        """Blocks that suffice for all of this without eviction."""
        return max((self.num_prompts + 4) * self.prompt_blocks, 2 * self.num_running * 100, 2 * self.long_prompt // TOKENS_PER_BLOCK)


class Watch:
    """CPU time of the calls that go through it: the sum, and the longest."""

    def __init__(self, other_bytes: int = 0) -> None:
        self.total_ns = 0
        self.longest_ns = 0
        self._others = np.zeros(other_bytes // 8)

    def work_elsewhere(self) -> None:
        """Whatever the caches hold goes, if there are `other_bytes`."""
        self._others += 1.0

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.thread_time_ns()
        result = function(*arguments)
        spent = time.thread_time_ns() - begin
        self.total_ns += spent
        self.longest_ns = max(self.longest_ns, spent)
        return result


def make_prompt(peer: Peer, seed: int, length: int) -> Any:
    draw = random.Random(seed)
    return peer.prepare([draw.randrange(100, 120_000) for _ in range(length)])


def serve(peer: Peer, watch: Watch, prompt: Any) -> None:
    watch.work_elsewhere()
    sequence = watch.call(peer.begin, prompt)
    watch.call(peer.prefill, sequence)
    watch.work_elsewhere()
    watch.call(peer.end, sequence)


def per_block(watch: Watch, num_blocks: int) -> Figures:
    return {"ns": watch.total_ns / num_blocks, "longest_us": watch.longest_ns / 1000}


def serve_different(peer: Peer, size: Size, num_blocks: int, num_filled: int, window: int | None = None) -> Figures:
    """Prompts that share nothing, after some that only fill the cache."""
    peer.open(num_blocks, window)
    for seed in range(num_filled):
        serve(peer, Watch(), make_prompt(peer, seed, size.prompt))
    prompts = [make_prompt(peer, 1000 + seed, size.prompt) for seed in range(size.num_prompts)]
    watch = Watch(size.other_bytes)
    for prompt in prompts:
        serve(peer, watch, prompt)
    peer.close()
    return per_block(watch, size.num_prompts * size.prompt_blocks)


def cold(peer: Peer, size: Size, window: int | None = None) -> Figures:
    return serve_different(peer, size, size.roomy, 2, window)


def cold_windows(peer: Peer, size: Size) -> Figures:
    return cold(peer, size, WINDOW)


def full_pool(peer: Peer, size: Size) -> Figures:
    """The cache holds 20 of the prompts, all of others when the first one comes."""
    return serve_different(peer, size, 20 * size.prompt_blocks, 22)


def warm(peer: Peer, size: Size) -> Figures:
    """A long prompt that is cached, again and again."""
    peer.open(size.roomy)
    prompt = make_prompt(peer, 1, size.long_prompt)
    serve(peer, Watch(), prompt)
    watch = Watch(size.other_bytes)
    for _ in range(size.num_repeats):
        watch.work_elsewhere()
        sequence = watch.call(peer.begin, prompt)
        require_found(peer.num_reused(sequence), size.long_prompt)
        watch.call(peer.prefill, sequence)
        watch.work_elsewhere()
        watch.call(peer.end, sequence)
    peer.close()
    return per_block(watch, size.num_repeats * size.long_prompt // TOKENS_PER_BLOCK)


def require_found(num_found: int, length: int) -> None:
    """All of a cached prompt but its last block, of which each peer leaves out something else."""
    if num_found < length - TOKENS_PER_BLOCK:
        raise RuntimeError(f"{num_found} of {length} cached tokens were found")


def look_up(peer: Peer, size: Size) -> Figures:
    """How much of a long prompt is cached, for a router: it is, all of it."""
    peer.open(size.roomy)
    prompt = make_prompt(peer, 1, size.long_prompt)
    serve(peer, Watch(), prompt)
    watch = Watch(size.other_bytes)
    for _ in range(size.num_repeats):
        watch.work_elsewhere()
        require_found(watch.call(peer.probe, prompt), size.long_prompt)
    peer.close()
    return per_block(watch, size.num_repeats * size.long_prompt // TOKENS_PER_BLOCK)


def decode(peer: Peer, size: Size, window: int | None = None) -> Figures:
    """Steps of sequences of some 1,000 tokens; per token."""
    peer.open(size.roomy, window)
    sequences = []
    for seed in range(size.num_running):
        sequence = peer.begin(make_prompt(peer, seed, 1000 + seed))
        peer.prefill(sequence)
        sequences.append(sequence)
    watch = Watch(size.other_bytes)
    for step in range(size.num_steps):
        watch.work_elsewhere()
        watch.call(peer.step, sequences, [5000 + step + number for number in range(size.num_running)])
    for sequence in sequences:
        peer.end(sequence)
    peer.close()
    return per_block(watch, size.num_running * size.num_steps)


def decode_windows(peer: Peer, size: Size) -> Figures:
    return decode(peer, size, WINDOW)


def make_chats(seed: int, num_chats: int) -> list[tuple[list[int], int]]:
    """(prompt, tokens to generate) of the turns of all chats in the order of their arrival; a turn repeats all before it.

    The answers in later prompts are those that the trace generates, so that generated blocks are found again too.
    """
    draw = random.Random(seed)
    systems = [[draw.randrange(100, 120_000) for _ in range(length)] for length in (400, 1000, 2000)]
    chats = [list(draw.choice(systems)) for _ in range(num_chats)]
    turns = []
    for _turn in range(4):
        for number in draw.sample(range(num_chats), num_chats):
            chat = chats[number]
            chat.extend(draw.randrange(100, 120_000) for _ in range(draw.randrange(30, 1200)))
            answer = draw.randrange(20, 200)
            turns.append((list(chat), answer))
            chat.extend([answer_token(len(chat) + index) for index in range(answer)])
    return turns


def answer_token(position: int) -> int:
    return 100 + position * 7919 % 100_000


def trace(peer: Peer, size: Size) -> Figures:
    """Chats with continuous batching of 12 sequences in a cache that holds a half of what they would use."""
    turns = [(peer.prepare(prompt), len(prompt), answer) for prompt, answer in make_chats(7, size.num_chats)]
    peer.open(100 * max(size.num_chats, 40))
    watch = Watch()
    reused = 0
    waiting = iter(turns)
    running: list[list[Any]] = []  # [sequence, its length, tokens to generate]
    while True:
        while len(running) < 12:
            turn = next(waiting, None)
            if turn is None:
                break
            prompt, length, answer = turn
            sequence = watch.call(peer.begin, prompt)
            reused += peer.num_reused(sequence)
            watch.call(peer.prefill, sequence)
            running.append([sequence, length, answer])
        if not running:
            break
        watch.call(peer.step, [one[0] for one in running], [answer_token(one[1]) for one in running])
        for one in running:
            one[1] += 1
            one[2] -= 1
        for one in [one for one in running if one[2] == 0]:
            watch.call(peer.end, one[0])
            running.remove(one)
    peer.close()
    share = reused / sum(length for _, length, _ in turns)
    return {"ms": watch.total_ns / 1e6, "longest_us": watch.longest_ns / 1000, "hit_percent": 100 * share}


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def memory(peer: Peer, size: Size) -> Figures:
    """Host memory of a cache that is full of cached blocks. Once in a process, before anything else has run there."""
    peer.open(2 * size.prompt_blocks)
    serve(peer, Watch(), make_prompt(peer, 1, size.prompt))
    peer.close()
    num_blocks = size.num_cached_blocks
    prompts = [make_prompt(peer, seed, size.prompt) for seed in range(num_blocks // size.prompt_blocks)]
    gc.collect()
    before = resident_bytes()
    peer.open(num_blocks)
    for prompt in prompts:
        serve(peer, Watch(), prompt)
    gc.collect()
    used = resident_bytes() - before
    peer.close()
    return {"bytes": used / num_blocks}


WORK: dict[str, Callable[[Peer, Size], Figures]] = {
    "memory": memory, "cold": cold, "warm": warm, "look_up": look_up, "full_pool": full_pool, "decode": decode, "trace": trace,
    "cold_windows": cold_windows, "decode_windows": decode_windows,
}  # fmt: skip
OTHER_BYTES = 64 << 20
"""More than the caches of one core have."""


def between_steps(work: Callable[[Peer, Size], Figures], peer: Peer, size: Size) -> Figures:
    return work(peer, replace(size, other_bytes=OTHER_BYTES))


BETWEEN = "_between"
WORK |= {name + BETWEEN: partial(between_steps, work) for name, work in WORK.items() if name not in ("memory", "trace")}
