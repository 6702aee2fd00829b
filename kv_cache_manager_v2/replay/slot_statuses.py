"""Status of each slot of a pool group at one level, read from a state dump (`KVCacheManager.describe`)."""

from typing import Any, Final, TypeAlias

StateDump: TypeAlias = dict[str, Any]

FREE: Final = "free"
SCRATCH: Final = "scratch"
LOCKED: Final = "locked"
HELD: Final = "held"
DROPPABLE: Final = "droppable"


def list_slot_statuses(dump: StateDump, level: int, pool_group: int) -> list[str]:
    """One entry per slot, by slot id; a null slot, which is free, comes first if there is one."""
    statuses: dict[int, str] = {}
    for life_cycle, its_group in enumerate(dump["pool_group_of"]):
        if its_group == pool_group:
            _enter_tree(dump, level, life_cycle, statuses)
            users: dict[int, str] = {}
            for sequence in dump["sequences"]:
                for beam in (sequence, *sequence.get("beams", [])):
                    _enter_sequence(beam, level, life_cycle, users)
            # What the tree has says its status there.
            statuses = {**users, **statuses}
            if level == 0:
                for lease in dump.get("leases", []):
                    statuses.update(dict.fromkeys(lease["page_slots"][life_cycle], LOCKED))
    num_slots = max(int(dump["levels"][level]["pool_groups"][pool_group]["slots"]), max(statuses, default=-1) + 1)
    return [statuses.get(slot, FREE) for slot in range(num_slots)]


def _enter_tree(dump: StateDump, level: int, life_cycle: int, statuses: dict[int, str]) -> None:
    for scope in dump["tree"]:
        for block in scope["blocks"]:
            page = block["pages"][life_cycle]
            if page is not None and page["level"] == level:
                statuses[page["slot"]] = page["status"]


def _enter_sequence(sequence: StateDump, level: int, life_cycle: int, users: dict[int, str]) -> None:
    """A page of several sequences is locked if one of them is active."""
    status = LOCKED if sequence["status"] == "active" else HELD
    levels = sequence.get("page_levels")
    entries = [
        (slot, status, 0 if levels is None else levels[life_cycle][ordinal])
        for ordinal, slot in enumerate(sequence["page_slots"][life_cycle])
    ]
    entries += [(slot, SCRATCH, 0) for slot in sequence["scratch"][life_cycle]["slots"]]
    if sequence.get("state_life_cycle") == life_cycle:
        entries += [(slot, status, at) for slot, at in zip(sequence["state_slots"], sequence["state_levels"], strict=True)]
    for slot, its_status, at in entries:
        if slot is not None and at == level and users.get(slot) != LOCKED:
            users[slot] = its_status
