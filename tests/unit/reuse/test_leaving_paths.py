"""What is copied of a prefix that loses a page: counted here by plain rules, for prompts that share their beginnings."""

import ctypes
import random
from array import array

import pytest
from forwarding_device import ForwardingDevice
from hybrid_models import hybrid_config
from small_models import config_of

from kv_cache_manager_v2 import CacheTier, HostDevice, KVCacheManager, KVCacheManagerConfig, SnapshotPolicy
from kv_cache_manager_v2.device.port import CopyBatch
from kv_cache_manager_v2.reuse.block import Block
from kv_cache_manager_v2.reuse.content_key import block_key
from kv_cache_manager_v2.reuse.leaving_paths import LeavingPath, LeavingPaths
from kv_cache_manager_v2.storage.pages_out import PagesOut

T = 4
STRIDE = 1 << 16
MODELS: dict[str, KVCacheManagerConfig] = {
    "plain": config_of((None,), T, 400),
    "window": config_of((None, 9), T, 400),
    "sinks": config_of((None, 9, 16), T, 400, sinks=(None, 8, 4)),
    "windows only": config_of((9, 14), T, 400, sinks=(8, None)),
    "one token to a block": config_of((None, 9, 3), 1, 1200, sinks=(None, 2, None)),
    "two tokens to a block": config_of((None, 9), 2, 400),
    "states": hybrid_config((None, 8), quota=1 << 20, snapshot_policy=SnapshotPolicy(every_num_blocks=2)),
}


class PlainPaths:
    """By life cycle, as the configuration says: window, sinks, and whether it is recurrent state."""

    def __init__(self, manager: KVCacheManager, free: list[int]) -> None:
        self.tree = manager._shared.tree
        self.block_tokens = manager._shared.tokens_per_block
        self.cycles = list(manager._shared.life_cycles)
        self.free = free
        self.offered: dict[int, int] = {}
        self.num_dropped = 0
        self.unbounded = [cycle.has_page_per_block and cycle.window_size is None for cycle in self.cycles]

    def is_needed(self, life_cycle: int, ordinal: int, num_blocks: int) -> bool:
        """By the token that comes after the prefix."""
        cycle = self.cycles[life_cycle]
        if not cycle.has_page_per_block:
            return ordinal == num_blocks - 1
        if cycle.window_size is None or ordinal < cycle.num_sink_blocks:
            return True
        # The next token reads itself and the window's other tokens.
        return (ordinal + 1) * self.block_tokens > num_blocks * self.block_tokens + 1 - cycle.window_size

    def drop(self, page: int, is_paused: bool) -> tuple[list[int], list[int], list[int], list[int], int] | None:
        """Pages, rows, contents and slots of the path, and its number of blocks."""
        tree, count = self.tree, len(self.cycles)
        leaf = tree.pool.block_of_page(page)
        assert leaf.parent is not None
        has_children = leaf.only_child is not None or leaf.children is not None
        if not tree.is_full(leaf) or self.offered.get(page) == block_key(leaf, tree.block_bytes):
            return None
        if has_children and any(self.unbounded) and not self.unbounded[page - leaf.first_page]:
            return None
        if is_paused or not self.free:
            self.num_dropped += 1
            return None
        blocks: list[Block] = []
        above: Block | None = leaf
        while above is not None and above.parent is not None:
            blocks.insert(0, above)
            above = above.parent
        found: list[tuple[int, int, int]] = []
        for ordinal, block in enumerate(blocks):
            content = block_key(block, tree.block_bytes)
            rows = [(ordinal * count + number, int(block.first_page) + number, int(content)) for number in range(count)]
            wanted = [
                one
                for number, one in enumerate(rows)
                if tree.storage.rows.has_page(one[1])
                and self.is_needed(number, ordinal, len(blocks))
                and self.offered.get(one[1]) != content
            ]
            if len(found) + len(wanted) > len(self.free):
                self.num_dropped += 1
                break
            found += wanted
        if not found:
            return None
        slots = self.free[-len(found) :]
        del self.free[-len(found) :]
        self.offered.update({row: content for _, row, content in found})
        pages, taken, contents = ([one[part] for one in found] for part in range(3))
        return pages, taken, contents, slots, pages[-1] // count + 1


def bytes_of(manager: KVCacheManager, row: int) -> list[tuple[int, int]]:
    """Where the bytes of a page on level 0 are, and how many, by pool."""
    storage = manager._shared.storage
    pool_group = storage.pool_group_of[(row - storage.rows.first_page_of_blocks) % storage.rows.num_life_cycles]
    group = storage.pool_groups[pool_group]
    slot = int(storage.rows.slot(row))
    return [(int(base) + slot * int(size), int(size)) for base, size in zip(group.base_addresses, group.slot_bytes, strict=True)]


def describe(path: LeavingPath) -> tuple[list[int], list[int], list[int], list[int], int]:
    return path.pages, path.rows, path.contents, path.slots, int(path.num_blocks)


def publish(manager: KVCacheManager, prompt: list[int]) -> list[Block]:
    """The prompt's whole blocks."""
    with manager.create_kv_cache(input_tokens=prompt) as kv_cache:
        assert kv_cache.resume()
        for end in range(kv_cache.num_committed_tokens + T, len(prompt) + T, T):
            end = min(end, len(prompt))
            assert kv_cache.resize(end)
            kv_cache.commit(prompt[kv_cache.num_committed_tokens : end])
    tree = manager._shared.tree
    return tree.find_path(tree.find_root(kv_cache.reuse_scope), array("i", prompt).tobytes(), 0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(4))
def test_against_plain_rules(model: str, seed: int) -> None:
    """Pages are dropped in any order, of prompts that share their beginnings, while slots are plenty, few, and none."""
    choices = random.Random(seed)
    device = HostDevice()
    with KVCacheManager(MODELS[model], device=device) as manager:
        shared = manager._shared
        size = int(shared.tokens_per_block)
        num_slots = choices.choice((3, 12, 60))
        num_bytes = 1 << 22
        address = device.reserve_range(CacheTier.HOST_MEM, num_bytes)
        device.map_memory(CacheTier.HOST_MEM, address, num_bytes)
        out = PagesOut(shared.storage)
        slots, offered = list(range(num_slots)), dict[int, int]()
        heads = [8 * number for number in range(len(shared.life_cycles))]
        leaving = LeavingPaths(shared.tree, out, manager._life_cycles, size, offered, slots, address, STRIDE, heads)
        assert not leaving.is_paused
        plain = PlainPaths(manager, list(slots))
        prompts: list[list[int]] = []
        pages: list[int] = []
        for number in range(6):
            kept = choices.choice(prompts)[: T * choices.randint(0, 9)] if prompts else []
            prompts.append([*kept, *[1000 * (number + 1) + token for token in range(choices.randint(1, 41))]])
            for block in publish(manager, prompts[-1]):
                rows = range(int(block.first_page), int(block.first_page) + len(heads))
                pages += [row for row in rows if shared.storage.rows.has_page(row) and row not in pages]
        for row in [row for row in pages if shared.storage.rows.has_page(row)]:
            for place, count in bytes_of(manager, row):
                ctypes.memset(place, row % 251, count)
        for _ in range(100):
            page = choices.choice(pages)
            leaving.is_paused = choices.random() < 0.1
            leaving.on_drop(page)
            expected = plain.drop(page, leaving.is_paused)
            assert [describe(path) for path in leaving.paths] == ([] if expected is None else [expected])
            for path in leaving.paths:
                device.synchronize_stream(out.stream)
                for number, row, slot in zip(path.pages, path.rows, path.slots, strict=True):
                    copied = ctypes.string_at(address + slot * STRIDE + heads[number % len(heads)], STRIDE - heads[-1])
                    count = sum(count for _, count in bytes_of(manager, row))
                    assert copied[:count] == bytes([row % 251]) * count
                assert path.is_copied and isinstance(path.tokens, bytes)
                tokens = list(array("i", path.tokens))
                assert any(prompt[: len(tokens)] == tokens for prompt in prompts) and len(tokens) == size * path.num_blocks
                # Its slots are free again some time later, and what it has brought may be forgotten.
                if choices.random() < 0.8:
                    slots.extend(path.slots)
                    plain.free.extend(path.slots)
            leaving.paths = []
            if choices.random() < 0.5:
                for row in [one for one in offered if choices.random() < 0.5]:
                    del offered[row], plain.offered[row]
            assert (slots, offered, leaving.num_dropped) == (plain.free, plain.offered, plain.num_dropped)
        device.synchronize_stream(out.stream)
        out.leave()
        device.destroy_stream(out.stream)
    device.unmap_memory(CacheTier.HOST_MEM, address, num_bytes)
    device.release_range(CacheTier.HOST_MEM, address, num_bytes)


class RefusingDevice(ForwardingDevice):
    def copy_beside(self, stream: int, batch: CopyBatch) -> None:
        raise OSError("no copies")


def test_a_path_whose_copies_are_refused_keeps_its_slots() -> None:
    """Some copies may be under way, so its slots come back with the path, which says so; its pages were not offered."""
    device = RefusingDevice()
    with KVCacheManager(config_of((None,), T, 40), device=device) as manager:
        shared = manager._shared
        out = PagesOut(shared.storage)
        slots, offered = list(range(20)), dict[int, int]()
        leaving = LeavingPaths(shared.tree, out, manager._life_cycles, T, offered, slots, 0, STRIDE, [0])
        blocks = publish(manager, list(range(5 * T)))
        for number in (1, 2):
            leaving.on_drop(blocks[-1].first_page)
            assert leaving.num_dropped == number
            assert [(path.is_copied, len(path.slots)) for path in leaving.paths] == [(False, 5)] * number
            assert len(slots) == 20 - 5 * number and offered == {}
        out.leave()
        device.destroy_stream(out.stream)
