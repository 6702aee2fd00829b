"""The slots of a pool group at one level as an SVG image: one cell per slot, coloured by owner, patterned by status.

Readable in black and white: the pattern is the status, the text in a cell is the owner. The cells' titles have the details.
"""

import html
from typing import Final

from .slot_owners import DROPPABLE, FREE, HELD, LOCKED, SCRATCH, STATUSES, StateDump, SlotOwner, find_slot_owners

_CELL: Final = 26
_SMALL_CELL: Final = 8
MAX_LABELLED: Final = 2048
MAX_SLOTS: Final = 65536
_MARGIN: Final = 12
_COLOURS: Final = ("#8dd3c7", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5", "#bc80bd", "#ccebc5", "#ffed6f")
_TREE_COLOUR: Final = "#d9d9d9"

# The patterns over the owner's colour; none for locked, and free cells are white.
_PATTERNS: Final = {
    HELD: '<path d="M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4" stroke="black" stroke-width="1"/>',
    DROPPABLE: '<circle cx="4" cy="4" r="1" fill="black"/>',
    SCRATCH: '<path d="M0,0 l8,8 M8,0 l-8,8" stroke="black" stroke-width="1"/>',
}
_MEANINGS: Final = {
    FREE: "free", LOCKED: "locked by an active sequence or a lease", HELD: "held by a suspended one",
    DROPPABLE: "droppable: kept for reuse", SCRATCH: "scratch of a step",
}  # fmt: skip


def draw_slots(dump: StateDump, level: int, pool_group: int) -> str:
    """An SVG document; `ValueError` if there are too many slots to see."""
    owners = find_slot_owners(dump, level, pool_group)
    if len(owners) > MAX_SLOTS:
        raise ValueError(f"a pool group of {len(owners):,} slots is too large to draw; up to {MAX_SLOTS:,} are")
    cell = _CELL if len(owners) <= MAX_LABELLED else _SMALL_CELL
    columns = 1
    while columns * columns < 2 * len(owners):
        columns += 1
    columns = max(columns, 16)
    rows = -(-len(owners) // columns)
    width = max(columns * cell, 420) + 2 * _MARGIN
    top = _MARGIN + 20 + 22 * len(STATUSES)
    height = top + rows * cell + _MARGIN
    tier = dump["levels"][level]["tier"]
    title = f"level {level} ({tier}), pool group {pool_group}: {len(owners):,} slots"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{html.escape(title)}</title><rect width='100%' height='100%' fill='white'/><defs>",
    ]
    for status, drawing in _PATTERNS.items():
        parts.append(f'<pattern id="{status}" width="8" height="8" patternUnits="userSpaceOnUse">{drawing}</pattern>')
    parts.append(f'</defs><text x="{_MARGIN}" y="{_MARGIN + 10}" font-weight="bold">{html.escape(title)}</text>')
    parts += _draw_legend(owners)
    for slot, owner in enumerate(owners):
        x = _MARGIN + slot % columns * cell
        y = top + slot // columns * cell
        parts += _draw_cell(slot, owner, x, y, cell)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _draw_legend(owners: list[SlotOwner]) -> list[str]:
    counts = {status: 0 for status in STATUSES}
    for owner in owners:
        counts[owner.status] += 1
    parts: list[str] = []
    for position, status in enumerate(STATUSES):
        y = _MARGIN + 20 + 22 * position
        colour = "white" if status == FREE else _TREE_COLOUR
        parts.append(f'<rect x="{_MARGIN}" y="{y}" width="16" height="16" fill="{colour}" stroke="black"/>')
        if status in _PATTERNS:
            parts.append(f'<rect x="{_MARGIN}" y="{y}" width="16" height="16" fill="url(#{status})"/>')
        parts.append(f'<text x="{_MARGIN + 24}" y="{y + 13}">{_MEANINGS[status]}: {counts[status]:,}</text>')
    return parts


def _draw_cell(slot: int, owner: SlotOwner, x: int, y: int, cell: int) -> list[str]:
    colour = "white"
    if owner.status != FREE:
        colour = _COLOURS[owner.users[0] % len(_COLOURS)] if len(owner.users) > 0 else _TREE_COLOUR
    parts = [
        f"<g><title>{html.escape(_explain(slot, owner))}</title>"
        f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="{colour}" stroke="black" stroke-width="0.5"/>'
    ]
    if owner.status in _PATTERNS:
        parts.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="url(#{owner.status})"/>')
    if cell == _CELL and owner.label != "":
        parts.append(
            f'<text x="{x + cell // 2}" y="{y + 17}" text-anchor="middle" stroke="white" stroke-width="3" '
            f'paint-order="stroke">{html.escape(owner.label)}</text>'
        )
    parts.append("</g>")
    return parts


def _explain(slot: int, owner: SlotOwner) -> str:
    if owner.status == FREE:
        return f"slot {slot}: free"
    words = [f"slot {slot}: {owner.status}", f"layer group {owner.life_cycle}"]
    if owner.is_published:
        words.append(f"published, priority {owner.priority}")
    if len(owner.users) > 0:
        words.append("sequence " + ", ".join([str(user) for user in owner.users]))
    if len(owner.leases) > 0:
        words.append("lease " + ", ".join([str(lease) for lease in owner.leases]))
    return ", ".join(words)
