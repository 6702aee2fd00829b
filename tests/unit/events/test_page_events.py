"""Every change of a published page is told to the sink, at the place of the change, and of a full block only."""

from typing import Any

from small_models import manager_of, run_prompt

from kv_cache_manager_v2.events.page_events import PageEventSink
from kv_cache_manager_v2.events.removal_cause import CAPACITY, CLEARED
from kv_cache_manager_v2.storage.page_removal import drop


class Notes(PageEventSink):
    """Keeps what it is told, blocks and pages numbered in the order in which they first occur."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.numbers: dict[tuple[str, int], int] = {}

    def take(self) -> list[tuple[Any, ...]]:
        notes, self.notes = self.notes, []
        return notes

    def number(self, kind: str, name: int) -> int:
        return self.numbers.setdefault((kind, name), len([key for key in self.numbers if key[0] == kind]))

    def on_root_made(self, root: int, lora_id: int | None, salt: int | str | None) -> None:
        self.notes.append(("root", lora_id, salt))

    def on_root_removed(self, root: int) -> None:
        self.notes.append(("root removed",))

    def on_block_published(self, block: int, parent: int, key: bytes, mixed: list[int | bytes] | None) -> None:
        above = None if parent < 0 else self.number("block", parent)
        tokens = memoryview(key).cast("i").tolist() if mixed is None else mixed
        self.notes.append(("block", self.number("block", block), above, tokens))

    def on_block_removed(self, block: int) -> None:
        self.notes.append(("block removed", self.numbers.get(("block", block))))

    def on_page_published(self, page: int, level: int, priority: int) -> None:
        self.notes.append(("page", self.number("page", page), level, priority))

    def on_page_removed(self, page: int, cause: int) -> None:
        self.notes.append(("page removed", self.numbers.get(("page", page)), cause))

    def on_page_moved(self, page: int, old_level: int, new_level: int) -> None:
        self.notes.append(("page moved", self.number("page", page), old_level, new_level))

    def on_priority_changed(self, page: int, old_priority: int, new_priority: int) -> None:
        self.notes.append(("priority", self.number("page", page), old_priority, new_priority))

    def on_levels_resized(self, num_blocks: list[tuple[int, ...]]) -> None:
        self.notes.append(("resized", num_blocks))

    def is_announced(self, page: int) -> bool:
        return ("page", page) in self.numbers


def listening(**settings: Any) -> tuple[Any, Notes]:
    manager = manager_of(**settings)
    notes = Notes()
    manager._shared.storage.sink = notes
    return manager, notes


def test_a_full_block_is_told_with_its_pages_and_a_partial_one_is_not() -> None:
    manager, notes = listening()
    with manager:
        sequence = run_prompt(manager, [1, 2, 3, 4, 5, b"cat", 7, 8, 9])
        assert notes.take() == [
            ("root", None, None),
            ("block", 0, None, [1, 2, 3, 4]),
            ("page", 0, 0, 35),
            ("block", 1, 0, [5, b"cat", 7, 8]),
            ("page", 1, 0, 35),
        ]
        sequence.close()  # publishes the 9
        assert notes.take() == []
        manager.clear_reusable_blocks()
        told = [note for note in notes.take() if note[1:2] != (None,)]
        assert [note for note in told if note[0] == "page removed"] == [
            ("page removed", 0, CLEARED),
            ("page removed", 1, CLEARED),
        ]
        # Children leave before their parents, the root last.
        assert [note for note in told if note[0] != "page removed"] == [
            ("block removed", 1),
            ("block removed", 0),
            ("root removed",),
        ]


def test_an_evicted_page_is_told_once() -> None:
    manager, notes = listening(num_slots=3)
    with manager:
        run_prompt(manager, range(8)).close()
        notes.take()
        run_prompt(manager, range(100, 108)).close()  # two slots of three: the far end of the first goes
        removed = [note for note in notes.take() if note[0] == "page removed"]
        assert removed == [("page removed", 1, CAPACITY)]


def test_a_higher_priority_is_told() -> None:
    manager, notes = listening()
    with manager:
        run_prompt(manager, range(4)).close()
        notes.take()
        for priority, room, told in ((60, 10_000, []), (60, 4, [("priority", 0, 35, 60)]), (50, 4, [])):
            with manager.create_kv_cache(None, range(4), custom_priority_callback=lambda ordinal, cycle, one=priority: one) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(room) is (room == 4)
            assert notes.take() == told


def test_a_missing_page_that_is_added_is_told() -> None:
    # Window 4 of 4 tokens a block: committing 12 tokens at once passes blocks; each sequence publishes what it still has.
    manager, notes = listening(windows=(None, 4), num_slots=12)
    with manager:
        first = run_prompt(manager, range(12))
        pages = [note[1] for note in notes.take() if note[0] == "page"]
        assert len(pages) == 6  # 3 blocks of 2 groups, published before the window moves
        first.close()
        storage = manager._shared.storage
        # Take one droppable page of the windowed group away, as an eviction would.
        page = int(storage.queues[0].collect()[0])
        drop(storage, page, 0, CAPACITY, None)
        gone = [note for note in notes.take() if note[0] == "page removed"]
        assert len(gone) == 1
        second = manager.create_kv_cache()
        assert second.resume() and second.resize(12)
        second.commit(range(12))
        assert [note for note in notes.take() if note[0] == "page"] == [("page", gone[0][1], 0, 35)]
        second.close()
        manager.check_invariants()
