"""Planted bugs: each is one small change of the sources that the simulation must find within a minute.

A simulation that finds nothing proves nothing until it is shown that it can. A canary names a file of the package, a piece of
its text that occurs exactly once, and what stands there instead. `run_canaries.py` plants them one at a time in a copy.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Canary:
    """``old`` occurs once in ``file`` (from the package's folder) and is replaced by ``new``.

    ``first_seed``: where the search begins; for bugs that few scenarios can show, one of these. ``worlds``: of seeds, small or large ones.
    """

    name: str
    file: str
    old: str
    new: str
    first_seed: int = 0
    worlds: str = "small"


CANARIES = (
    # -- who waits for whom -------------------------------------------------------------------------------------------
    Canary(
        "new page does not wait for the slot's last use",
        "storage/page_storage.py",
        "        if ready != NO_POINT:\n            self.order.wait(timeline, ready)\n        filler =",
        "        filler =",
    ),
    Canary(
        "reader does not wait for the writer",
        "storage/page_storage.py",
        "            self.order.wait(timeline, ready)\n        return slot\n\n    def lock_without_wait",
        "            pass\n        return slot\n\n    def lock_without_wait",
    ),
    Canary(
        "scratch slot does not wait for the slot's last use",
        "storage/slot_store.py",
        "            self._order.wait(timeline, allocator.ready[slot])\n",
        "",
    ),
    Canary(
        "slot is free before its last use is over",
        "storage/page_storage.py",
        "        self.slots.free_slot(pool_group, slot, mark)\n\n    def free_unfinished_page",
        "        self.slots.free_slot(pool_group, slot, 0)\n\n    def free_unfinished_page",
    ),
    Canary(
        "scratch slot is free before its last use is over",
        "storage/slot_store.py",
        "timeline_of_point(mark), mark)\n        self.free_slot(pool_group, slot, point)\n",
        "timeline_of_point(mark), mark)\n        self.free_slot(pool_group, slot, 0)\n",
    ),
    Canary(
        "a reader that leaves is forgotten",
        "storage/page_storage.py",
        "        ready[slot] = self.order.advance(ready[slot], timeline, mark)\n",
        "",
    ),
    Canary(
        "published page is ready before it is written",
        "sequence/commit.py",
        "                storage.set_ready(page, storage.pool_group_of[life_cycle], mark)\n    return private",
        "                storage.set_ready(page, storage.pool_group_of[life_cycle], 0)\n    return private",
    ),
    Canary(
        "of two readers only the last is waited for",
        "device/stream_order.py",
        "        return self._join_points(point, mark)\n",
        "        return mark\n",
    ),
    Canary(
        "event is recorded on the wrong stream",
        "device/stream_order.py",
        "        event = self._device.record_event(timeline.stream)\n",
        "        event = self._device.record_event(self._timelines[0].stream)\n",
    ),
    Canary(
        "wait is believed to have happened already",
        "device/stream_order.py",
        "timeline.seen[source_index] >= tick:\n            return\n",
        "timeline.seen[source_index] >= 0:\n            return\n",
    ),
    Canary(
        "new stream does not wait for the old one",
        "sequence/residency.py",
        "        order.wait(timeline, mark)\n",
        "",
    ),
    # -- which blocks are needed --------------------------------------------------------------------------------------
    Canary(
        "window off by one, too small",
        "sequence/shared_state.py",
        "        end = (history + 1 - window) // self.tokens_per_block\n",
        "        end = (history + 2 - window) // self.tokens_per_block\n",
    ),
    Canary(
        "window moves a step late",
        "sequence/shared_state.py",
        "        return (window_begin + 1) * self.tokens_per_block + window - 1\n",
        "        return (window_begin + 1) * self.tokens_per_block + window\n",
    ),
    Canary(
        "sinks are forgotten",
        "sequence/sequence_state.py",
        "            return ordinal < self.shared.num_sink_blocks[life_cycle]\n",
        "            return False\n",
    ),
    Canary(
        "stale index is left in the page table",
        "sequence/window_move.py",
        "        table.set_bad_run(begin, runs_end)\n",
        "",
    ),
    Canary(
        "indices stay while suspended",
        "sequence/residency.py",
        "        state.tables[life_cycle].clear()\n",
        "",
    ),
    # -- who owns what ------------------------------------------------------------------------------------------------
    Canary(
        "hold released twice",
        "sequence/page_users.py",
        "        storage.release(page, pool_group)\n    elif",
        "        storage.release(page, pool_group)\n        storage.release(page, pool_group)\n    elif",
    ),
    Canary(
        "matched page stays in the eviction queue",
        "storage/page_storage.py",
        "        words[place_at(page)] = place + ONE_HOLD\n        if place < ONE_HOLD:\n",
        "        words[place_at(page)] = place + ONE_HOLD\n        if place < 0:\n",
    ),
    Canary(
        "moved page loses its users",
        "storage/page_handover.py",
        "    words[place_at(target)] = place\n",
        "    words[place_at(target)] = place % ONE_HOLD\n",
    ),
    Canary(
        "block is pruned under an open sequence",
        "reuse/radix_tree.py",
        "        while block.num_pins == 0 and block.only_child is None",
        "        while block.only_child is None",
    ),
    Canary(
        "rebased sequence goes on with its own freed slot",
        "sequence/commit.py",
        "                    state.tables[life_cycle].set(ordinal, slot)\n",
        "",
    ),
    Canary(
        "refused resize moves the history",
        "sequence/resize_plan.py",
        "    if not is_tail or not can_take_tail_back(state):\n        return None\n",
        "    if not is_tail or not can_take_tail_back(state):\n        state.history = plan.history\n        return None\n",
    ),
    Canary(
        "refusal counts what can be evicted twice",
        "storage/room_count.py",
        "                if asked > free + droppable + held:\n",
        "                if asked > free + 2 * droppable + held:\n",
    ),
    Canary(
        "shrunk sequence keeps its slots",
        "sequence/resize.py",
        "            if state.holds_page(life_cycle, ordinal):\n                release_page(state, life_cycle, ordinal, mark)\n        release_block",
        "            if life_cycle > 0 and state.holds_page(life_cycle, ordinal):\n                release_page(state, life_cycle, ordinal, mark)\n        release_block",
    ),
    # -- reuse --------------------------------------------------------------------------------------------------------
    Canary(
        "only child is taken whatever its tokens are",
        "reuse/match.py",
        "                num_equal = count_equal_bytes(child, packed, position, block_bytes)\n",
        "                num_equal = block_bytes\n",
    ),
    Canary(
        "prompt is taken to follow a text beyond what was compared",
        "reuse/match.py",
        "                known_end = position + num_equal\n",
        "                known_end = position + len(text)\n",
    ),
    Canary(
        "tokens that are shortened lose their last block",
        "reuse/block_tokens.py",
        "    shorter = tokens[:num_bytes]\n",
        "    shorter = tokens[: num_bytes - block_bytes]\n",
    ),
    Canary(
        "scopes share",
        "reuse/radix_tree.py",
        "    def find_root(self, scope: ReuseScope) -> Block | None:\n        return self._roots.get(scope)\n",
        "    def find_root(self, scope: ReuseScope) -> Block | None:\n        return next(iter(self._roots.values()), None)\n",
    ),
    Canary(
        "one token too many of a partial block",
        "reuse/match.py",
        "        num_tokens = len(blocks) * self._tokens_per_block + num_shared\n",
        "        num_tokens = len(blocks) * self._tokens_per_block + min(num_shared + 1, self._tokens_per_block - 1)\n",
    ),
    Canary(
        "match does not look at the window's first block",
        "reuse/match.py",
        "                if ordinal < stale_end and ordinal >= stale_beg:\n",
        "                if ordinal <= stale_end and ordinal >= stale_beg:\n",
    ),
    Canary(
        "private copy of a partial block is not copied",
        "sequence/staged_copies.py",
        "            copy_page(storage, source.first_page + life_cycle, page, pool_group, state.stream)\n",
        "",
    ),
    Canary(
        "owner goes on writing into its published partial block",
        "sequence/resize_plan.py",
        "        if state.tail_is_shared or state.forked_end > 0:\n",
        "        if state.forked_end > 0:\n",
    ),
    # -- scratch ------------------------------------------------------------------------------------------------------
    Canary(
        "scratch blocks share sub-pages",
        "sequence/scratch.py",
        "        return self.shared.storage.layout.compute_num_scratch_slots(int(life_cycle), int(num_blocks))\n",
        "        return 1\n",
    ),
    Canary(
        "scratch reaches one block too far",
        "layout/windows.py",
        "    return stale_end if stale_end > beg else beg\n",
        "    return stale_end + 1 if stale_end > beg else beg\n",
    ),
    # -- forks --------------------------------------------------------------------------------------------------------
    Canary(
        "a fork writes into a block that others own",
        "sequence/forked_blocks.py",
        "        if block.parent is not None or block.num_co_owners > 0:\n",
        "        if block.parent is not None:\n",
    ),
    Canary(
        "the last owner does not wait for the others' streams",
        "sequence/forked_blocks.py",
        "                shared.order.wait(state.timeline, allocator.ready[slot])\n",
        "                pass\n",
    ),
    Canary(
        "a shared page's slot is freed with its first owner",
        "storage/page_storage.py",
        "        if self._take_hold_off(page, pool_group):\n            words = ",
        "        if self._take_hold_off(page, pool_group) or True:\n            words = ",
    ),
    Canary(
        "publishing for a fork forgets its pin",
        "sequence/forked_blocks.py",
        "        block.num_pins += num_co_owners\n",
        "",
    ),
    Canary(
        "a block that forks may still fill is published half full",
        "sequence/forked_blocks.py",
        "    return state.tail.count >= block.num_shared_tokens and ",
        "    return ",
    ),
    Canary(
        "taking over an equal block forgets the forks",
        "sequence/forked_blocks.py",
        "    for owner in owners:\n        owner.blocks[ordinal] = published\n",
        "    state.blocks[ordinal] = published\n",
    ),
    # -- what those outside are told ----------------------------------------------------------------------------------
    Canary(
        "an evicted page stays announced",
        "storage/page_removal.py",
        "        storage.sink.on_page_removed(page, cause)\n",
        "        pass\n",
    ),
    Canary(
        "a page that is added later is not announced",
        "storage/page_handover.py",
        "        sink.on_page_published(target, storage.rows.level(target), storage.rows.priority(target))\n",
        "        pass\n",
    ),
    Canary(
        "a block that becomes private again stays announced",
        "reuse/radix_tree.py",
        "                    sink.on_page_removed(page, CAPACITY)\n",
        "                    pass\n",
        first_seed=20,
    ),
    Canary(
        "a page that went down is told of as where it was",
        "storage/page_removal.py",
        "        storage.sink.on_page_moved(page, level_of_place(place), level)\n",
        "        pass\n",
    ),
    Canary(
        "events of different paths merge",
        "events/event_assembler.py",
        "draft.kind != _STORED or draft.nodes[-1] is not node.parent:\n",
        "draft.kind != _STORED:\n",
    ),
    Canary(
        "dropped events are not counted",
        "events/event_assembler.py",
        "            self._drafts[self._first_draft].num_dropped = lost\n",
        "            pass\n",
    ),
    # -- levels -------------------------------------------------------------------------------------------------------
    Canary(
        "a page that came up is taken to be there at once",
        "storage/move_batch.py",
        "        storage.allocators[level * storage.num_pool_groups + pool_group].ready[target] = point\n",
        "        storage.allocators[level * storage.num_pool_groups + pool_group].ready[target] = 0\n",
    ),
    Canary(
        "slot is free while its page is still being copied away",
        "storage/move_batch.py",
        "            storage.slots.free_slot(source_index, source, point)\n",
        "            storage.slots.free_slot(source_index, source, 0)\n",
    ),
    Canary(
        "page is copied down before it is written",
        "storage/page_mover.py",
        "            self._order.wait(timeline, source.allocator.ready[sources[position]])\n",
        "",
    ),
    Canary(
        "page is copied over one that is still read",
        "storage/page_mover.py",
        "            self._order.wait(timeline, target.allocator.ready[targets[position]])\n",
        "",
    ),
    Canary(
        "swap does not bring the second page back",
        "storage/bounce.py",
        "            self._copy(stream, high.tier, high_address, CacheTier.HOST_MEM, bounce_address, num_bytes)\n        except",
        "            pass\n        except",
    ),
    Canary(
        "held pages are counted as room below",
        "storage/room_count.py",
        "            room += storage.allocators[index].num_free + storage.queues[index].num_pages\n",
        "            room += storage.allocators[index].num_slots\n",
    ),
    Canary(
        "published page on a lower level keeps its slot when ours replaces it",
        "storage/page_handover.py",
        "    storage.slots.free_slot(index, slot, storage.allocators[index].ready[slot])\n    words[place_at(theirs)]",
        "    words[place_at(theirs)]",
    ),
    Canary(
        "shared last block is copied before it has come up",
        "sequence/page_arrivals.py",
        "            state.shared.order.wait(state.timeline, storage.allocators[storage.pool_group_of[life_cycle]].ready[slot])\n",
        "            pass\n",
    ),
    Canary(
        "a sequence goes on before its pages have landed",
        "sequence/page_arrivals.py",
        "    for point in state.arrivals:\n        order.wait(state.timeline, point)\n",
        "",
    ),
    # -- clean copies -------------------------------------------------------------------------------------------------
    Canary(
        "a slot is free before its page has been copied down",
        "storage/slot_reclaimer.py",
        "                point = mark\n",
        "                pass\n",
    ),
    Canary(
        "a page that was dropped leaves its copy",
        "storage/page_removal.py",
        "    if storage.copies.num_copies > 0:\n        storage.copies.forget(page)\n",
        "",
    ),
    Canary(
        "private pages are believed to be clean",
        "storage/move_batch.py",
        "        if level < source_level and is_published(storage, self.pages[position]):\n",
        "        if level < source_level:\n",
    ),
    # -- recurrent state ----------------------------------------------------------------------------------------------
    Canary(
        "snapshot of the future",
        "sequence/snapshot_plan.py",
        "        if self.peak_capacity - position <= self._num_checkpoints:\n",
        "        if position > 0:\n",
    ),
    Canary(
        "snapshot is taken from the wrong slot",
        "sequence/snapshots.py",
        "live_block(state, position)",
        "live_block(state, position + 1)",
    ),
    Canary(
        "matched state is not copied",
        "sequence/recurrent_state.py",
        "        copy_page(storage, source, target, pool_group, state.stream)\n",
        "",
    ),
    Canary(
        "snapshot is overwritten while it is copied",
        "sequence/recurrent_state.py",
        "        storage.unlock(source, pool_group, state.timeline, state.shared.order.mark(state.timeline))\n",
        "        storage.unlock(source, pool_group, state.timeline, 0)\n",
        first_seed=120,
    ),
    Canary(
        "state is taken for that of a longer text",
        "reuse/state_match.py",
        "                block = attention.blocks[ordinal - 1]\n                num_tokens = ordinal * size\n",
        "                block = attention.blocks[len(attention.blocks) - 1]\n                num_tokens = ordinal * size\n",
    ),
    # -- beams ----------------------------------------------------------------------------------------------------------
    Canary(
        "the last beams but one write a block that they share",
        "sequence/resize_plan.py",
        "i64(block.num_co_owners) > num_gone:",
        "i64(block.num_co_owners) > num_gone + 1:",
    ),
    Canary(
        "a committed token is put into beam 0's block only",
        "sequence/beams.py",
        "            if (ordinal >= num_full or beam is state) and block not in written:\n",
        "            if beam is state and block not in written:\n",
    ),
    # -- leases -----------------------------------------------------------------------------------------------------------
    Canary(
        "a page that is lent is not held for the lease",
        "sequence/transfer_leases.py",
        "        slot = self._storage.share_locked_page(page)\n",
        "        slot = self._storage.rows.slot(page)\n",
    ),
    Canary(
        "a lease is no owner of a private block",
        "sequence/transfer_leases.py",
        "        block.num_co_owners += 1\n        lease.private_blocks",
        "        lease.private_blocks",
    ),
    Canary(
        "a lease keeps the old row of a page that goes over",
        "sequence/forked_blocks.py",
        "                move_page(storage, ours, theirs)\n                state.shared.leases.record_moved(ours, theirs, life_cycle)\n",
        "                move_page(storage, ours, theirs)\n",
        first_seed=80,
    ),
    Canary(
        "a part of a block, published again, takes the place of a held page",
        "sequence/commit.py",
        "    if published is not None and _would_replace_a_held_page(state, private, published):\n        return\n",
        "",
        first_seed=5374,
    ),
    # -- batches, plans, policies, early writing ------------------------------------------------------------------------
    Canary(
        "a batch keeps the small steps behind a refusal",
        "manager/batch_step.py",
        "                self._take_back(done)\n",
        "                pass\n",
    ),
    Canary(
        "a batch goes on behind a refusal",
        "manager/batch_step.py",
        "                return position\n",
        "                break\n",
    ),
    Canary(
        "a plan to drop forgets its pin",
        "reuse/drop_plans.py",
        "        blocks[-1].num_pins += 1\n",
        "",
    ),
    Canary(
        "LEARNED goes on counting a page that is in use",
        "storage/eviction/learned.py",
        "        self._lines.set_note(page, _IN_USE)\n        self.num_pages -= 1\n",
        "        self._lines.set_note(page, _IN_USE)\n",
    ),
    Canary(
        "an early copy is taken to be written at once",
        "storage/early_copies.py",
        "            allocator.ready[moves.targets[position]] = point\n",
        "            allocator.ready[moves.targets[position]] = 0\n",
    ),
    Canary(
        "accepted nodes of a tree stay where they were",
        "sequence/tree_commit.py",
        "                if target_slot != BAD_PAGE_INDEX:\n",
        "                if target_slot != BAD_PAGE_INDEX and position < 0:\n",
    ),
    Canary(
        "a smaller cache stays in a part that is longer than its own",
        "storage/eviction/reuse_rates.py",
        "            return False\n        self._end_part()\n        return True\n",
        "            return False\n        return False\n",
        worlds="large",
    ),
    # -- failures of the device ---------------------------------------------------------------------------------------
    Canary(
        "copies of a level that could not shrink are not waited for",
        "sequence/level_resizing.py",
        "                        order.wait(state.timeline, mark)\n            shared.guard.end_change()\n",
        "                        pass\n            shared.guard.end_change()\n",
        1670,
    ),
    Canary(
        "lost pages are matched",
        "manager/prefix_matches.py",
        "            if end >= found.num_tokens:\n",
        "            if end >= 0:\n",
    ),
    Canary(
        "slots of a refused move are free before its copies are over",
        "storage/move_batch.py",
        "                ready = self._order.advance(ready, timeline, point)\n",
        "                pass\n",
    ),
)
