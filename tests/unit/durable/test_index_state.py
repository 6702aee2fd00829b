"""What records say, against dictionaries: numbers in any order, slots near and far, nodes that go and come again, scopes that are
cleared; and what a new snapshot says of it, found in short steps."""

from random import Random

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.durable.index_compaction import choose_snapshot
from kv_cache_manager_v2.durable.index_state import IndexState
from kv_cache_manager_v2.durable.record_format import (
    PACKED,
    encode_clear_all,
    encode_clear_scope,
    encode_free,
    encode_node,
    encode_page,
    encode_root,
)
from kv_cache_manager_v2.durable.index_state import NO_PAGE, SlotTable
from kv_cache_manager_v2.replay.stored_index import list_nodes, list_stored_pages

SCOPES = (None, "a", "b")


class Model:
    """Nodes and pages by number and place, the pages in the order in which they were written."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.state = IndexState()
        self.nodes: dict[int, tuple[int, str | None]] = {}
        self.pages: dict[tuple[int, int], tuple[int, int]] = {}
        self.generation = 0
        self.is_ordered = self.random.random() < 0.5
        self.slots = [*range(12), 1023, 1024, 3000, 1 << 20, (1 << 44) - 1]

    def number(self) -> int:
        """That no node has; of one that has gone, too, and of one before the first."""
        last = max(self.nodes, default=7)
        number = last + self.random.choice((1, 1, 1, 5)) if self.is_ordered else self.random.randint(1, 200)
        return number if number not in self.nodes else last + 1

    def place(self) -> tuple[int, int]:
        return self.random.choice((0, 0, 0, 1, 5)), self.random.choice(self.slots)

    def act(self) -> None:
        random = self.random
        kind = random.random()
        number = self.number()
        if kind < 0.1 or not self.nodes:
            scope = random.choice(SCOPES)
            self.nodes[number] = (0, scope)
            self.state.apply(encode_root(number, None, scope))
        elif kind < 0.45:
            parent = random.choice(list(self.nodes))
            self.nodes[number] = (parent, None)
            self.state.apply(encode_node(number, parent, number.to_bytes(4, "little"), PACKED))
        elif kind < 0.85:
            node = random.choice([*self.nodes, 1 << 40])
            group, slot = self.place()
            self.generation += 1
            self.pages.pop((group, slot), None)
            if node in self.nodes:
                self.pages[group, slot] = (node, self.generation)
            self.state.apply(encode_page(node, self.generation, slot, 0, group, [self.generation]))
        elif kind < 0.97:
            group, slot = self.place()
            self.pages.pop((group, slot), None)
            self.state.apply(encode_free(slot, group))
        elif kind < 0.99:
            self.clear(random.choice(SCOPES))
        else:
            self.nodes.clear()
            self.pages.clear()
            self.state.apply(encode_clear_all())

    def clear(self, scope: str | None) -> None:
        self.state.apply(encode_clear_scope(None, scope))
        gone = [node for node in self.nodes if self.scope_of(node) == scope]
        for node in gone:
            del self.nodes[node]
        for place in [place for place, page in self.pages.items() if page[0] in gone]:
            del self.pages[place]

    def scope_of(self, node: int) -> str | None:
        while self.nodes[node][0] != 0:
            node = self.nodes[node][0]
        return self.nodes[node][1]

    def ancestors(self, node: int) -> set[int]:
        found = {node}
        while self.nodes[node][0] != 0:
            node = self.nodes[node][0]
            found.add(node)
        return found

    def check(self, state: IndexState, nodes: set[int]) -> None:
        assert {number: node.parent for number, node in list_nodes(state).items()} == {number: self.nodes[number][0] for number in nodes}
        found = [(place, (page.node, page.generation)) for place, page in list_stored_pages(state).items()]
        assert found == list(self.pages.items())


@pytest.mark.parametrize("seed", range(20))
def test_records_say_what_dictionaries_would(seed: int) -> None:
    model = Model(seed)
    for _action in range(400):
        model.act()
        assert model.state.num_nodes >= len(model.nodes)
        number = model.random.randint(1, 250)
        assert (model.state.find(number) >= 0) == (number in model.nodes)
    model.check(model.state, set(model.nodes))


@pytest.mark.parametrize("seed", range(20))
def test_a_new_snapshot_has_what_is_needed(seed: int) -> None:
    """All pages, the live nodes, and their ancestors: again, and again of what comes after."""
    model = Model(seed)
    for _turn in range(4):
        for _action in range(100):
            model.act()
        live = [number for number in model.nodes if model.random.random() < 0.2]
        snapshot = choose_snapshot(model.state, vec[i64]([*live, 0, -2, 1 << 41]))
        kept: set[int] = set()
        for node in [*live, *[node for node, _generation in model.pages.values()]]:
            kept |= model.ancestors(node)
        again = IndexState()
        for piece in snapshot.pieces():
            again.apply(piece)
        for node in set(model.nodes) - kept:
            del model.nodes[node]
        model.check(again, kept)
        model.state = again


@pytest.mark.parametrize("most", [1, 40, 1 << 16, (1 << 60) - 1])
def test_pages_are_sorted_by_generation(most: int) -> None:
    """Of equal generations, as they are given; any of the pages may be left out."""
    random = Random(most)
    state = IndexState()
    state.apply(encode_root(1, None, None))
    generations = [random.randrange(most) for _page in range(300)]
    state.apply(b"".join([encode_page(1, generation, slot, 0, 0, []) for slot, generation in enumerate(generations)]))
    pages = [page for page in range(300) if random.random() < 0.8]
    assert list(state.sort_pages(vec[i64](pages), state.generations)) == sorted(pages, key=generations.__getitem__)


@pytest.mark.parametrize("seed", range(5))
def test_slots_near_and_far(seed: int) -> None:
    random = Random(seed)
    table = SlotTable()
    expected: dict[int, int] = {}
    for page in range(3000):
        slot = random.choice((random.randint(0, 40), random.randint(0, 5000), 1 << random.randint(10, 43)))
        assert table.take(slot) == expected.pop(slot, NO_PAGE)
        if random.random() < 0.7:
            table.put(slot, page)
            expected[slot] = page
    for slot in list(expected):
        assert table.take(slot) == expected.pop(slot) and table.take(slot) == NO_PAGE
