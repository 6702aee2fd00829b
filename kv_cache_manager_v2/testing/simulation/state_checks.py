"""Checks between any two calls, through the manager's public properties and the model.

Base page indices are valid exactly for the needed blocks; two entries have the same slot exactly if they are
the same published page; the user's own index buffers have the same entries; the statistics count every slot once.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from ...base.ids import BAD_PAGE_INDEX
from ...manager.kv_cache import KVCache
from ...manager.kv_cache_manager import KVCacheManager
from ..reference_beams import list_beams
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement, StateDump
from ..reference_sequence import ReferenceSequence
from .room_judge import RoomJudge
from .simulated_sequence import SimulatedSequence

PageName: TypeAlias = tuple[str, int, int, int]
"""("tree", node, group, 0), ("private", sequence, ordinal, group), ("scratch" or "state", sequence, slot, group)"""


def check_state(
    manager: KVCacheManager, model: ReferenceModel, judge: RoomJudge, sequences: Sequence[SimulatedSequence], pool_group_of: Sequence[int]
) -> None:
    page_in_slot: dict[tuple[int, int], PageName] = {}
    slot_of_page: dict[PageName, tuple[int, int]] = {}
    for sequence in sequences:
        _check_facts(model, sequence)
        for beam, group in [(beam, group) for beam in range(sequence.handle.beam_width) for group in range(len(model.rules))]:
            expected = list_beams(sequence.model)[beam]
            entries = sequence.handle.get_base_page_indices(group, beam).tolist()
            _check_entries(model, expected, group, entries)
            if beam == 0:
                _check_buffer(sequence, group, entries)
                _check_changes(sequence, group, entries)
            for ordinal, slot in enumerate(entries):
                if slot != BAD_PAGE_INDEX:
                    page = _name_page(model, expected, group, ordinal)
                    place = (pool_group_of[group], slot)
                    if page_in_slot.setdefault(place, page) != page or slot_of_page.setdefault(page, place) != place:
                        raise ModelDisagreement(
                            f"slot {slot} of pool group {place[0]} is {page} for sequence {sequence.name} and "
                            f"{page_in_slot[place]} for another; {page} is in {slot_of_page.get(page)} as well"
                        )
            if group == model.state.group and sequence.model.is_active:
                for length in range(model.state.num_slots):
                    slot = sequence.handle.get_ssm_block_base_index(group, beam, length)
                    place = (pool_group_of[group], slot)
                    if place in page_in_slot:
                        raise ModelDisagreement(f"slot {slot} is recurrent state of sequence {sequence.name} and {page_in_slot[place]}")
                    page_in_slot[place] = ("state", sequence.name, slot, group)
            if sequence.model.is_active and beam == 0:
                for slot in _check_scratch(model, sequence, group):
                    place = (pool_group_of[group], slot)
                    if place in page_in_slot:
                        raise ModelDisagreement(f"slot {slot} is scratch of sequence {sequence.name} and {page_in_slot[place]}")
                    page_in_slot[place] = ("scratch", sequence.name, slot, group)
    for number, lease in model.leases.items():
        for leased in [page for page in lease.pages if page.is_lent]:  # others may have moved
            place = (pool_group_of[leased.group], leased.slot)
            name: PageName
            if leased.node is None:
                name = ("private", *leased.private_name, leased.group)
            else:
                name = ("tree", leased.node, leased.group, 0)
            if page_in_slot.setdefault(place, name) != name:
                raise ModelDisagreement(f"slot {leased.slot} of lease {number} is {page_in_slot[place]}, must be {name}")
    _check_statistics(manager, judge)


def _check_facts(model: ReferenceModel, sequence: SimulatedSequence) -> None:
    handle = sequence.handle
    expected = sequence.model
    facts = {
        "capacity": (handle.capacity, expected.capacity),
        "history_length": (handle.history_length, expected.history),
        "num_committed_tokens": (handle.num_committed_tokens, len(expected.committed)),
        "num_blocks": (handle.num_blocks, model.num_blocks(expected)),
        "is_active": (handle.is_active, expected.is_active),
        "beam_width": (handle.beam_width, len(expected.beams) + 1),
        "committed_tokens": (list(handle.committed_tokens), expected.committed),
    }
    for name, (found, wanted) in facts.items():
        if found != wanted:
            raise ModelDisagreement(f"{name} of sequence {sequence.name} is {found}, must be {wanted}")


def _check_entries(model: ReferenceModel, expected: ReferenceSequence, group: int, entries: list[int]) -> None:
    num_blocks = model.num_blocks(expected)
    valid = [entry != BAD_PAGE_INDEX for entry in entries]
    wanted = [model.is_locked(expected, group, ordinal) for ordinal in range(num_blocks)]
    if valid != wanted:
        raise ModelDisagreement(
            f"base page indices of group {group} of sequence {expected.name} at history {expected.history}, capacity "
            f"{expected.capacity} are {entries}; valid must be {[i for i in range(num_blocks) if wanted[i]]}"
        )


def _check_buffer(sequence: SimulatedSequence, group: int, entries: list[int]) -> None:
    buffer = sequence.buffers.get(group)
    if buffer is not None:
        rest = len(buffer) - len(entries)
        found: list[int] = buffer.tolist()
        if found != entries + [BAD_PAGE_INDEX] * rest:
            raise ModelDisagreement(f"the user's index buffer of group {group} has {found}, the library's {entries}")


def _check_changes(sequence: SimulatedSequence, group: int, entries: list[int]) -> None:
    """Not each time, so that changes add up in between."""
    if (sum(entries) + len(entries)) % 3 == 0:
        return
    known = sequence.told_indices.get(group, [])
    expected = [at for at, entry in enumerate(entries) if at >= len(known) or known[at] != entry]
    ranges = sequence.handle.take_changed_blocks(group)
    found = [at for changed in ranges for at in changed]
    if found != expected or any([before.end >= after.beg for before, after in zip(ranges, ranges[1:])]):
        raise ModelDisagreement(f"indices of group {group} changed at {expected}, take_changed_blocks says {ranges}")
    sequence.told_indices[group] = entries


def note_indices(model: ReferenceModel, sequence: SimulatedSequence) -> list[list[int]]:
    """The base page indices before a commit, stop or resize after which they must be the same; none where they may change."""
    expected = sequence.model
    shares = len(expected.beams) > 0 or len(expected.adopted) > 0 or len(expected.shared_private) > 0 or expected.shared_tail is not None
    if not model.indices_stay or not expected.is_active or shares:
        return []
    return [sequence.handle.get_base_page_indices(group).tolist() for group in range(len(model.rules))]


def require_indices_stay(call: str, sequence: SimulatedSequence, before: list[list[int]]) -> None:
    """Blocks may only have come, gone, or left their window."""
    for group, entries in enumerate(before):
        now: list[int] = sequence.handle.get_base_page_indices(group).tolist()
        for ordinal, (old, new) in enumerate(zip(entries, now)):
            if old != BAD_PAGE_INDEX and new not in (old, BAD_PAGE_INDEX):
                raise ModelDisagreement(
                    f"{call} moved block {ordinal} of sequence {sequence.name}, group {group}, from slot {old} to {new}, and indices stay"
                )


def _check_scratch(model: ReferenceModel, sequence: SimulatedSequence, group: int) -> list[int]:
    """Check and return the group's scratch slots."""
    desc = sequence.handle.get_scratch_desc(group)
    beg, end = sequence.model.scratch[group]
    num_slots = model.num_scratch_slots(sequence.model, group)
    slots: list[int] = [] if desc is None else list(desc.slot_ids)
    blocks = range(0) if desc is None else range(desc.range.beg, desc.range.end)
    if blocks != range(beg, end) or len(slots) != num_slots:
        raise ModelDisagreement(
            f"group {group} of sequence {sequence.name} has scratch blocks {blocks} in slots {slots}, must have blocks "
            f"{beg} to {end} in {num_slots} slots"
        )
    return slots


def _name_page(model: ReferenceModel, expected: ReferenceSequence, group: int, ordinal: int) -> PageName:
    twin = model.find_twin(expected, group, ordinal)
    if twin is not None:
        return ("private", *twin.private_name, group)
    node = expected.node(ordinal)
    if node is not None:
        return ("tree", node, group, 0)
    owner, _ordinal = expected.private_name(ordinal)
    return ("private", owner, ordinal, group)


def _check_statistics(manager: KVCacheManager, judge: RoomJudge) -> None:
    levels: Sequence[Any] = [manager.get_storage_statistics(level) for level in range(len(manager.cache_tier_list))]
    for pool_group in range(len(levels[0])):
        counts = [groups[pool_group] for groups in levels]
        used = judge.num_used(pool_group)
        if sum([count.total - count.free for count in counts]) != used:
            raise ModelDisagreement(
                f"pool group {pool_group} has {[count.free for count in counts]} free of {[count.total for count in counts]} "
                f"slots by level, but {used} pages exist"
            )


def check_prompt(handle: KVCache, num_tokens: int) -> None:
    prompt = handle.statistics.prompts
    num_explained = prompt.num_hit + sum(list(prompt.missed_tokens.values()))
    if (prompt.tokens, prompt.num_hit, num_explained) != (num_tokens, handle.num_committed_tokens, num_tokens):
        raise ModelDisagreement(f"{num_tokens} tokens, {handle.num_committed_tokens} matched, but the statistics say {prompt}")


def require_unchanged(before: StateDump, after: StateDump) -> None:
    """Compare state dumps around a refused call. It may have detected a failed disk or a lost page: that is no change of its own."""
    if _without_failures(before) != _without_failures(after):
        raise ModelDisagreement("a call that was refused has changed something")


def _without_failures(dump: StateDump) -> StateDump:
    levels: list[dict[str, Any]] = dump["levels"]
    sequences: list[dict[str, Any]] = dump["sequences"]
    return {
        **dump,
        "levels": [{**level, "failure": None} for level in levels],
        "sequences": [_without_lost(sequence) for sequence in sequences],
        "tree": [{**scope, "blocks": [_without_losses(block) for block in scope["blocks"]]} for scope in dump["tree"]],
    }


def _without_lost(sequence: dict[str, Any]) -> dict[str, Any]:
    beams: list[dict[str, Any]] = sequence.get("beams", [])
    return {**sequence, "has_lost_pages": False, "beams": [_without_lost(beam) for beam in beams]}


def _without_losses(block: dict[str, Any]) -> dict[str, Any]:
    pages: list[dict[str, Any] | None] = block["pages"]
    return {**block, "pages": [None if page is None else {**page, "is_lost": False} for page in pages]}
