"""The blocks and pages of an `IndexState` by their numbers and slots, made anew each time: objects to look at, not to serve from."""

from dataclasses import dataclass

from ..durable.index_state import IS_GONE, IS_ROOT, IndexState
from ..durable.record_format import MIXED, PACKED


@dataclass(frozen=True)
class StoredNode:
    """A block, or the root of a scope: then ``parent`` is 0 and the scope is `lora_id` and `salt`."""

    parent: int
    form: int
    tokens: bytes
    lora_id: int | None = None
    salt: int | str | None = None


@dataclass(frozen=True)
class StoredPage:
    node: int
    life_cycle: int
    generation: int
    checksums: list[int]


def list_nodes(state: IndexState) -> dict[int, StoredNode]:
    """The nodes by number, parents before their children."""
    found: dict[int, StoredNode] = {}
    for node in range(state.num_nodes):
        parent = state.parents[node]
        if parent == IS_ROOT:
            lora_id, salt = state.scopes[int(node)]
            found[int(state.numbers[node])] = StoredNode(0, PACKED, b"", lora_id, salt)
        elif parent != IS_GONE:
            form = MIXED if state.is_mixed(node) else PACKED
            found[int(state.numbers[node])] = StoredNode(int(state.numbers[parent]), form, state.tokens_of(node))
    return found


def list_stored_pages(state: IndexState) -> dict[tuple[int, int], StoredPage]:
    """The pages by pool group and slot, in the order in which it was written."""
    found: dict[tuple[int, int], StoredPage] = {}
    for page in state.list_pages():
        checksums = [int(state.checksum_of(page, chunk)) for chunk in range(state.count_checksums(page))]
        number = int(state.numbers[state.page_nodes[page]])
        stored = StoredPage(number, int(state.life_cycle_of(page)), int(state.generations[page]), checksums)
        found[(int(state.pool_group_of(page)), int(state.slots[page]))] = stored
    return found
