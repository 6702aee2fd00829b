"""Disaggregated serving: prefill on one manager, decode on another. A request with a computed prompt is moved page by page.

The decode side matches what it has cached, allocates pages for the rest without inputs (`resize(n, n)`: windowed layers get
their last window only), receives the bytes of those pages, and commits the prompt; then the prefill side closes. Both managers have
one configuration and one device; the copies are on the sequences' stream, so they are in order.
"""

from typing import Any, Final, final


from .. import BAD_PAGE_INDEX, CacheTier, CopyBatch, KVCache, LayerGroupId, LoadFailed
from .served_request import ServedRequest
from .timed_calls import TimedCalls


@final
class Handover:
    """Moves requests: ``num_done`` and ``num_refused``; a refused one continues where its prompt was computed."""

    __slots__ = ("calls", "num_done", "num_refused", "_tokens_per_block")

    def __init__(self, calls: TimedCalls) -> None:
        self.calls: Final = calls
        """Of the decode side."""
        self.num_done = 0
        self.num_refused = 0
        self._tokens_per_block: Final[int] = calls.manager.tokens_per_block

    def take(self, served: ServedRequest) -> None:
        """Move a request that has committed its whole prompt on the prefill side, and is active there."""
        source = served.open_kv_cache()
        if source.manager is self.calls.manager or source.beam_width > 1:
            return
        tokens: Any = served.tokens()
        prompt = tokens[: served.position]
        target = self.calls.create(prompt, served.request.id)
        num_matched = target.num_committed_tokens
        if not (self._try_resume(target) and target.resize(served.position, served.position)):
            self.calls.close(target)
            self.num_refused += 1
            return
        for group in range(len(self.calls.manager.layer_grouping)):
            if self.calls.manager.life_cycle_of_group(group).has_page_per_block:
                self._copy_pages(source, target, LayerGroupId(group), num_matched // self._tokens_per_block)
            else:
                self._copy_state(source, target, LayerGroupId(group))
        self.calls.commit(target, tokens[num_matched : served.position])
        self.calls.close(source)
        served.kv_cache = target
        self.num_done += 1

    def _try_resume(self, target: KVCache) -> bool:
        """False also where a disk of the decode side cannot read what matched: that matches no more."""
        try:
            return self.calls.resume(target)
        except LoadFailed:
            return False

    def _copy_pages(self, source: KVCache, target: KVCache, group: LayerGroupId, begin: int) -> None:
        """Copy the pages from block ``begin`` on; those before it are in the decode side's tree."""
        from_slots = source.get_base_page_indices(group).tolist()
        to_slots = target.get_base_page_indices(group).tolist()
        needed = [block for block in range(begin, len(to_slots)) if to_slots[block] != BAD_PAGE_INDEX]
        self._copy_slots(source, target, group, [from_slots[block] for block in needed], [to_slots[block] for block in needed])

    def _copy_state(self, source: KVCache, target: KVCache, group: LayerGroupId) -> None:
        self._copy_slots(source, target, group, [source.get_ssm_block_base_index(group)], [target.get_ssm_block_base_index(group)])

    def _copy_slots(self, source: KVCache, target: KVCache, group: LayerGroupId, from_slots: list[int], to_slots: list[int]) -> None:
        for pages in self._pages_of(source, group):
            batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.GPU_MEM, pages[1])
            to_base = self._pages_of(target, group)[pages[2]][0]
            for from_slot, to_slot in zip(from_slots, to_slots):
                batch.add(to_base + to_slot * pages[1], pages[0] + from_slot * pages[1])
            if batch.count > 0:
                self.calls.manager.device.copy_batch(target.cuda_stream, batch)

    def _pages_of(self, kv_cache: KVCache, group: LayerGroupId) -> list[tuple[int, int, int]]:
        """Base address, bytes of a slot, and position of each pool of the layer group."""
        for desc in kv_cache.manager.pool_group_descs:
            for variant in desc.slot_desc.variants:
                if variant.layer_group_id == group:
                    return [(pool.base_address, pool.slot_bytes, position) for position, pool in enumerate(desc.pools)]
        raise AssertionError(f"layer group {group} is in no pool group")
