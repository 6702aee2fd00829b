"""The learned placement of snapshots of recurrent state: at which lengths a prompt leaves them, by what earlier prompts came back for.

Of each prompt it is observed how many of its blocks the tree knows, and how it goes on from there:

    continues    an earlier prompt ended there, within a block, or the prompt has all that is known of the path: the next turn of a chat
    parts        it leaves a path that goes on otherwise; for the first time there, or again

A prompt then leaves snapshots, in whole blocks but for the last, at

    depths       where prompts of its scope concentrate in parting for the first time: see `OverlapDepths`
    the branch   where it leaves the tree, as other prompts will come back there
    its end      exactly, or at the last block boundary before it, whichever saves more, as it will be continued

as far as they pay. A snapshot that is used ``r`` times on average, each time for ``g`` tokens that need not be computed again, and that
waits ``D`` requests from one use to the next, takes its slot for ``(r + 2) * D`` requests, as it is evicted only some time after its
last use. So it saves ``r * g / ((r + 2) * D)`` tokens for each request that it stays. ``r`` and ``D`` are counted for each kind of place,
those of prompts that begin anew and of prompts that continue another one apart. Every `PRICING` requests the places of the latest ones are
sorted by what they save, and the price is set to that of the first for which no slot is left, if all better ones stay their time: this is
Dantzig's greedy rule for the fractional knapsack, with slots times requests as its budget. A place pays if it saves at least the price.

Slots are counted when the price is set, so `resize` and `adjust` need tell nothing. In a scope of fewer than `LEAST_REQUESTS` prompts,
snapshots are placed as without all this. Everything follows from the calls in their order, in integers, so ranks, and journals that run
again, decide alike. `NUM_SCOPES` scopes and `NUM_MARKS` places are remembered; the least recently used is forgotten. A request costs a
walk over `NUM_DEPTHS` numbers and the hash of at most `LOOK_BACK` blocks and two; once in `PRICING` requests the places of that many are
sorted, a few each, and depths are chosen, in some 500 steps for each price tried.
"""

from typing import Final, final

from mypy_extensions import i64

from ..reuse.overlap_depths import PRICE_UNITS, OverlapDepths
from ..reuse.prefix_hash import hash_block
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import TOKEN_BYTES
from ..storage.page_storage import PageStorage

LEAST_REQUESTS: Final = 8
PRICING: Final = 32
NUM_SCOPES: Final = 64
NUM_MARKS: Final = 4096
SAVINGS_SCALE: Final = 1 << 16
"""Units of savings: tokens for each request that a slot is taken."""
LOOK_BACK: Final = 16
"""Blocks above the end of the known ones among which the end of an earlier prompt is looked for: about an answer's length."""
_HALVING: Final = 1024
_SHARE_OF_POOL: Final = 4
"""Where states and pages are equally large they share a pool group, and snapshots are to take no more than that part of it."""
_WAITS_AFTER: Final = 2
"""Times `D` that a snapshot stays after its last use."""

# Kinds of places.
AMID_PATH: Final = 0
AT_PROMPT_END: Final = 1
END_OF_NEW: Final = 2
END_OF_CONTINUED: Final = 3

# What is known of a place, beside the number of the latest request there.
_PROMPT_END: Final = 1
_CONTINUED: Final = 2
_WAS_LEFT: Final = 4
_FLAG_BITS: Final = 3
_FLAGS: Final = (1 << _FLAG_BITS) - 1


@final
class PlaceFacts:
    """How often places of one kind are come back to. All counts are halved now and then, so that what is long ago fades."""

    __slots__ = ("num_places", "num_uses", "num_whole", "num_waits", "sum_waits")

    def __init__(self) -> None:
        self.num_places = 0
        self.num_uses = 0
        self.num_whole = 0
        """Uses that had all tokens of an earlier prompt."""
        self.num_waits = 0
        self.sum_waits = 0
        """Requests from one visit to the next."""

    def add_wait(self, num_requests: int) -> None:
        self.sum_waits += num_requests
        self.num_waits += 1

    def halve(self) -> None:
        self.num_places //= 2
        self.num_uses //= 2
        self.num_whole //= 2
        self.num_waits //= 2
        self.sum_waits //= 2

    def count_stay(self, most: int) -> int:
        """Requests for which a snapshot keeps its slot, at most ``most``; half as many of a place of which nothing is known."""
        mean_wait = max(self.sum_waits // self.num_waits if self.num_waits > 0 else most // (2 * (1 + _WAITS_AFTER)), 1)
        stay = (self.num_uses + 1 + _WAITS_AFTER * (self.num_places + 1)) * mean_wait // (self.num_places + 1)
        return min(max(stay, 1), most)


@final
class ScopeFacts:
    """Observed prompts of one scope."""

    __slots__ = ("depths", "places", "num_since_halving", "num_since_choice")

    def __init__(self) -> None:
        self.depths: Final = OverlapDepths()
        self.places: Final[list[PlaceFacts]] = [PlaceFacts(), PlaceFacts(), PlaceFacts(), PlaceFacts()]
        """By kind of place."""
        self.num_since_halving = 0
        self.num_since_choice = 0


@final
class PromptLook:
    """A prompt that was looked up, and where it leaves the tree; nothing is learned of it before `LearnedPlacement.observe`."""

    __slots__ = ("scope", "packed", "num_tokens", "known_blocks", "extends", "branch_kind", "end_kind", "offers")

    def __init__(self, scope: ReuseScope, packed: bytes, known_blocks: i64, extends: bool, branch_kind: int, end_kind: int) -> None:
        self.scope: Final = scope
        self.packed: Final = packed
        self.num_tokens: Final[int] = len(packed) // TOKEN_BYTES
        self.known_blocks: Final = known_blocks
        self.extends: Final = extends
        self.branch_kind: Final = branch_kind
        self.end_kind: Final = end_kind
        self.offers: Final[list[tuple[int, int]]] = []
        """What a snapshot would save at each of the places that it may leave one at, and how long it would stay."""


@final
class LearnedPlacement:
    """One for each manager with recurrent layers."""

    __slots__ = (
        "price", "_storage", "_pool_group", "_has_attention", "_tokens_per_block", "_scopes", "_marks", "_num_requests",
        "_num_recent", "_num_new_blocks", "_num_since_pricing", "_offers", "_longest_stay",
    )  # fmt: skip

    def __init__(self, storage: PageStorage, life_cycle: i64, tokens_per_block: int) -> None:
        self.price = 1
        """Tokens that a snapshot has to save for each request that it stays, in `SAVINGS_SCALE`."""
        self._storage: Final = storage
        self._pool_group: Final[i64] = storage.pool_group_of[life_cycle]
        others = [storage.pool_group_of[cycle] for cycle in range(storage.rows.num_life_cycles) if cycle != life_cycle]
        self._has_attention: Final[bool] = self._pool_group in others
        """Whether the pool group has pages of attention too."""
        self._tokens_per_block: Final[i64] = tokens_per_block
        self._scopes: Final[dict[ReuseScope, ScopeFacts]] = {}
        """The least recently used first."""
        self._marks: Final[dict[int, int]] = {}
        """By a hash of the block that ends there and its ordinal: the number of the latest request, and what is known of the place."""
        self._num_requests = 0
        self._num_recent = 0
        """Requests; halved with their new blocks now and then."""
        self._num_new_blocks = 0
        self._num_since_pricing = 0
        self._offers: Final[list[tuple[int, int]]] = []
        """Savings of the latest requests' places, in units of the price, and how many requests a snapshot stays."""
        self._longest_stay: int = NUM_MARKS
        """Requests until the attention's pages are gone, without which a snapshot serves nothing."""

    # -- learning -----------------------------------------------------------------------------------------------------

    def look(self, scope: ReuseScope, packed: bytes, known_blocks: i64, extends: bool) -> PromptLook:
        """Where a prompt of which the tree knows so many blocks leaves it; ``extends``: the path goes on no other way there."""
        mark = self._marks.get(self._key_of(packed, known_blocks), 0) if known_blocks > 0 else 0
        branch_kind = AMID_PATH if mark & _PROMPT_END == 0 else AT_PROMPT_END
        continues = known_blocks > 0 and (extends or (branch_kind == AT_PROMPT_END and mark & _WAS_LEFT == 0))
        return PromptLook(scope, packed, known_blocks, extends, branch_kind, END_OF_CONTINUED if continues else END_OF_NEW)

    def observe(self, prompt: PromptLook) -> None:
        """Learn from a prompt: there is room for it."""
        packed = prompt.packed
        known_blocks = prompt.known_blocks
        extends = prompt.extends
        # Others may have been observed since it was looked up.
        place = self.look(prompt.scope, packed, known_blocks, extends)
        continues = place.end_kind == END_OF_CONTINUED
        facts = self._take_facts(prompt.scope)
        length: i64 = prompt.num_tokens // self._tokens_per_block
        self._num_requests += 1
        self._num_recent += 1
        self._num_new_blocks += int(length - known_blocks)
        parts_first = False
        if known_blocks > 0:
            mark = self._visit(packed, known_blocks, 0 if extends else _WAS_LEFT)
            parts_first = not extends and not continues and mark & _WAS_LEFT == 0
            if continues:
                end_mark = mark
                if extends and mark & _PROMPT_END == 0:
                    end_mark = self._find_prompt_end(packed, known_blocks - 1)
                self._record_continuation(facts, end_mark, extends)
            if not extends:
                self._record_branch(facts.places[place.branch_kind], mark)
        facts.depths.record(known_blocks, length, parts_first)
        if length > 0:
            self._visit(packed, length, _PROMPT_END | _CONTINUED if continues else _PROMPT_END)
        facts.places[place.end_kind].num_places += 1
        self._refresh(facts)
        self._offers.extend(prompt.offers)

    def _take_facts(self, scope: ReuseScope) -> ScopeFacts:
        facts = self._scopes.pop(scope, None)
        if facts is None:
            facts = ScopeFacts()
            if len(self._scopes) == NUM_SCOPES:
                del self._scopes[next(iter(self._scopes))]
        self._scopes[scope] = facts
        return facts

    def _key_of(self, packed: bytes, num_blocks: i64) -> int:
        num_bytes = self._tokens_per_block * TOKEN_BYTES
        return int(hash_block(num_blocks, packed[(num_blocks - 1) * num_bytes : num_blocks * num_bytes]))

    def _visit(self, packed: bytes, num_blocks: i64, flags: int) -> int:
        """The mark of the place as it was, 0 if there was none; it is the latest one now, and has ``flags`` as well."""
        key = self._key_of(packed, num_blocks)
        mark = self._marks.pop(key, 0)
        if len(self._marks) == NUM_MARKS:
            del self._marks[next(iter(self._marks))]
        self._marks[key] = self._num_requests << _FLAG_BITS | mark & _FLAGS | flags
        return mark

    def _find_prompt_end(self, packed: bytes, num_blocks: i64) -> int:
        """The mark of the last end of a prompt at so many blocks or a few before; 0 if there is none."""
        for ordinal in range(num_blocks, max(num_blocks - LOOK_BACK, 0), -1):
            mark = self._marks.get(self._key_of(packed, ordinal), 0)
            if mark & _PROMPT_END != 0:
                return mark
        return 0

    def _record_continuation(self, facts: ScopeFacts, end_mark: int, extends: bool) -> None:
        place = facts.places[END_OF_CONTINUED if end_mark & _CONTINUED != 0 else END_OF_NEW]
        place.num_uses += 1
        if extends:
            place.num_whole += 1
        if end_mark != 0:
            place.add_wait(self._num_requests - (end_mark >> _FLAG_BITS))

    def _record_branch(self, place: PlaceFacts, mark: int) -> None:
        if mark & _WAS_LEFT == 0:
            place.num_places += 1
        else:
            place.num_uses += 1
            place.add_wait(self._num_requests - (mark >> _FLAG_BITS))

    def _refresh(self, facts: ScopeFacts) -> None:
        facts.num_since_halving += 1
        if facts.num_since_halving == _HALVING:
            facts.num_since_halving = 0
            for place in facts.places:
                place.halve()
        self._num_since_pricing += 1
        if self._num_since_pricing == PRICING:
            self._num_since_pricing = 0
            self._set_price()
        facts.num_since_choice += 1
        if facts.num_since_choice == PRICING:
            facts.num_since_choice = 0
            place = facts.places[AMID_PATH]
            stay = place.count_stay(self._longest_stay)
            blocks = self.price * stay * PRICE_UNITS // (SAVINGS_SCALE * int(self._tokens_per_block))
            facts.depths.choose(max(blocks, PRICE_UNITS))

    # -- the price ----------------------------------------------------------------------------------------------------

    def _set_price(self) -> None:
        slots, attention_slots = self._count_slots()
        self._longest_stay = NUM_MARKS
        if attention_slots > 0:
            self._longest_stay = min(max(attention_slots * self._num_recent // max(self._num_new_blocks, 1), 1), NUM_MARKS)
        if self._num_recent >= _HALVING:
            self._num_recent //= 2
            self._num_new_blocks //= 2
        offers = self._offers
        offers.sort(reverse=True)
        left = slots * PRICING
        price = 1
        for savings, stay in offers:
            left -= stay
            if left < 0:
                price = savings + 1
                break
        offers.clear()
        self.price = price

    def _count_slots(self) -> tuple[int, int]:
        """Slots for snapshots, and those of the largest pool group of attention, on all levels."""
        storage = self._storage
        slots = 0
        attention_slots = 0
        for group in range(storage.num_pool_groups):
            total = 0
            for level in range(storage.num_levels):
                index = level * storage.num_pool_groups + group
                total += int(storage.allocators[index].num_slots)
                if group == self._pool_group:
                    slots -= int(storage.allocators[index].num_used - storage.queues[index].num_pages)
            if group == self._pool_group:
                slots += total
            if total > attention_slots and (group != self._pool_group or self._has_attention):
                attention_slots = total
        if self._has_attention:
            slots //= _SHARE_OF_POOL
        return max(slots, 0), attention_slots

    # -- placing ------------------------------------------------------------------------------------------------------

    def list_positions(self, prompt: PromptLook, matched: i64, branch: i64, at_prompt_end: bool, at_branches: bool) -> list[int] | None:
        """The lengths at which a prompt leaves snapshots; None while too little is known of its scope.

        ``matched``: the tokens whose state it begins with. ``branch``: as of `StateMatch`.
        """
        facts = self._scopes.get(prompt.scope)
        if facts is None or facts.depths.num_requests < LEAST_REQUESTS:
            return None
        size = int(self._tokens_per_block)
        begin = int(matched)
        positions: list[int] = []
        place = facts.places[AMID_PATH]
        stay = place.count_stay(self._longest_stay)
        for at, depth in enumerate(facts.depths.chosen):
            if begin < depth * size <= prompt.num_tokens:
                savings = facts.depths.savings[at] * SAVINGS_SCALE * size // (PRICE_UNITS * stay)
                if self._offer(prompt, savings, stay):
                    positions.append(depth * size)
        at_branch = int(branch) if at_branches else 0
        end = 0
        if at_prompt_end:
            end = self._choose_end(prompt, facts.places[prompt.end_kind], begin, positions)
        place = facts.places[prompt.branch_kind]
        gap = at_branch - _find_before(positions, begin, at_branch)
        takes_branch = gap > 0 and self._pays(prompt, place, place.num_uses, gap)
        if end > 0:
            place = facts.places[prompt.end_kind]
            if takes_branch:
                gap = end - max(at_branch, _find_before(positions, begin, end))
                if gap <= 0 or self._savings_of(place, place.num_uses, gap) < self.price:
                    end = 0
            if end > 0:
                positions.append(end)
        if takes_branch:
            positions.append(at_branch)
        return positions

    def _choose_end(self, prompt: PromptLook, place: PlaceFacts, begin: int, positions: list[int]) -> int:
        """The end of the prompt, or the last block boundary before it; 0 if neither pays."""
        num_tokens = prompt.num_tokens
        boundary = num_tokens // int(self._tokens_per_block) * int(self._tokens_per_block)
        to_boundary = boundary - _find_before(positions, begin, boundary)
        to_end = num_tokens - _find_before(positions, begin, num_tokens)
        if (place.num_whole + 1) * to_end >= (place.num_uses + 1) * to_boundary:
            return num_tokens if to_end > 0 and self._pays(prompt, place, place.num_whole, to_end) else 0
        return boundary if to_boundary > 0 and self._pays(prompt, place, place.num_uses, to_boundary) else 0

    def _savings_of(self, place: PlaceFacts, num_uses: int, gap: int) -> int:
        stay = place.count_stay(self._longest_stay)
        # One use of one more place, so that a kind of which nothing is known is tried.
        return (num_uses + 1) * gap * SAVINGS_SCALE // ((place.num_places + 1) * stay)

    def _pays(self, prompt: PromptLook, place: PlaceFacts, num_uses: int, gap: int) -> bool:
        return self._offer(prompt, self._savings_of(place, num_uses, gap), place.count_stay(self._longest_stay))

    def _offer(self, prompt: PromptLook, savings: int, stay: int) -> bool:
        """Whether a snapshot pays; once the prompt is observed, the price will be set by this one too."""
        prompt.offers.append((savings, stay))
        return savings >= self.price


def _find_before(positions: list[int], begin: int, end: int) -> int:
    """The last of the positions that is not after ``end``; ``begin``, where the state begins, if there is none."""
    return max([begin, *[position for position in positions if position <= end]])
