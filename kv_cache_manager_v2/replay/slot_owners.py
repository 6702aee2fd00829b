"""Owners of the slots of a pool group at one level, read from a state dump (`KVCacheManager.describe`)."""

from typing import Any, Final, TypeAlias, final

from mypy_extensions import mypyc_attr

StateDump: TypeAlias = dict[str, Any]

FREE: Final = "free"
SCRATCH: Final = "scratch"
LOCKED: Final = "locked"
HELD: Final = "held"
DROPPABLE: Final = "droppable"
STATUSES: Final = (FREE, LOCKED, HELD, DROPPABLE, SCRATCH)


@final
@mypyc_attr(native_class=True)
class SlotOwner:
    """One slot. ``users``: ids of the sequences that need it; ``leases``: numbers of those that keep it; ``is_published``: whether
    the tree has it."""

    __slots__ = ("status", "users", "leases", "is_published", "life_cycle", "priority")

    status: str
    users: list[int]
    leases: list[int]
    is_published: bool
    life_cycle: int | None
    priority: int | None

    def __init__(self) -> None:
        self.status = FREE
        self.users = []
        self.leases = []
        self.is_published = False
        self.life_cycle = None
        self.priority = None

    @property
    def label(self) -> str:
        """The owner, in as few letters as possible."""
        if len(self.users) == 0 and len(self.leases) > 0 and not self.is_published:
            return f"l{self.leases[0]}"
        if len(self.users) == 0:
            return "" if self.status == FREE else "t"
        return str(self.users[0]) if len(self.users) == 1 else f"{self.users[0]}+"


def find_slot_owners(dump: StateDump, level: int, pool_group: int) -> list[SlotOwner]:
    """One entry per slot, by slot id; a null slot, which has no owner, comes first if there is one."""
    group = dump["levels"][level]["pool_groups"][pool_group]
    owners: dict[int, SlotOwner] = {}
    for life_cycle, its_group in enumerate(dump["pool_group_of"]):
        if its_group == pool_group:
            _enter_tree(dump, level, life_cycle, owners)
            for sequence in dump["sequences"]:
                _enter_sequence(sequence, level, life_cycle, owners)
                for beam in sequence.get("beams", []):
                    _enter_sequence(beam, level, life_cycle, owners, sequence["id"])
            if level == 0:
                for lease in dump.get("leases", []):
                    _enter_lease(lease, life_cycle, owners)
    highest = max(owners, default=-1)
    num_slots = max(int(group["slots"]), highest + 1)
    return [owners.get(slot, SlotOwner()) for slot in range(num_slots)]


def _enter_tree(dump: StateDump, level: int, life_cycle: int, owners: dict[int, SlotOwner]) -> None:
    for scope in dump["tree"]:
        for block in scope["blocks"]:
            page = block["pages"][life_cycle]
            if page is not None and page["level"] == level:
                owner = owners.setdefault(page["slot"], SlotOwner())
                owner.status = page["status"]
                owner.is_published = True
                owner.life_cycle = life_cycle
                owner.priority = page["priority"]


def _enter_sequence(
    sequence: StateDump, level: int, life_cycle: int, owners: dict[int, SlotOwner], user: int | None = None
) -> None:
    """``user``: of a beam, the sequence that it belongs to."""
    number: int = sequence["id"] if user is None else user
    status = LOCKED if sequence["status"] == "active" else HELD
    levels = sequence.get("page_levels")
    for ordinal, slot in enumerate(sequence["page_slots"][life_cycle]):
        page_level = 0 if levels is None else levels[life_cycle][ordinal]
        if slot is not None and page_level == level:
            _enter_user(slot, number, status, life_cycle, owners)
    if level == 0:
        for slot in sequence["scratch"][life_cycle]["slots"]:
            _enter_user(slot, number, SCRATCH, life_cycle, owners)
    if sequence.get("state_life_cycle") == life_cycle:
        for slot, state_level in zip(sequence["state_slots"], sequence["state_levels"], strict=True):
            if state_level == level:
                _enter_user(slot, number, status, life_cycle, owners)


def _enter_user(slot: int, user: int, status: str, life_cycle: int, owners: dict[int, SlotOwner]) -> None:
    owner = owners.setdefault(slot, SlotOwner())
    if user not in owner.users:
        owner.users.append(user)
    owner.life_cycle = life_cycle
    if not owner.is_published and owner.status != LOCKED:
        owner.status = status


def _enter_lease(lease: StateDump, life_cycle: int, owners: dict[int, SlotOwner]) -> None:
    """Enter the lease's pages, which are locked on level 0 even if the sequence is closed."""
    slots: list[list[int]] = lease["page_slots"]
    for slot in slots[life_cycle]:
        owner = owners.setdefault(slot, SlotOwner())
        owner.leases.append(lease["number"])
        owner.life_cycle = life_cycle
        owner.status = LOCKED
