"""The order of turns where so many sessions run at a time: a log may have its sessions one after the other."""

import heapq
from collections.abc import Iterable
from typing import Final, TypeAlias

from .workload import Request

TOKENS_PER_SECOND: Final = 60.0
"""Of an answer: what AIPerf 0.13 estimates the length of its sessions by."""

_Coming: TypeAlias = tuple[float, int, int, Request | None]
"""When, the how many-th that became known, the number of its session, and the turn; None: the last answer of a session is complete."""


def interleave(requests: Iterable[Request], num_sessions: int) -> list[Request]:
    """In the order in which they come, their time stamps aside. Sessions begin as given, the first ``num_sessions`` at once, each further
    one where a session ends; a later turn comes its ``delay_ms`` after the answer before it. Of turns at the same time the one that became
    known first is first. A turn may be followed by several, as branches of a chat; the session ends with the last of them."""
    following: dict[int, list[Request]] = {}
    first_turns: list[Request] = []
    for given in requests:
        if given.after is None:
            first_turns.append(given)
        else:
            following.setdefault(given.after, []).append(given)
    num_known = num_begun = min(num_sessions, len(first_turns))
    coming: list[_Coming] = [(0.0, number, number, first_turns[number]) for number in range(num_begun)]
    num_turns_coming = dict.fromkeys(range(num_begun), 1)
    ordered: list[Request] = []
    while len(coming) > 0:
        time_ms, _, session, request = heapq.heappop(coming)
        if request is None:
            if num_begun < len(first_turns):
                heapq.heappush(coming, (time_ms, num_known, num_begun, first_turns[num_begun]))
                num_turns_coming[num_begun] = 1
                num_begun += 1
                num_known += 1
            continue
        ordered.append(request)
        time_ms += 1000.0 * request.num_output_tokens / TOKENS_PER_SECOND
        turns = following.get(request.id, [])
        for turn in turns:
            heapq.heappush(coming, (time_ms + turn.delay_ms, num_known, session, turn))
            num_known += 1
        num_turns_coming[session] += len(turns) - 1
        if num_turns_coming[session] == 0:
            del num_turns_coming[session]
            heapq.heappush(coming, (time_ms, num_known, session, None))
            num_known += 1
    return ordered
