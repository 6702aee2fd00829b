"""`LearnedPlacement` beside its rules in plain Python, over random histories of chats, shared instructions and single questions.

A snapshot in a wrong place costs only time, and a missing one only a hit, so what is counted wrong shows nowhere else.
"""

from collections.abc import Callable
from random import Random

import pytest
from hybrid_models import FIRST_STATE_LAYER, hybrid_config
from unit.sequence.naive_placement import NaivePlacement
from small_models import attention_layers

from kv_cache_manager_v2 import (
    BufferConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    ReuseScope,
    SnapshotPolicy,
    SsmLayerConfig,
)
from kv_cache_manager_v2.sequence.learned_placement import LOOK_BACK, PromptLook

SIZE = 4
LEARNED = SnapshotPolicy(placement="learned", at_commits=False)


def apart() -> KVCacheManagerConfig:
    """States have a pool group of their own, on two levels."""
    tiers = [GpuCacheTierConfig(1 << 10), HostCacheTierConfig(1 << 10)]
    return hybrid_config(cache_tiers=tiers, snapshot_policy=LEARNED, max_util_for_resume=1.0)


def together() -> KVCacheManagerConfig:
    """A state is as large as a block, so they share a pool group."""
    attention = attention_layers([None], SIZE)
    size = attention[0].buffers[0].size
    state = SsmLayerConfig(LayerId(FIRST_STATE_LAYER), [BufferConfig("conv", size), BufferConfig("ssm", size)])
    tiers = [GpuCacheTierConfig(48 * 2 * size)]
    return KVCacheManagerConfig(SIZE, tiers, [*attention, state], snapshot_policy=LEARNED, max_util_for_resume=1.0)


def count_slots(manager: KVCacheManager) -> tuple[int, int]:
    """Those that snapshots may take, a quarter of them where blocks are in the same pool group, and the most for blocks."""
    levels = [manager.get_storage_statistics(level) for level in range(len(manager.init_config.cache_tiers))]
    totals = [sum(groups[group].total for groups in levels) for group in range(len(levels[0]))]
    state_group = manager._shared.storage.pool_group_of[manager._shared.state_life_cycle]
    available = sum(groups[state_group].available for groups in levels)
    if len(totals) == 1:
        return available // 4, totals[0]
    return available, max(total for group, total in enumerate(totals) if group != state_group)


class History:
    """Prompts of a few scopes, with what the tree would know of each: all earlier prompts of its scope, in whole blocks."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.known: dict[int, set[tuple[int, ...]]] = {}
        self.chats: dict[int, list[list[int]]] = {}
        self.instructions = [self._text(self.random.randint(4, 40)) for _ in range(5)]
        self.chance_of_turn = self.random.random()
        self.latest_chat: list[int] = []
        self.document: list[int] | None = [] if seed % 2 == 0 else None
        """Of half of the histories: asked about a few times, then comes another one of the same length."""

    def _text(self, length: int) -> list[int]:
        first = self.random.randrange(1 << 20)
        return [first + position for position in range(length)]

    def prompt(self, scope: int) -> list[int]:
        chats = self.chats.setdefault(scope, [])
        if chats and self.random.random() < self.chance_of_turn:
            chat = self.random.choice(chats[-6:])
            chat += self._text(self.random.randint(1, 20))
            self.latest_chat = chat
            return list(chat)
        text = self._text(self.random.randint(0, 30))
        if self.document is not None and self.random.random() < 0.7:
            if len(self.document) == 0 or self.random.random() < 0.4:
                self.document = self._text(8 * SIZE + 1)
            text = self.document + text
        elif self.random.random() < 0.7:
            text = self.random.choice(self.instructions) + text
        self.latest_chat = text = list(text)
        chats.append(text)
        return list(text)

    def serve(self, scope: int, prompt: list[int]) -> tuple[int, bool]:
        """Blocks that are known, and whether they have no other way on."""
        known = self.known.setdefault(scope, set())
        paths = [tuple(prompt[: count * SIZE]) for count in range(1, len(prompt) // SIZE + 1)]
        count = sum(path in known for path in paths)
        end = tuple(prompt[: count * SIZE])
        extends = not any(len(path) == len(end) + SIZE and path[: len(end)] == end for path in known)
        known.update(paths)
        return count, extends and count > 0

    def answer(self, scope: int) -> None:
        """The latest prompt is answered; the answer is known, and no prompt ends there. Some are as long as is looked back."""
        looked_back = SIZE * LOOK_BACK
        self.latest_chat += self._text(self.random.choice((0, 5, 13, looked_back - SIZE, looked_back, looked_back + 3, 90)))
        num_blocks = len(self.latest_chat) // SIZE
        self.known[scope].update([tuple(self.latest_chat[: count * SIZE]) for count in range(1, num_blocks + 1)])


@pytest.mark.parametrize("num_requests, answers", [(40, False), (400, False), (2200, False), (40, True), (300, True)])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("config", [apart, together])
def test_places_and_prices_follow_the_rules(
    config: Callable[[], KVCacheManagerConfig], seed: int, num_requests: int, answers: bool
) -> None:
    """``answers``: prompts of later turns go on behind what was generated, which no prompt had."""
    history = History(101 * seed + num_requests)
    random = Random(seed)
    with KVCacheManager(config(), device=HostDevice()) as manager:
        placement = manager._shared.recurrent.learned_placement
        assert placement is not None
        # Their slots are not to be had; and they teach nothing.
        held = [manager.create_kv_cache(count_in_statistics=False) for _ in range(2)]
        for kv_cache in held:
            assert kv_cache.resume() and kv_cache.resize(2 * SIZE)
        naive = NaivePlacement(*count_slots(manager), SIZE)
        num_scopes = 1 if num_requests > 1024 else random.choice([1, 2, 70])
        chosen = highest = 0
        waiting: list[tuple[PromptLook, tuple[int, list[int], int, bool, list[tuple[int, int]]]]] = []
        for _ in range(num_requests):
            scope = random.randrange(num_scopes)
            prompt = history.prompt(scope)
            known, extends = history.serve(scope, prompt)
            if answers and random.random() < 0.5:
                history.answer(scope)
            packed = b"".join(one.to_bytes(4, "little") for one in prompt)
            # A prompt that waits is looked up again and again, others are looked up meanwhile, and it is observed once, or never.
            for _look in range(random.choice((1, 1, 3))):
                look = placement.look(ReuseScope(salt=scope), packed, known, extends)
                kinds = naive.look(prompt, known, extends)
                assert (look.branch_kind, look.end_kind, look.num_tokens) == (*kinds, len(prompt))
                matched = random.choice([0, 0, known * SIZE, random.randint(0, len(prompt))])
                branch = known * SIZE if not extends else 0
                at_end, at_branches = random.random() < 0.9, random.random() < 0.9
                found = placement.list_positions(look, matched, branch, at_end, at_branches)
                expected = naive.positions(scope, len(prompt), kinds, matched, branch, at_end, at_branches)
                assert (None if found is None else set(found)) == expected
                assert found is None or len(found) == len(set(found))
            if random.random() < 0.95:
                waiting.append((look, (scope, prompt, known, extends, naive.asked)))
            while waiting and random.random() < 0.8:
                admitted, facts = waiting.pop(random.randrange(len(waiting)))
                placement.observe(admitted)
                naive.observe(*facts)
            assert placement.price == naive.price
            chosen += len(found or [])
            highest = max(highest, naive.price)
        assert chosen > 0 and (highest > 1 or num_requests < 100 or config is apart)
        for kv_cache in held:
            kv_cache.close()
