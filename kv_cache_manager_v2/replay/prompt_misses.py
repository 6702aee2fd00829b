"""Miss causes in a replay's report: why prompt tokens were not reused, and what each cause means.

The manager cannot distinguish a new prefix from one whose history entry is gone: `MissCause.NOT_REMEMBERED`. A replay can, as it
knows all prefixes of the log and which of them were published (`PrefixLedger`). Every other cause has the name of its `MissCause`.
"""

from typing import Final

from .. import MissCause, PromptStatistics

NEW: Final = "new"
FORGOTTEN: Final = "forgotten"
SAME_TIME: Final = "computed at the same time"

MISS_MEANINGS: Final[dict[str, str]] = {
    NEW: "in no request before: no cache can have them",
    SAME_TIME: "in an earlier request that has not computed them yet, or comes later in service: fewer running at a time would help",
    FORGOTTEN: "published, evicted, and so long ago that the manager has no record: more memory would help",
    "evicted": "evicted by priority and policy: more memory would help",
    "unreachable": "evicted with the block before them: more memory would help",
    "window broken": "cached, but a windowed layer has lost pages that the prefix's end reads: more memory for that pool group, or "
    "another --pool-ratio",
    "no snapshot": "cached, but no recurrent state is: more memory for that pool group, or another --pool-ratio",
    "partial block": "a cached block begins with the same tokens, and lacks pages to serve them",
    "shrunk": "evicted when the pool groups shared the memory anew",
    "dropped": "dropped on request",
    "other scope": "cached in another reuse scope",
    "load failed": "lost in a transfer",
    "backoff": "trimmed off the match by reuse_match_backoff",
}


def words_of(cause: MissCause) -> str:
    """WINDOW_BROKEN: window broken."""
    return cause.name.lower().replace("_", " ")


def count_misses(prompt: PromptStatistics, num_prompt_tokens: int, num_published: int, num_reusable: int, size: int) -> dict[str, int]:
    """Missed tokens by word; with the hits they add up to ``num_prompt_tokens``.

    ``prompt``: of the sequence, which looked up all but the last token, the one that the model must compute. ``num_published``: tokens
    that were ever published; ``num_reusable``: that some earlier request of the log has. The manager remembers whole blocks, of ``size``
    tokens: published tokens in a part of one, which no record is kept of, went with those before them.
    """
    missed = {words_of(cause): tokens for cause, tokens in prompt.missed_tokens.items() if cause is not MissCause.NOT_REMEMBERED}
    not_remembered = prompt.missed_tokens.get(MissCause.NOT_REMEMBERED, 0)
    # What is not remembered ends the prompt: first what was published, then what others compute, then what is new.
    num_new = min(max(prompt.tokens - max(num_reusable, num_published), 0), not_remembered)
    num_same_time = min(max(num_reusable - num_published, 0), not_remembered - num_new)
    num_forgotten = not_remembered - num_new - num_same_time
    cause_before = max(missed, key=missed.__getitem__, default=words_of(MissCause.EVICTED))
    missed[NEW] = num_new + num_prompt_tokens - prompt.tokens
    for cause, tokens in ((SAME_TIME, num_same_time), (FORGOTTEN if num_forgotten >= size else cause_before, num_forgotten)):
        if tokens > 0:
            missed[cause] = missed.get(cause, 0) + tokens
    return missed
