"""The rules of `learned_placement` in plain Python: places by their tokens, counts in dicts. Depths are tested on their own."""

from dataclasses import dataclass, field

from kv_cache_manager_v2.reuse.overlap_depths import PRICE_UNITS, OverlapDepths
from kv_cache_manager_v2.sequence.learned_placement import (
    AMID_PATH,
    AT_PROMPT_END,
    END_OF_CONTINUED,
    END_OF_NEW,
    LEAST_REQUESTS,
    LOOK_BACK,
    NUM_MARKS,
    NUM_SCOPES,
    PRICING,
    SAVINGS_SCALE,
)

HALVING = 1024


@dataclass
class Kind:
    places: int = 0
    uses: int = 0
    whole: int = 0
    waits: list[int] = field(default_factory=lambda: [0, 0])
    """How many, and their sum."""

    def stay(self, longest: int) -> int:
        """`(r + 2) * D` requests; `r` with one use and one place more than were counted, `D` a sixth of the longest if none is known."""
        number, total = self.waits
        wait = max(total // number, 1) if number else max(longest // 6, 1)
        return min(max((self.uses + 1 + 2 * (self.places + 1)) * wait // (self.places + 1), 1), longest)

    def savings(self, uses: int, gap: int, longest: int) -> int:
        return (uses + 1) * gap * SAVINGS_SCALE // ((self.places + 1) * self.stay(longest))


class Scope:
    def __init__(self) -> None:
        self.depths = OverlapDepths()
        self.kinds = [Kind() for _ in range(4)]
        self.num_prompts = 0


class Place:
    """Of the path's block that ends there: the latest request, and what happened."""

    def __init__(self) -> None:
        self.latest = 0
        self.seen: set[str] = set()


class NaivePlacement:
    def __init__(self, num_slots: int, num_attention_slots: int, size: int) -> None:
        self.num_slots = num_slots
        self.num_attention_slots = num_attention_slots
        self.size = size
        self.scopes: dict[int, Scope] = {}
        self.places: dict[tuple[int, ...], Place] = {}
        self.num_requests = 0
        self.recent = [0, 0]
        """Requests, and their new blocks."""
        self.offers: list[tuple[int, int]] = []
        self.asked: list[tuple[int, int]] = []
        """By the latest call of `positions`."""
        self.longest = NUM_MARKS
        self.price = 1

    def _key(self, prompt: list[int], num_blocks: int) -> tuple[int, ...]:
        return (num_blocks, *prompt[(num_blocks - 1) * self.size : num_blocks * self.size])

    def _visit(self, prompt: list[int], num_blocks: int, *events: str) -> tuple[int, set[str]]:
        """The latest request there before, and what had happened."""
        key = self._key(prompt, num_blocks)
        place = self.places.pop(key, None) or Place()
        before = (place.latest, set(place.seen))
        place.latest = self.num_requests
        place.seen |= set(events)
        if len(self.places) == NUM_MARKS:
            del self.places[next(iter(self.places))]
        self.places[key] = place
        return before

    def look(self, prompt: list[int], known: int, extends: bool) -> tuple[int, int]:
        """The kinds of the place where it leaves the tree, and of its end."""
        place = self.places.get(self._key(prompt, known)) if known else None
        seen = set() if place is None else place.seen
        goes_on = extends or ("end" in seen and "left" not in seen)
        return AT_PROMPT_END if "end" in seen else AMID_PATH, END_OF_CONTINUED if known and goes_on else END_OF_NEW

    def observe(self, number: int, prompt: list[int], known: int, extends: bool, offers: list[tuple[int, int]]) -> None:
        scope = self.scopes.pop(number, None) or Scope()
        if len(self.scopes) == NUM_SCOPES:
            del self.scopes[next(iter(self.scopes))]
        self.scopes[number] = scope
        length = len(prompt) // self.size
        self.num_requests += 1
        self.recent = [self.recent[0] + 1, self.recent[1] + length - known]
        branch_kind = AMID_PATH
        continues = parts = False
        if known:
            latest, seen = self._visit(prompt, known, *([] if extends else ["left"]))
            end = (latest, seen)
            if "end" in seen:
                branch_kind = AT_PROMPT_END
            elif extends:
                ends = [self.places.get(self._key(prompt, known - back)) for back in range(1, min(LOOK_BACK + 1, known))]
                found = [place for place in ends if place is not None and "end" in place.seen]
                end = (found[0].latest, found[0].seen) if found else (0, set())
            first_left = not extends and "left" not in seen
            continues = extends or ("end" in seen and first_left)
            parts = first_left and not continues
            if continues:
                kind = scope.kinds[END_OF_CONTINUED if "continued" in end[1] else END_OF_NEW]
                kind.uses += 1
                kind.whole += extends
                if end[0]:
                    kind.waits = [kind.waits[0] + 1, kind.waits[1] + self.num_requests - end[0]]
            if first_left:
                scope.kinds[branch_kind].places += 1
            elif not extends:
                kind = scope.kinds[branch_kind]
                kind.uses += 1
                kind.waits = [kind.waits[0] + 1, kind.waits[1] + self.num_requests - latest]
        scope.depths.record(known, length, parts)
        if length:
            self._visit(prompt, length, "end", *(["continued"] if continues else []))
        end_kind = END_OF_CONTINUED if continues else END_OF_NEW
        scope.kinds[end_kind].places += 1
        self._fade_and_price(scope)
        self.offers += offers

    def _fade_and_price(self, scope: Scope) -> None:
        scope.num_prompts += 1
        if scope.num_prompts % HALVING == 0:
            scope.kinds = [
                Kind(kind.places // 2, kind.uses // 2, kind.whole // 2, [count // 2 for count in kind.waits]) for kind in scope.kinds
            ]
        if self.num_requests % PRICING == 0:
            self._set_price()
        if scope.num_prompts % PRICING == 0:
            stay = scope.kinds[AMID_PATH].stay(self.longest)
            scope.depths.choose(max(self.price * stay * PRICE_UNITS // (SAVINGS_SCALE * self.size), PRICE_UNITS))

    def _set_price(self) -> None:
        """The dearest places have the slots; one more than what the first place saves for which none is left."""
        requests, blocks = self.recent
        self.longest = min(max(self.num_attention_slots * requests // max(blocks, 1), 1), NUM_MARKS)
        if requests >= HALVING:
            self.recent = [requests // 2, blocks // 2]
        left = self.num_slots * PRICING
        self.price = 1
        for savings, stay in sorted(self.offers, reverse=True):
            left -= stay
            if left < 0:
                self.price = savings + 1
                break
        self.offers = []

    def _pays(self, savings: int, stay: int) -> bool:
        self.asked.append((savings, stay))
        return savings >= self.price

    def positions(
        self, number: int, num_tokens: int, kinds: tuple[int, int], matched: int, branch: int, at_end: bool, at_branches: bool
    ) -> set[int] | None:
        self.asked = []
        scope = self.scopes.get(number)
        if scope is None or scope.depths.num_requests < LEAST_REQUESTS:
            return None
        taken = [matched]

        def gap(end: int, *more: int) -> int:
            """Tokens from the last snapshot at or before ``end``; what the prompt begins with counts wherever it is."""
            return end - max([matched, *[one for one in (*taken, *more) if one <= end]])

        stay = scope.kinds[AMID_PATH].stay(self.longest)
        for depth, blocks in zip(scope.depths.chosen, scope.depths.savings, strict=True):
            if matched < depth * self.size <= num_tokens:
                if self._pays(blocks * SAVINGS_SCALE * self.size // (PRICE_UNITS * stay), stay):
                    taken.append(depth * self.size)
        end = 0
        kind = scope.kinds[kinds[1]]
        if at_end:
            boundary = num_tokens // self.size * self.size
            exact = (kind.whole + 1) * gap(num_tokens) >= (kind.uses + 1) * gap(boundary)
            end, uses = (num_tokens, kind.whole) if exact else (boundary, kind.uses)
            if gap(end) <= 0 or not self._pays(kind.savings(uses, gap(end), self.longest), kind.stay(self.longest)):
                end = 0
        if not at_branches:
            branch = 0
        parting = scope.kinds[kinds[0]]
        has_branch = gap(branch) > 0 and self._pays(
            parting.savings(parting.uses, gap(branch), self.longest), parting.stay(self.longest)
        )
        if end and has_branch:
            # Beside the branch the end saves less.
            left = end - max(branch, end - gap(end))
            if left <= 0 or kind.savings(kind.uses, left, self.longest) < self.price:
                end = 0
        found = {*taken[1:], end, branch if has_branch else 0}
        return found - {0}
