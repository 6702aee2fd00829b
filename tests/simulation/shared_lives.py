"""Random histories of a fleet: ranks that share a store serve prompts, forget, end and begin anew, while the store loses and alters values.

The model: what a prompt's sequence has committed is in the store from then on, a name for each whole block of a scope and an epoch. A rank
must find the longest prefix that is there where no window is in the way and nothing was lost, and never more than was computed. The
engine checks every byte that it reads. With a codec that packs with loss, exact requests find nothing there, and no exact request matches
what came from there.
"""

import random
from typing import Any

from shared_models import TOKENS_PER_BLOCK, Rank, shared_config

from kv_cache_manager_v2 import ColdPageCodec, ReuseScope
from kv_cache_manager_v2.codecs.lossless_codec import LosslessCodec
from kv_cache_manager_v2.shared import MemoryStore
from kv_cache_manager_v2.testing.reversing_codec import ReversingCodec

SCOPES = (None, ReuseScope(salt="of one tenant"), ReuseScope(salt="of another one"))
NUM_RANKS = 3
MOST_TOKENS = 40
MOST_EARLIER = 12

Text = tuple[int, ...]


class SharedLives:
    """``num_found``: prompts of which a rank has found a part in the store; ``num_lives``: ranks that were made."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.windows: tuple[int | None, ...] = self.random.choice(((None,), (None,), (None, 8), (8,)))
        keys: list[bytes | None] = [None, self.random.randbytes(32)]
        self.key = self.random.choice(keys)
        codecs = (None, ReversingCodec(3), ReversingCodec(2, False), LosslessCodec("bfloat16"))
        self.codec: ColdPageCodec | None = codecs[seed % len(codecs)]
        self.is_lossy = self.codec is not None and not self.codec.is_lossless
        self.num_lossy = 0
        """Prompts of which a rank has found a part in the store, packed with loss."""
        self.vocabulary = self.random.choice((2, 1000))
        self.store = MemoryStore()
        self.epoch = 0
        self.computed: list[tuple[Any, Text]] = []
        """Scopes and texts that the store was given in this epoch, in whole blocks."""
        self.former: list[tuple[Any, Text]] = []
        """Of earlier epochs."""
        self.is_whole = True
        """Nothing was lost or altered since the epoch began."""
        self.num_found = 0
        self.num_lives = 0
        self.ranks = [self.begin_life() for _ in range(NUM_RANKS)]

    def begin_life(self) -> Rank:
        self.num_lives += 1
        host_slots = self.random.choice((0, 32))
        return Rank(self.store, shared_config(self.windows, host_slots=host_slots), key=self.key, epoch=self.epoch, codec=self.codec)

    def run(self, num_actions: int) -> None:
        for _action in range(num_actions):
            kind = self.random.random()
            number = self.random.randrange(NUM_RANKS)
            if kind < 0.7:
                self.serve(self.ranks[number])
            elif kind < 0.83:
                self.ranks[number].forget()
            elif kind < 0.9:
                self.ranks[number].end()
                self.ranks[number] = self.begin_life()
            elif kind < 0.96:
                self.damage_store()
            else:
                self.begin_epoch()
        for rank in self.ranks:
            rank.end()

    def serve(self, rank: Rank) -> None:
        scope, text = self.draw_text()
        is_exact = self.is_lossy and self.random.random() < 0.2
        request = rank.begin(list(text), scope, is_exact)
        begin = request.kv_cache.num_committed_tokens
        num_loaded = rank.load(request)
        assert num_loaded == 0 or not is_exact, "an exact request has got pages that were packed with loss"
        end = begin + num_loaded
        known = max((common_length(text[:-1], other) for owner, other in self.computed if owner == scope), default=0)
        assert num_loaded == 0 or end <= known, f"{end} tokens of {text} are there, and {known} were ever computed"
        if self.is_whole and self.windows == (None,) and not is_exact:
            least = known // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
            assert end >= least, f"{end} tokens of {text} are found, and {least} are in the store"
        self.num_found += num_loaded > 0
        rank.compute(request, list(text))
        rank.drain()
        if self.is_lossy and num_loaded > 0 and None in self.windows:
            self.num_lossy += 1
            with rank.manager.create_kv_cache(scope, list(text), exact=True) as kv_cache:
                assert kv_cache.num_committed_tokens <= begin, f"from token {begin} on {text} came from the store, packed with loss"
        self.computed.append((scope, text[: len(text) // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK]))

    def draw_text(self) -> tuple[Any, Text]:
        """Often the beginning of an earlier one, with another end, and seldom in another scope."""
        length = self.random.randrange(2, MOST_TOKENS)
        scope, begin = self.random.choice(SCOPES), ()
        earlier = [*self.former, *self.computed]
        if earlier and self.random.random() < 0.8:
            owner, other = self.random.choice(earlier[-MOST_EARLIER:])
            scope = scope if self.random.random() < 0.2 else owner
            begin = other[: self.random.randrange(1, length)]
        return scope, (*begin, *[self.random.randrange(self.vocabulary) for _ in range(length - len(begin))])

    def damage_store(self) -> None:
        """Some values are gone, and of others a bit is another one."""
        for key in self.store.keys():
            kind = self.random.random()
            value = self.store.get(key)
            assert value is not None
            if kind < 0.15:
                self.store.discard(key)
                self.is_whole = False
            elif kind < 0.6:
                altered = bytearray(value)
                altered[self.random.randrange(len(altered))] ^= 1 << self.random.randrange(8)
                self.store.put(key, bytes(altered))
                self.is_whole = False

    def begin_epoch(self) -> None:
        """New weights: what was computed with the old ones is no one's any more."""
        self.epoch += 1
        for rank in self.ranks:
            rank.engine.synchronize()
            rank.level.begin_epoch(self.epoch)
        self.former.extend(self.computed)
        self.computed = []
        self.is_whole = True


def common_length(text: Text, other: Text) -> int:
    length = 0
    while length < min(len(text), len(other)) and text[length] == other[length]:
        length += 1
    return length
