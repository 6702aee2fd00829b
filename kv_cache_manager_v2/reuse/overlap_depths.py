"""Overlap depths: at which depths the prompts of one scope part ways, and of these the ones where snapshots of recurrent state pay.

A depth is a number of whole blocks from the root. A prompt that parts from the tree at depth ``d`` computes ``d - p`` blocks anew, ``p``
the deepest snapshot at or before ``d``. With ``h[i]`` places where prompts first parted at the depth ``d[i]``, less one, since one alone
is no concentration, and ``w[i]`` prompts that would have left a snapshot at ``d[i]`` (longer than that, and known to the tree less far),
`choose` finds the depths ``P`` for which

    sum over i of h[i] * (d[i] - max{p in P or 0, p <= d[i]})   +   price * sum over p in P of w[p]

is least: blocks computed anew, and a price in blocks for each snapshot. This is checkpoint placement under a distribution of overlap
depths (Shirokikh and Nikolenko, "Sparse Prefix Caching for Hybrid and Recurrent LLM Serving", arXiv 2605.05219, 2026), with a price
(Everett, Operations Research 11, 1963) in place of a fixed number of checkpoints, as many more prompts leave a deep snapshot than a
shallow one.

`NUM_DEPTHS` depths are told apart; where one more comes, the two that are nearest by weight become the shallower of the two, which serves
both. So `record` costs `NUM_DEPTHS` steps, `choose` at most half their square for each price, whatever was observed. Integers only.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

NUM_DEPTHS: Final = 32
MAX_CHOSEN: Final = 8
"""Each chosen depth is one more end of a chunk for a prompt that nothing is known of."""
PRICE_UNITS: Final = 16
"""Parts of a block, in which prices are counted."""
_HALVING: Final = 1024
"""Requests after which all counts are halved, so that what is long ago fades."""


@final
class OverlapDepths:
    __slots__ = ("num_requests", "chosen", "savings", "_num_depths", "_depths", "_parted", "_written", "_costs", "_before")

    def __init__(self) -> None:
        self.num_requests: i64 = 0
        """Halved now and then, like all counts."""
        self.chosen: list[int] = []
        """Ascending, by the latest `choose`; never changed in place."""
        self.savings: list[int] = []
        """Blocks that a snapshot at each chosen depth saves, in `PRICE_UNITS`."""
        self._num_depths: i64 = 0
        # One more than depths are kept: a new one comes before two become one.
        zeros = [0] * (NUM_DEPTHS + 1)
        self._depths: Final = vec[i64](zeros)
        self._parted: Final = vec[i64](zeros)
        self._written: Final = vec[i64](zeros)
        self._costs: Final = vec[i64](zeros)
        """Costs of the depths before each one, if that one is chosen."""
        self._before: Final = vec[i64](zeros)
        """The chosen one before each one, by index; `NUM_DEPTHS`: the root."""

    def record(self, overlap: i64, length: i64, parts: bool) -> None:
        """A prompt of ``length`` blocks, of which the tree knew ``overlap``. ``parts``: it left a path there that goes on otherwise."""
        self.num_requests += 1
        depths = self._depths
        written = self._written
        for i in range(self._num_depths):
            if overlap < depths[i] <= length:
                written[i] += 1
        if parts and overlap > 0:
            self._add(overlap)
        if self.num_requests >= _HALVING:
            self._halve()

    def _add(self, depth: i64) -> None:
        depths = self._depths
        count = self._num_depths
        at: i64 = 0
        while at < count and depths[at] < depth:
            at += 1
        if at < count and depths[at] == depth:
            self._parted[at] += 1
            return
        # As many as would have left a snapshot a little further up, as far as is known.
        would_write = self.num_requests
        if at > 0:
            would_write = self._written[at - 1]
        elif count > 0:
            would_write = self._written[at]
        for i in range(count, at, -1):
            self._copy_entry(i - 1, i)
        depths[at] = depth
        self._parted[at] = 1
        self._written[at] = would_write
        self._num_depths = count + 1
        if self._num_depths > NUM_DEPTHS:
            self._merge_nearest()

    def _copy_entry(self, source: i64, target: i64) -> None:
        self._depths[target] = self._depths[source]
        self._parted[target] = self._parted[source]
        self._written[target] = self._written[source]

    def _merge_nearest(self) -> None:
        """The two depths at which a snapshot at the shallower one for both costs least become one; of equal ones the shallowest."""
        best: i64 = 0
        least: i64 = -1
        for i in range(self._num_depths - 1):
            cost = self._parted[i + 1] * (self._depths[i + 1] - self._depths[i])
            if least < 0 or cost < least:
                least = cost
                best = i
        self._parted[best] += self._parted[best + 1]
        self._remove(best + 1)

    def _remove(self, at: i64) -> None:
        i = at
        while i + 1 < self._num_depths:
            self._copy_entry(i + 1, i)
            i += 1
        self._num_depths -= 1

    def _halve(self) -> None:
        self.num_requests //= 2
        for i in range(self._num_depths - 1, -1, -1):
            self._parted[i] //= 2
            self._written[i] //= 2
            if self._parted[i] == 0:
                self._remove(i)

    def choose(self, price: i64) -> None:
        """Find the depths that pay at ``price``, in `PRICE_UNITS` of a block for each slot taken; dearer where these are too many."""
        if price < 1:
            price = 1
        while True:
            if self._choose_at(price) <= MAX_CHOSEN:
                return
            price *= 2

    def _choose_at(self, price: i64) -> int:
        """How many; they are in ``chosen``."""
        count = self._num_depths
        last: i64 = NUM_DEPTHS
        for j in range(count):
            self._costs[j] = self._find_before(j, j) + price * max(self._written[j], 1)
        self._find_before(count, last)
        self.chosen = []
        self.savings = []
        end = count
        at = self._before[last]
        while at != NUM_DEPTHS:
            num_served: i64 = 0
            for i in range(at, end):
                num_served += self._parted[i] - 1
            before = self._before[at]
            gap = self._depths[at]
            if before != NUM_DEPTHS:
                gap -= self._depths[before]
            self.chosen.append(int(self._depths[at]))
            self.savings.append(int(num_served * gap * PRICE_UNITS // max(self._written[at], 1)))
            end = at
            at = before
        self.chosen.reverse()
        self.savings.reverse()
        return len(self.chosen)

    def _find_before(self, end: i64, entry: i64) -> i64:
        """The least cost of the depths before ``end``, and, in ``_before[entry]``, the last chosen one for which they have it.

        Of equal ones the deepest, but the root first: nothing is chosen that gains nothing.
        """
        depths = self._depths
        parted = self._parted
        # From the end upwards, what lies between the candidate and the end is summed up on the way.
        num_between: i64 = 0
        sum_between: i64 = 0
        best: i64 = -1
        before: i64 = NUM_DEPTHS
        for i in range(end - 1, -1, -1):
            # One prompt alone is no concentration.
            num_between += parted[i] - 1
            sum_between += (parted[i] - 1) * depths[i]
            cost = self._costs[i] + PRICE_UNITS * (sum_between - num_between * depths[i])
            if best < 0 or cost < best:
                best = cost
                before = i
        cost = PRICE_UNITS * sum_between
        if best < 0 or cost <= best:
            best = cost
            before = NUM_DEPTHS
        self._before[entry] = before
        return best
