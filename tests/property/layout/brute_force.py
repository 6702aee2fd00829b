"""What a layer needs, asked of every position one by one. No arithmetic is shared with the library."""

from kv_cache_manager_v2.layout.life_cycle import LifeCycle


def is_stale(life_cycle: LifeCycle, block: int, history_length: int, tokens_per_block: int) -> bool:
    """Whether the block is all history and neither this step's first token nor a later one reads any position of it."""
    if not life_cycle.has_page_per_block or life_cycle.window_size is None or block < life_cycle.num_sink_blocks:
        return False
    positions = range(block * tokens_per_block, (block + 1) * tokens_per_block)
    if positions[-1] >= history_length:
        return False
    # Windows only move on: what the token at `history_length` does not read, no later one does.
    read = range(max(0, history_length - life_cycle.window_size + 1), history_length + 1)
    return not any(position in read for position in positions)


def count_blocks(capacity: int, tokens_per_block: int) -> int:
    return len({position // tokens_per_block for position in range(capacity)})


def scratch_blocks(
    life_cycle: LifeCycle, history_length: int, capacity: int, tokens_per_block: int, max_rewind_len: int
) -> list[int]:
    """Blocks whose tokens are all inputs of the step, and which are stale behind it, whatever of it is taken back."""
    end_of_step = max(0, capacity - max_rewind_len)
    return [
        block
        for block in range(count_blocks(capacity, tokens_per_block))
        if block * tokens_per_block >= history_length
        and is_stale(life_cycle, block, end_of_step, tokens_per_block)
    ]
