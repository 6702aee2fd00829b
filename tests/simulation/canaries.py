"""Planted bugs: each is one small change of the sources that the simulation must find within a minute.

A simulation that finds nothing proves nothing until it is shown that it can. A canary names a function and a statement in it, and what
stands there instead (`planting.py`), so that it stays where it is when the code around it changes. `run_canaries.py` plants them one at
a time in a copy.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Canary:
    """In ``function`` of ``file`` (from the package's folder), ``old`` is replaced by ``new``, or left out; the function has ``old``
    ``count`` times, and the ``nth`` is meant.

    ``first_seed``: where the search begins; for bugs that few scenarios can show, one of these. ``worlds``: of seeds, small or large ones.
    """

    name: str
    file: str
    function: str
    old: str
    new: str = "pass"
    nth: int = 1
    count: int = 1
    first_seed: int = 0
    worlds: str = "small"


CANARIES = (
    # -- who waits for whom -------------------------------------------------------------------------------------------
    Canary(
        "new page does not wait for the slot's last use",
        "storage/page_storage.py", "PageStorage.make_locked_page",
        "if ready != NO_POINT:\n"
        "    self.order.wait(timeline, ready)",
    ),
    Canary(
        "reader does not wait for the writer",
        "storage/page_storage.py", "PageStorage.lock",
        "self.order.wait(timeline, ready)",
    ),
    Canary(
        "scratch slot does not wait for the slot's last use",
        "storage/slot_store.py", "SlotStore.take_scratch_slot",
        "self._order.wait(timeline, allocator.ready[slot])",
    ),
    Canary(
        "slot is free before its last use is over",
        "storage/page_storage.py", "PageStorage.free_page",
        "self.slots.free_slot(pool_group, slot, mark)",
        "self.slots.free_slot(pool_group, slot, 0)",
    ),
    Canary(
        "scratch slot is free before its last use is over",
        "storage/slot_store.py", "SlotStore.free_scratch_slot",
        "self.free_slot(pool_group, slot, point)",
        "self.free_slot(pool_group, slot, 0)",
    ),
    Canary(
        "a reader that leaves is forgotten",
        "storage/page_storage.py", "PageStorage.unlock",
        "self.advance_ready(page, pool_group, timeline, mark)",
    ),
    Canary(
        "published page is ready before it is written",
        "sequence/publishing.py", "_record_ready",
        "storage.advance_ready(page, storage.pool_group_of[life_cycle], state.timeline, mark)",
    ),
    Canary(
        "of two readers only the last is waited for",
        "device/stream_order.py", "StreamOrder.advance",
        "return self._join_points(point, mark)",
        "return mark",
    ),
    Canary(
        "event is recorded on the wrong stream",
        "device/stream_order.py", "StreamOrder._record",
        "event = self._device.record_event(timeline.stream)",
        "event = self._device.record_event(self._timelines[0].stream)",
    ),
    Canary(
        "wait is believed to have happened already",
        "device/stream_order.py", "StreamOrder.wait",
        "source_index < len(timeline.seen) and timeline.seen[source_index] >= tick",
        "source_index < len(timeline.seen) and timeline.seen[source_index] >= 0",
    ),
    Canary(
        "new stream does not wait for the old one",
        "sequence/residency.py", "change_stream",
        "order.wait(timeline, mark)",
    ),
    # -- which blocks are needed --------------------------------------------------------------------------------------
    Canary(
        "window off by one, too small",
        "sequence/shared_state.py", "Windows.compute_begin",
        "end = (history + 1 - window) // self.tokens_per_block",
        "end = (history + 2 - window) // self.tokens_per_block",
    ),
    Canary(
        "window moves a step late",
        "sequence/shared_state.py", "Windows.compute_next_move",
        "return (window_begin + 1) * self.tokens_per_block + window - 1",
        "return (window_begin + 1) * self.tokens_per_block + window",
    ),
    Canary(
        "sinks are forgotten",
        "sequence/sequence_state.py", "SequenceState.holds_page",
        "return ordinal < self.request.windows.num_sink_blocks[life_cycle]",
        "return False",
    ),
    Canary(
        "stale index is left in the page table",
        "sequence/window_move.py", "_release_range",
        "table.set_bad_run(begin, runs_end)",
    ),
    Canary(
        "indices stay while suspended",
        "sequence/residency.py", "suspend",
        "state.tables[life_cycle].clear()",
    ),
    # -- who owns what ------------------------------------------------------------------------------------------------
    Canary(
        "hold released twice",
        "sequence/page_users.py", "release_page",
        "if is_active:\n"
        "    storage.unlock_and_release(page, pool_group, state.timeline, mark)\n"
        "else:\n"
        "    storage.release(page, pool_group)",
        "if is_active:\n"
        "    storage.unlock_and_release(page, pool_group, state.timeline, mark)\n"
        "else:\n"
        "    storage.release(page, pool_group)\n"
        "storage.release(page, pool_group)",
    ),
    Canary(
        "matched page stays in the eviction queue",
        "storage/page_storage.py", "PageStorage.hold",
        "place < ONE_HOLD",
        "place < 0",
    ),
    Canary(
        "moved page loses its users",
        "storage/page_handover.py", "move_page",
        "words[target * ROW_WORDS + PLACE] = place",
        "words[target * ROW_WORDS + PLACE] = place % ONE_HOLD",
    ),
    Canary(
        "block is pruned under an open sequence",
        "reuse/radix_tree.py", "RadixTree.prune",
        "block.num_pins == 0 and block.only_child is None and block.children is None",
        "block.only_child is None and block.children is None",
    ),
    Canary(
        "rebased sequence goes on with its own freed slot",
        "sequence/publishing.py", "_take_over",
        "owner.tables[life_cycle].set(ordinal, int(storage.lock(theirs, pool_group, owner.timeline)))",
        "storage.lock(theirs, pool_group, owner.timeline)",
    ),
    Canary(
        "refused resize moves the history",
        "sequence/resize_plan.py", "_find_room",
        "if len(plan.turns) > 1 or not is_copy_of_tail or not is_tail_its_own(turn.state, ledger):\n"
        "    return False",
        "if len(plan.turns) > 1 or not is_copy_of_tail or not is_tail_its_own(turn.state, ledger):\n"
        "    turn.state.history = plan.history\n"
        "    return False",
    ),
    Canary(
        "refusal counts what can be evicted twice",
        "storage/room_count.py", "RoomCount.find_onboard_refusal",
        "asked > free + droppable + held",
        "asked > free + 2 * droppable + held",
    ),
    Canary(
        "shrunk sequence keeps its slots",
        "sequence/page_users.py", "cut_blocks",
        "state.holds_page(life_cycle, ordinal)",
        "life_cycle > 0 and state.holds_page(life_cycle, ordinal)",
    ),
    # -- reuse --------------------------------------------------------------------------------------------------------
    Canary(
        "only child is taken whatever its tokens are",
        "reuse/match.py", "Matcher.find_longest",
        "num_equal = count_equal_bytes(child, packed, position, block_bytes)",
        "num_equal = block_bytes",
    ),
    Canary(
        "prompt is taken to follow a text beyond what was compared",
        "reuse/match.py", "Matcher.find_longest",
        "known_end = position + num_equal",
        "known_end = position + len(text)",
    ),
    Canary(
        "tokens that are shortened lose their last block",
        "reuse/block_tokens.py", "shorten_tokens",
        "shorter = tokens[:num_bytes]",
        "shorter = tokens[: num_bytes - block_bytes]",
    ),
    Canary(
        "scopes share",
        "reuse/radix_tree.py", "RadixTree.find_root",
        "self._latest_root = self._roots.get(scope)",
        "self._latest_root = next(iter(self._roots.values()), None)",
    ),
    Canary(
        "sequences of an epoch that has ended publish",
        "manager/open_sequences.py", "end_epoch",
        "beam.tail.is_retired = True",
    ),
    Canary(
        "pages of an epoch that has ended stay in the cache",
        "sequence/sequence_state.py", "SequenceState.is_published",
        "if self.tail.is_retired:\n"
        "    return False",
    ),
    Canary(
        "one token too many of a partial block",
        "reuse/match.py", "Matcher._try_partial",
        "num_tokens = len(blocks) * self._tokens_per_block + num_shared",
        "num_tokens = len(blocks) * self._tokens_per_block + min(num_shared + 1, self._tokens_per_block - 1)",
    ),
    Canary(
        "match does not look at the window's first block",
        "reuse/match.py", "Matcher._find_missing",
        "ordinal < stale_end and ordinal >= stale_beg",
        "ordinal <= stale_end and ordinal >= stale_beg",
    ),
    Canary(
        "private copy of a partial block is not copied",
        "sequence/staged_copies.py", "_copy_pages",
        "copy_page(storage, state.page_of(life_cycle, ordinal), page, pool_group, state.stream)",
    ),
    Canary(
        "owner goes on writing into its published partial block",
        "sequence/resize_plan.py", "plan_resize",
        "state.tail.is_published or state.forked_end > 0",
        "state.forked_end > 0",
    ),
    # -- scratch ------------------------------------------------------------------------------------------------------
    Canary(
        "scratch slots go back before the step that takes them over",
        "sequence/window_move.py", "move_windows",
        "if not keeps_scratch and state.scratch.is_out_of(life_cycle, new_begin):\n"
        "    state.scratch.release(life_cycle, 0, mark)\n"
        "    state.scratch.set_range(life_cycle, new_begin, new_begin)",
        "if state.scratch.is_out_of(life_cycle, new_begin):\n"
        "    state.scratch.release(life_cycle, 0, mark)\n"
        "    state.scratch.set_range(life_cycle, new_begin, new_begin)",
        first_seed=330,
    ),
    Canary(
        "scratch blocks share sub-pages",
        "sequence/scratch.py", "Scratch.count_slots",
        "return self.shared.storage.layout.compute_num_scratch_slots(int(life_cycle), int(num_blocks))",
        "return 1",
    ),
    Canary(
        "scratch reaches one block too far",
        "layout/windows.py", "compute_scratch_end",
        "return stale_end if stale_end > beg else beg",
        "return stale_end + 1 if stale_end > beg else beg",
    ),
    # -- forks --------------------------------------------------------------------------------------------------------
    Canary(
        "a fork writes into a block that others own",
        "sequence/forked_blocks.py", "list_copies",
        "block.parent is not None or block.num_co_owners > 0",
        "block.parent is not None",
    ),
    Canary(
        "the last owner does not wait for the others' streams",
        "sequence/forked_blocks.py", "settle_forked",
        "state.wait_for_block(ordinal)",
        first_seed=145,
    ),
    Canary(
        "a shared page's slot is freed with its first owner",
        "storage/page_storage.py", "PageStorage.drop_hold",
        "self._take_hold_off(page, pool_group)",
        "self._take_hold_off(page, pool_group) or True",
    ),
    Canary(
        "publishing for a fork forgets its pin",
        "sequence/publishing.py", "enter",
        "block.num_pins += num_co_owners",
    ),
    Canary(
        "a block that forks may still fill is published half full",
        "sequence/forked_blocks.py", "may_publish_partial",
        "return state.tail.count >= block.num_shared_tokens and state.shared.tree.find_child(state.path_end, key) is None",
        "return state.shared.tree.find_child(state.path_end, key) is None",
        first_seed=60,
    ),
    Canary(
        "taking over an equal block forgets the forks",
        "sequence/publishing.py", "_rebase",
        "for owner in owners:\n"
        "    owner.blocks[ordinal] = published\n"
        "    if has_twin_of(owner, ordinal):\n"
        "        num_left += 1",
        "state.blocks[ordinal] = published",
    ),
    # -- what those outside are told ----------------------------------------------------------------------------------
    Canary(
        "an evicted page stays announced",
        "storage/page_removal.py", "drop",
        "storage.sink.on_page_removed(page, cause)",
    ),
    Canary(
        "a page that is added later is not announced",
        "storage/page_handover.py", "move_page",
        "sink.on_page_published(target, storage.rows.level(target), storage.rows.priority(target))",
    ),
    Canary(
        "a page that went down is told of as where it was",
        "storage/page_removal.py", "place_page",
        "storage.sink.on_page_moved(page, level_of_place(place), level)",
    ),
    Canary(
        "events of different paths merge",
        "events/event_assembler.py", "EventAssembler._store",
        "draft is None or draft.kind != _STORED or draft.nodes[-1] is not node.parent",
        "draft is None or draft.kind != _STORED",
    ),
    Canary(
        "dropped events are not counted",
        "events/event_assembler.py", "EventAssembler._drop_oldest",
        "self._drafts[self._first_draft].num_dropped = lost",
    ),
    # -- levels -------------------------------------------------------------------------------------------------------
    Canary(
        "a page that came up is taken to be there at once",
        "storage/move_batch.py", "MoveBatch.settle",
        "storage.allocators[level * storage.num_pool_groups + pool_group].ready[target] = point",
        "storage.allocators[level * storage.num_pool_groups + pool_group].ready[target] = 0",
    ),
    Canary(
        "slot is free while its page is still being copied away",
        "storage/move_batch.py", "MoveBatch.settle",
        "storage.slots.free_slot(source_index, source, point)",
        "storage.slots.free_slot(source_index, source, 0)",
    ),
    Canary(
        "page is copied down before it is written",
        "storage/page_mover.py", "PageMover.move",
        "self._order.wait_all(timeline, source.allocator.ready, sources, count)",
    ),
    Canary(
        "page is copied over one that is still read",
        "storage/page_mover.py", "PageMover.move",
        "self._order.wait_all(timeline, target.allocator.ready, targets, count)",
    ),
    Canary(
        "swap does not bring the second page back",
        "storage/bounce.py", "BounceSlots.swap", "self._copy(stream, high, high_slot, saved, True)",
    ),
    Canary(
        "packed page is not unpacked",
        "storage/page_mover.py", "PageMover.move",
        "packer.move_up(stream, pages, target, targets, source, addresses, source_level)",
    ),
    Canary(
        "packed page is unpacked as one of another layer group",
        "storage/page_packer.py", "PagePacker.unpack",
        "self._codec.decode(self._device, stream, self._variants[life_cycle], hot, cold)",
        "self._codec.decode(self._device, stream, self._variants[0], hot, cold)",
        first_seed=60,
    ),
    Canary(
        "page that comes back is not marked as packed with loss",
        "storage/page_removal.py", "place_page",
        "storage.unpacked.add(int(page))",
    ),
    Canary(
        "exact match takes pages that were packed with loss",
        "sequence/whole_prefix.py", "_count_whole",
        "end = min(end, count_exact(shared, found))",
    ),
    Canary(
        "packed pages lie as far apart as those of level 0",
        "storage/page_mover.py", "PageMover.move",
        "addresses = _list_addresses(target.base_addresses[0], targets, target.slot_bytes[0], count)",
        "addresses = _list_addresses(target.base_addresses[0], targets, source.slot_bytes[0], count)",
    ),
    Canary(
        "held pages are counted as room below",
        "storage/room_count.py", "RoomCount.count_room_below",
        "room += storage.allocators[index].num_free + storage.queues[index].num_pages",
        "room += storage.allocators[index].num_slots",
    ),
    Canary(
        "published page on a lower level keeps its slot when ours replaces it",
        "storage/page_handover.py", "replace_page",
        "storage.slots.free_slot(index, place & LOW_MASK, point)",
    ),
    Canary(
        "shared last block is copied before it has come up",
        "sequence/page_arrivals.py", "begin_apart",
        "state.wait_for_block(state.num_published)",
        first_seed=250,
    ),
    Canary(
        "a sequence goes on before its pages have landed",
        "sequence/page_arrivals.py", "settle_arrivals",
        "for point in state.arrivals.points:\n"
        "    order.wait(state.timeline, point)",
    ),
    # -- clean copies -------------------------------------------------------------------------------------------------
    Canary(
        "a slot is free before its page has been copied down",
        "storage/slot_reclaimer.py", "SlotReclaimer._move_to_copies",
        "point = mark",
    ),
    Canary(
        "a page that was dropped leaves its copy",
        "storage/page_removal.py", "drop",
        "if storage.copies.num_copies > 0:\n"
        "    storage.copies.forget(page)",
    ),
    Canary(
        "private pages are believed to be clean",
        "storage/move_batch.py", "MoveBatch.settle",
        "level < source_level and is_published(storage, self.pages[position])",
        "level < source_level",
    ),
    # -- recurrent state ----------------------------------------------------------------------------------------------
    Canary(
        "snapshot of the future",
        "sequence/snapshot_plan.py", "SnapshotPlan.is_due",
        "self.peak_capacity - position <= self._num_checkpoints",
        "position > 0",
    ),
    Canary(
        "snapshot is taken from the wrong slot",
        "sequence/snapshots.py", "_copy_state",
        "copy_page(storage, live_block(state, position).first_page + life_cycle, page, pool_group, state.stream)",
        "copy_page(storage, live_block(state, position + 1).first_page + life_cycle, page, pool_group, state.stream)",
    ),
    Canary(
        "matched state is not copied",
        "sequence/recurrent_state.py", "_copy_snapshot",
        "copy_page(storage, source, target, pool_group, state.stream)",
    ),
    Canary(
        "snapshot is overwritten while it is copied",
        "sequence/recurrent_state.py", "_copy_snapshot",
        "storage.unlock(source, pool_group, state.timeline, state.shared.order.mark(state.timeline))",
        "storage.unlock(source, pool_group, state.timeline, 0)",
        first_seed=325,
    ),
    Canary(
        "state is taken for that of a longer text",
        "reuse/state_match.py", "StateMatcher._find_with_snapshot",
        "block = attention.blocks[ordinal - 1]",
        "block = attention.blocks[len(attention.blocks) - 1]",
    ),
    # -- beams ----------------------------------------------------------------------------------------------------------
    Canary(
        "the last beams but one write a block that they share",
        "sequence/resize_plan.py", "_leave_out_last_owned",
        "block.parent is not None or i64(block.num_co_owners) > num_gone",
        "block.parent is not None or i64(block.num_co_owners) > num_gone + 1",
    ),
    Canary(
        "a committed token is put into beam 0's block only",
        "sequence/beams.py", "gather_tokens",
        "(ordinal >= num_full or beam is state) and block not in written",
        "beam is state and block not in written",
    ),
    # -- leases -----------------------------------------------------------------------------------------------------------
    Canary(
        "a page that is lent is not held for the lease",
        "sequence/transfer_leases.py", "TransferLeases.add_page",
        "slot = self._storage.share_locked_page(page)",
        "slot = self._storage.rows.slot(page)",
    ),
    Canary(
        "a lease is no owner of a private block",
        "sequence/lease_blocks.py", "lease_blocks",
        "add_owner(state, block, ordinal)",
    ),
    Canary(
        "a lease keeps the old row of a page that goes over",
        "sequence/publishing.py", "_rebase",
        "shared.claims.leases.record_moved(ours, theirs, life_cycle)",
        first_seed=460,
    ),
    Canary(
        "a part of a block, published again, takes the place of a held page",
        "sequence/commit.py", "_may_go_over",
        "waits = state.timeline != NO_TIMELINE and rows.level(theirs) > GPU_LEVEL and rows.num_holds(theirs) > 0",
        "waits = False",
        first_seed=5374,
    ),
    # -- batches, plans, policies, early writing ------------------------------------------------------------------------
    Canary(
        "a batch keeps the small steps behind a refusal",
        "manager/batch_step.py", "BatchStep.resize",
        "self._take_back(done)",
    ),
    Canary(
        "a batch goes on behind a refusal",
        "manager/batch_step.py", "BatchStep.resize",
        "return position",
        "break",
    ),
    Canary(
        "a plan to drop forgets its pin",
        "reuse/drop_plans.py", "DropPlans.make",
        "blocks[-1].num_pins += 1",
    ),
    Canary(
        "LEARNED goes on counting a page that is in use",
        "storage/eviction/value_lines.py", "ValueLines.remove_run",
        "self.num_pages -= end - begin",
    ),
    Canary(
        "an early copy is taken to be written at once",
        "storage/early_copies.py", "EarlyCopies._write_group",
        "ready[slot] = point",
        "ready[slot] = 0",
    ),
    Canary(
        "accepted nodes of a tree stay where they were",
        "sequence/tree_commit.py", "compact_tree",
        "target_slot != BAD_PAGE_INDEX",
        "target_slot != BAD_PAGE_INDEX and position < 0",
    ),
    Canary(
        "ghosts are not counted where they come",
        "storage/eviction/segment_records.py", "SegmentRecords.add_ghosts",
        "table.num_ghosts += count",
    ),
    # -- failures of the device ---------------------------------------------------------------------------------------
    Canary(
        "copies of a level that could not shrink are not waited for",
        "sequence/level_resizing.py", "_LevelChange._shrink_group",
        "order.wait(state.timeline, mark)",
        first_seed=1670,
    ),
    Canary(
        "lost pages are matched",
        "sequence/whole_prefix.py", "find_whole",
        "end < found.match.num_tokens",
        "end < 0",
    ),
    Canary(
        "slots of a refused move are free before its copies are over",
        "storage/move_batch.py", "MoveBatch._undo",
        "ready = self._order.advance(ready, timeline, point)",
        first_seed=125,
    ),
    # -- indices that stay --------------------------------------------------------------------------------------------
    Canary(
        "twin is not taken over when the published page is free",
        "sequence/twin_pages.py", "TwinPages.take_over",
        "if twins is None:\n"
        "    return False",
        "if twins is None or len(twins) == 1:\n"
        "    return False",
    ),
    Canary(
        "equal page on a lower level is taken over where it is",
        "sequence/publishing.py", "_decide",
        "if rows.level(theirs) > GPU_LEVEL:\n    return REPLACE",
    ),
    Canary(
        "published page is swapped though indices stay",
        "sequence/publishing.py", "_rebase",
        "decision == KEEP and owner.timeline != NO_TIMELINE and not owner.has_beams",
        "decision < KEEP",
    ),
    Canary(
        "a part of a block is published where nothing may be copied",
        "sequence/commit.py", "stop_committing",
        "publishes = publishes and not state.shared.traffic.takes_no_copies",
        first_seed=62,
    ),
    Canary(
        "a list of copies is lost",
        "testing/engine_memory.py", "EngineMemory.execute_copies",
        "worker.execute(number, copies)",
        "worker.num_done = number",
        first_seed=24,
    ),
    Canary(
        "a list of copies is late",
        "testing/engine_memory.py", "EngineMemory.execute_copies",
        "self._order(worker.stream, stream)",
        first_seed=24,
    ),
    Canary(
        "a list of copies is executed twice",
        "testing/engine_memory.py", "EngineMemory.execute_copies",
        "worker.execute(number, copies)",
        "worker.execute(number, [*copies, *copies])",
        first_seed=272,
    ),
    Canary(
        "a worker does not see that a list of copies has not come",
        "device/copy_worker.py", "CopyWorker.execute",
        "awaited = self.num_done + 1",
        "awaited = given if given > self.num_done else self.num_done + 1",
        first_seed=65,
    ),
    Canary(
        "what was kept is not forgotten after a lost list of copies",
        "manager/kv_cache_manager.py", "KVCacheManager.reset_copies",
        "self._forget(None, CLEARED)",
        first_seed=65,
    ),
    Canary(
        "a list of copies stays lost when all was forgotten",
        "manager/copy_lists.py", "CopyLists.reset",
        "self._lost = 0",
        first_seed=65,
    ),
    Canary(
        "copies of a list are executed in another order",
        "testing/engine_memory.py", "EngineMemory.execute_copies",
        "worker.execute(number, copies)",
        "worker.execute(number, copies[::-1])",
        first_seed=272,
    ),
    Canary(
        "blocks in scratch slots are counted as planned",
        "sequence/planned_steps.py", "offer",
        "end = _count_matchable(state, node, above, ordinal, text) * block_bytes",
        "end = len(text) // block_bytes * block_bytes",
        first_seed=180,
    ),
    Canary(
        "planned block may be read on another stream than its writer's",
        "sequence/planned_rules.py", "refuse_other_stream",
        "writer.stream != stream",
        "writer.stream == -1",
    ),
    Canary(
        "a confirmed reader leaves its pin on the block above",
        "sequence/planned_steps.py", "confirm",
        "above.num_pins -= 1",
    ),
    # -- residency windows --------------------------------------------------------------------------------------------
    Canary(
        "required block is not brought up",
        "sequence/residency_window.py", "require",
        "wanted.add(page, storage.rows.level(page), pool_group, storage.rows.is_queued(page))",
    ),
    Canary(
        "what was required stays locked after the resize",
        "sequence/residency_window.py", "end_required",
        "shared.storage.unlock(page, shared.storage.pool_group_of[life_cycle], state.timeline, mark)",
    ),
)
