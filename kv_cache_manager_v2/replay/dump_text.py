"""A state dump (`KVCacheManager.describe`) as text: tiers, pool groups, sequences, the tree, the eviction queues."""

from typing import Any, Final

from .report_rows import format_bytes
from .slot_statuses import DROPPABLE, HELD, LOCKED, SCRATCH, StateDump, list_slot_statuses

MAX_TREE_LINES: Final = 40
_TOKENS_SHOWN: Final = 6


def describe_in_words(dump: StateDump, max_tree_lines: int = MAX_TREE_LINES) -> str:
    """The dump as text. ``max_tree_lines`` 0: the whole tree."""
    lines = [f"{dump['tokens_per_block']} tokens per block"]
    for life_cycle, name in enumerate(dump["life_cycles"]):
        lines.append(f"  layer group {life_cycle}: {name}, pool group {dump['pool_group_of'][life_cycle]}")
    for level, tier in enumerate(dump["levels"]):
        lines += ["", f"level {level}, {tier['tier']}"]
        for pool_group in range(len(tier["pool_groups"])):
            lines.append(_describe_pool_group(dump, level, pool_group))
    lines += ["", f"{len(dump['sequences'])} open sequences"]
    for sequence in dump["sequences"]:
        lines.append(_describe_sequence(sequence))
    lines += _describe_tree(dump, max_tree_lines)
    return "\n".join(lines) + "\n"


def _describe_pool_group(dump: StateDump, level: int, pool_group: int) -> str:
    group = dump["levels"][level]["pool_groups"][pool_group]
    statuses = list_slot_statuses(dump, level, pool_group)
    slot_bytes = sum(group["slot_bytes"])
    return (
        f"  pool group {pool_group}: {group['slots']:,} slots of {format_bytes(slot_bytes)} "
        f"({format_bytes(slot_bytes * group['slots'])}), {group['free']:,} free, {statuses.count(LOCKED):,} locked, "
        f"{statuses.count(SCRATCH):,} scratch, {statuses.count(HELD):,} held, {statuses.count(DROPPABLE):,} droppable; "
        f"eviction queue: {_shorten(group['eviction_queue'])}"
    )


def _shorten(pages: list[int]) -> str:
    if len(pages) == 0:
        return "empty"
    first = ", ".join([str(page) for page in pages[:4]])
    return f"pages {first}{', ...' if len(pages) > 4 else ''} ({len(pages):,})"


def _describe_sequence(sequence: StateDump) -> str:
    num_pages = [len([slot for slot in slots if slot is not None]) for slots in sequence["page_slots"]]
    num_scratch = sum([len(scratch["slots"]) for scratch in sequence["scratch"]])
    text = (
        f"  {sequence['id']}: {sequence['status']}, capacity {sequence['capacity']:,}, history {sequence['history']:,}, "
        f"committed {sequence['committed']:,}, {sequence['published_blocks']:,} published blocks, pages "
        f"{' + '.join([f'{number:,}' for number in num_pages])}"
    )
    if num_scratch > 0:
        text += f", {num_scratch:,} scratch slots"
    return text if sequence["scope"] == [None, None] else text + f", scope {_name_scope(*sequence['scope'])}"


def _name_scope(lora_id: object, salt: object) -> str:
    return f"LoRA {lora_id}, salt {salt!r}"


def _describe_tree(dump: StateDump, max_lines: int) -> list[str]:
    num_blocks = sum([len(scope["blocks"]) for scope in dump["tree"]])
    lines = ["", f"tree: {num_blocks:,} blocks in {len(dump['tree'])} reuse scopes"]
    num_shown = 0
    for scope in dump["tree"]:
        if scope["lora_id"] is not None or scope["salt"] is not None:
            lines.append(f"  scope {_name_scope(scope['lora_id'], scope['salt'])}")
        for block in scope["blocks"]:
            if max_lines > 0 and num_shown == max_lines:
                lines.append(f"  ... and {num_blocks - num_shown:,} more blocks (--tree 0 shows all)")
                return lines
            num_shown += 1
            # Deep paths are not indented any further.
            indent = "  " * min(int(block["depth"]) + 1, 12)
            lines.append(f"{indent}[{block['depth']}] {_describe_tokens(block['tokens'])}  {_describe_pages(block['pages'])}")
    return lines


def _describe_tokens(tokens: list[Any]) -> str:
    shown = " ".join([str(token)[:8] for token in tokens[:_TOKENS_SHOWN]])
    return f"{shown} ... ({len(tokens)})" if len(tokens) > _TOKENS_SHOWN else shown


def _describe_pages(pages: list[Any]) -> str:
    words: list[str] = []
    for page in pages:
        words.append("-" if page is None else f"{page['level']}:{page['slot']} {page['status']}")
    return " | ".join(words)
