"""Random histories over several processes: managers with a durable level that end, or are killed, and are made anew.

A life is a number of random calls of every kind (`EveryCall`), and an end: `shutdown`, which writes the rest, or a kill once what was
written is on the disk. The model is a `ReferenceTree`: what has bytes on the last level by the manager's own books must be there in the
next life, as far as each block's ancestors are: after an orderly end all of it, after a kill what was published when it was written. More
may be there: pages that were evicted, and whose slots nothing was written to since.
"""

import hashlib
import os
import random
from dataclasses import replace
from typing import Any

from every_call import EveryCall, config_of_every_kind
from lossy_files import LossyDisk, LossyFiles

from kv_cache_manager_v2 import ColdPageCodec, DiskCacheTierConfig, HostDevice, KVCacheManager, KVCacheManagerConfig, ModelId
from kv_cache_manager_v2.durable.durable_level import DurableLevel
from kv_cache_manager_v2.manager.durable_drain import drain_pages
from kv_cache_manager_v2.reuse.token_packing import unpack_tokens
from kv_cache_manager_v2.testing.reference_tree import GroupRule, ReferenceTree

Page = tuple[int, int]


def durable_config_of_every_kind(has_state: bool, folder: str, num_slots: int, num_paths: int) -> KVCacheManagerConfig:
    base = config_of_every_kind(has_state, folder, num_slots)
    disk: Any = base.cache_tiers[-1]
    assert isinstance(disk, DiskCacheTierConfig)
    more = tuple(f"{folder}/more-{number}" for number in range(1, num_paths))
    for path in more:
        os.makedirs(path, exist_ok=True)
    tiers = [*base.cache_tiers[:-1], replace(disk, durable=True, model_id=ModelId("every call"), more_paths=more)]
    return replace(base, cache_tiers=tiers)


class Restarts:
    """``found``: pages that each life began with. ``ends``: those that each must leave.
    ``num_probes``: texts whose match was compared with the model's. ``least_log_bytes``: of a log that a new snapshot is made for.
    ``num_paths``: of the last level, each a disk of its own. ``codec``: of all lives."""

    def __init__(
        self,
        has_state: bool,
        seed: int,
        folder: str,
        num_slots: int = 80,
        least_log_bytes: int = 1 << 20,
        num_paths: int = 1,
        codec: ColdPageCodec | None = None,
    ) -> None:
        self.codec = codec
        self.config = durable_config_of_every_kind(has_state, folder, num_slots, num_paths)
        self.has_state = has_state
        self.random = random.Random(seed)
        self.seed = seed
        self.least_log_bytes = least_log_bytes
        self.disk = LossyDisk()
        self.answers = hashlib.sha256()
        self.found: list[int] = []
        self.ends: list[int] = []
        self.num_probes = 0
        self.tree: ReferenceTree
        self.texts: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.expected: set[Page] = set()

    def run(self, num_lives: int, num_calls: int) -> str:
        """16 digits that are equal after equal calls with equal answers."""
        for life in range(num_lives):
            self.live(life, num_calls)
        return self.answers.hexdigest()[:16]

    def live(self, life: int, num_calls: int) -> None:
        files = LossyFiles(self.disk)
        device = HostDevice(files=files)
        manager = KVCacheManager(self.config, device=device, cold_page_codec=self.codec)
        started = manager._shared.storage.durable
        assert started is not None
        started.writer.least_log_bytes = self.least_log_bytes
        manager.check_invariants()
        if life == 0:
            rules = [self.rule_of(manager, group) for group in range(len(manager.layer_grouping))]
            self.tree = ReferenceTree(self.config.tokens_per_block, rules)
        self.compare(manager)
        calls = EveryCall(manager, 1000 * self.seed + life)
        calls.run(num_calls)
        manager.check_invariants()
        self.answers.update(calls.finish().encode())
        is_killed = self.random.random() < 0.5
        with manager._shared.guard:
            # As the beginning of any call: what was forgotten is closed.
            pass
        durable = manager._shared.storage.durable
        assert durable is not None
        if is_killed:
            manager._shared.order.synchronize_all()
            durable.writer.flush()
            self.expected = self.closed(self.pages_of(manager, durable))
            files.kill()
            self.disk.fail_power(self.random.randrange(1 << 30))
            manager.shutdown(0)
        else:
            # As `shutdown` does, which then forgets all of it.
            drain_pages(manager._shared, 60.0)
            self.expected = self.closed(self.pages_of(manager, None))
            manager.shutdown()
        self.ends.append(len(self.expected))
        device.close()

    # -- the model ----------------------------------------------------------------------------------------------------

    def rule_of(self, manager: KVCacheManager, group: int) -> GroupRule:
        cycle = manager.life_cycle_of_group(group)
        return GroupRule(cycle.window_size, int(cycle.num_sink_blocks), not cycle.has_page_per_block)

    def pages_of(self, manager: KVCacheManager, durable: DurableLevel | None) -> set[Page]:
        """Published pages with bytes on the last level. With ``durable``: those whose slots the index knows."""
        shared = manager._shared
        storage = shared.storage
        last = int(storage.last_level)
        pages: set[Page] = set()
        for scope in shared.tree.scopes():
            root = shared.tree.find_root(scope)
            assert root is not None
            pending = [(child, self.tree.root((scope.lora_id, scope.salt)), ()) for child in shared.tree.children_of(root)]
            while pending:
                block, above, before = pending.pop()
                tokens = tuple(unpack_tokens(shared.tree.key_of(block), shared.tree.digests))
                node = self.tree.child(above, tokens)
                self.texts[node] = (scope, (*before, *tokens))
                for group in range(int(shared.num_life_cycles)):
                    page = int(block.first_page) + group
                    index = last * int(storage.num_pool_groups) + int(storage.pool_group_of[group])
                    slot = -1
                    if storage.rows.has_page(page) and storage.rows.level(page) == last:
                        slot = int(storage.rows.slot(page))
                    elif storage.rows.has_page(page) and storage.copies.has_copy_at(page, index):
                        slot = int(storage.copies.slot_of(page))
                    if slot >= 0 and (durable is None or durable.groups[index % int(storage.num_pool_groups)].recorded[slot]):
                        pages.add((node, group))
                pending.extend((child, node, self.texts[node][1]) for child in shared.tree.children_of(block))
        return pages

    def closed(self, pages: set[Page]) -> set[Page]:
        """Those of which each block above has a page for every layer group without a window."""
        unbounded = [group for group in range(len(self.tree._rules)) if self.is_unbounded(group)]
        kept: set[Page] = set()
        for node, group in pages:
            above = self.tree.parent(node)
            is_whole = True
            while self.tree.parent(above) >= 0:
                is_whole = is_whole and all((above, other) in pages for other in unbounded)
                above = self.tree.parent(above)
            if is_whole:
                kept.add((node, group))
        return kept

    def is_unbounded(self, group: int) -> bool:
        rule = self.tree._rules[group]
        return rule.window is None and not rule.is_state

    def compare(self, manager: KVCacheManager) -> None:
        present = self.pages_of(manager, None)
        assert present >= self.expected, f"missing {sorted(self.expected - present)}"
        assert present == self.closed(present), "a page is there that no match can reach"
        self.found.append(len(present))
        self.answers.update(repr((manager.state_digest(), len(present))).encode())
        if self.has_state:
            return
        for node in sorted({node for node, _group in present}):
            scope, text = self.texts[node]
            match = self.tree.match((scope.lora_id, scope.salt), text, present, True)
            num_tokens = manager.probe_reuse(scope, text)
            assert match.allows(num_tokens), f"{num_tokens} of {len(text)} tokens match, {match.best} should"
            self.num_probes += 1
            if self.codec is not None and not self.codec.is_lossless:
                assert self.count_exact(manager, scope, text) == 0, "what was read was packed with loss"

    def count_exact(self, manager: KVCacheManager, scope: Any, text: Any) -> int:
        """Tokens that a request matches which refuses pages that were packed with loss."""
        with manager.create_kv_cache(scope, list(text), exact=True) as kv_cache:
            return kv_cache.num_committed_tokens
