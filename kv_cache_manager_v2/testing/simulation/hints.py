"""Hint actions about prefixes, cached or not: only the places and priorities of pages may change."""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Final

from ...base.ids import TokenIdExt
from ...manager.kv_cache_manager import KVCacheManager
from ...reuse.reuse_scope import ReuseScope
from ..reference_pages import ModelDisagreement

_SCOPES: Final = ((None, None), (0, None), (None, 0), (7, "a"), (7, "b"))


def draw_scope(random: Random) -> ReuseScope:
    lora_id, salt = _SCOPES[0] if random.random() < 0.7 else random.choice(_SCOPES)
    return ReuseScope(lora_id, salt)


def give_hint(manager: KVCacheManager, text: Sequence[TokenIdExt], random: Random) -> bool:
    """Give a hint; returns whether it may have evicted pages."""
    tokens = list(text)
    scope = draw_scope(random)
    kind = random.random()
    if kind < 0.4:
        draw = random.random()
        seconds = None if draw < 0.3 else inf if draw < 0.5 else random.random() * 50
        answer = manager.retain(tokens, scope, int(random.random() * 101), seconds)
    elif kind < 0.6:
        answer = manager.release(tokens, scope)
    elif kind < 0.8:
        answer = manager.demote(tokens, scope)
    else:
        answer = manager.prefetch(tokens, scope, int(random.random() * len(manager.cache_tier_list)))
    if answer.num_accepted + answer.num_clipped + answer.num_missing != len(tokens):
        raise ModelDisagreement(f"a hint about {len(tokens)} tokens is answered with {answer}")
    return kind >= 0.8
