"""Offline caches that know the future: the optimum, and LRU without blocks that are never used again.

The optimum is Belady's: the block needed last is evicted first, and blocks that are never needed again are not cached. A block is
never needed later than its children, so this keeps to prefixes by itself. As in any cache, a prompt that runs has slots for its blocks (the
first ones, where it has more of them), and room is made before it begins.
"""

from heapq import heappop, heappush

from .block_requests import BlockRequests


def next_uses(blocks: BlockRequests) -> list[list[int]]:
    """By request and block, the next request with that block; the number of requests if there is none."""
    never = len(blocks.requests)
    next_use = [never] * blocks.num_blocks
    result: list[list[int]] = []
    for ordinal in range(never - 1, -1, -1):
        result.append([next_use[block] for block in blocks.requests[ordinal]])
        for block in blocks.requests[ordinal]:
            next_use[block] = ordinal
    result.reverse()
    return result


def count_optimal_hits(blocks: BlockRequests, uses: list[list[int]], num_slots: int) -> int:
    """Hits of Belady's optimum for ``num_slots`` slots; ``uses`` of `next_uses`."""
    never = len(blocks.requests)
    cached: dict[int, int] = {}
    """Next use of each cached block."""
    farthest: list[tuple[int, int, int]] = []
    hits = 0
    for ordinal, request in enumerate(blocks.requests):
        running = request[:num_slots]
        hits += _count_cached(running, cached)
        for block in running:
            cached.pop(block, None)
        while len(cached) > num_slots - len(running):
            negative_use, _place, victim = heappop(farthest)
            if cached.get(victim) == -negative_use:
                del cached[victim]
        for place, block in enumerate(running):
            use = uses[ordinal][place]
            if use != never:
                cached[block] = use
                heappush(farthest, (-use, -place, block))
    return hits


def count_hits_of_reused(blocks: BlockRequests, uses: list[list[int]], num_slots: int) -> int:
    """Hits of LRU without the blocks that are never needed again."""
    never = len(blocks.requests)
    cached: dict[int, int] = {}
    hits = 0
    for ordinal, request in enumerate(blocks.requests):
        running = request[:num_slots]
        hits += _count_cached(running, cached)
        for block in running:
            cached.pop(block, None)
        while len(cached) > num_slots - len(running):
            del cached[next(iter(cached))]
        for place in range(len(running) - 1, -1, -1):
            use = uses[ordinal][place]
            if use != never:
                cached[running[place]] = use
    return hits


def _count_cached(request: list[int], cached: dict[int, int]) -> int:
    """Leading blocks that are cached."""
    count = 0
    while count < len(request) and request[count] in cached:
        count += 1
    return count


def count_reusable(blocks: BlockRequests) -> int:
    """Hits of a cache that keeps everything."""
    return blocks.num_accesses - blocks.num_blocks
