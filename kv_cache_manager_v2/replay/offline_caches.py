"""What could be had if the future were known: the optimum, and recency alone with no room spent on what never comes back.

The optimum is Belady's: whatever is needed last goes first, and what is never needed again is not kept at all. A block is never
needed later than those below it, so that this keeps to prefixes by itself.
"""

from heapq import heappop, heappush

from .block_requests import BlockRequests


def next_uses(blocks: BlockRequests) -> list[list[int]]:
    """Per request and block, the next request that holds it; the number of requests if none does."""
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
    """Belady's optimum for ``num_slots`` slots; ``uses`` of `next_uses`."""
    never = len(blocks.requests)
    cached: dict[int, int] = {}
    """Next use of each cached block."""
    farthest: list[tuple[int, int, int]] = []
    hits = 0
    for ordinal, request in enumerate(blocks.requests):
        is_hit = True
        for place, block in enumerate(request):
            is_hit = is_hit and block in cached
            hits += is_hit
            use = uses[ordinal][place]
            if use == never:
                cached.pop(block, None)
            else:
                cached[block] = use
                heappush(farthest, (-use, -place, block))
        while len(cached) > num_slots:
            negative_use, _place, victim = heappop(farthest)
            if cached.get(victim) == -negative_use:
                del cached[victim]
    return hits


def count_hits_of_reused(blocks: BlockRequests, uses: list[list[int]], num_slots: int) -> int:
    """The least recently used goes first, and what is never needed again is not kept."""
    never = len(blocks.requests)
    cached: dict[int, None] = {}
    hits = 0
    for ordinal, request in enumerate(blocks.requests):
        is_hit = True
        for block in request:
            is_hit = is_hit and block in cached
            hits += is_hit
            cached.pop(block, None)
        for place in range(len(request) - 1, -1, -1):
            if uses[ordinal][place] != never:
                cached[request[place]] = None
        while len(cached) > num_slots:
            del cached[next(iter(cached))]
    return hits


def count_reusable(blocks: BlockRequests) -> int:
    """Hits of a cache that keeps everything."""
    return blocks.num_accesses - blocks.num_blocks
