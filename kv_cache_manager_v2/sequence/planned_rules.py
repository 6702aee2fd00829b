"""Rules of planned blocks, asked before anything changes. The steps that apply them: `planned_steps`."""

from mypy_extensions import i64

from ..base.errors import LogicError, PlannedTokensLost
from ..base.ids import GPU_LEVEL
from ..storage.decision_digest import REFUSAL
from ..storage.refusal import Refusal
from .planned_blocks import NOT_VOID
from .sequence_state import ACTIVE, SequenceState


def require_valid(state: SequenceState, call: str) -> None:
    """`PlannedTokensLost` if tokens that the sequence was matched with were taken back before they were computed."""
    links = state.sharing.planned
    if links is not None and links.valid_tokens != NOT_VOID:
        raise PlannedTokensLost(
            f"sequence {state.id}: {phrase_of(call)} after the sequence that planned its tokens has taken them back; its first "
            f"{links.valid_tokens} tokens are valid: close() it, and make a new one with create_kv_cache()",
            int(links.valid_tokens),
        )


def phrase_of(call: str) -> str:
    """For messages: "fork()", "setting beam_width"."""
    return call if " " in call else f"{call}()"


def require_unplanned(state: SequenceState, call: str) -> None:
    """`LogicError` while blocks of the sequence are planned, as its own or another one's."""
    links = state.sharing.planned
    if links is not None:
        require_valid(state, call)
        blocks = links.read if len(links.read) > 0 else links.offered
        if len(blocks) > 0:
            raise LogicError(
                f"sequence {state.id}: {phrase_of(call)} while block {blocks[0].ordinal} is planned; sequence "
                f"{blocks[0].writer.id} must commit it first"
            )


def require_committed_before(state: SequenceState, call: str) -> None:
    """`LogicError` while a writer has not committed tokens of the sequence."""
    links = state.sharing.planned
    if links is not None:
        require_valid(state, call)
        if len(links.read) > 0:
            raise LogicError(
                f"sequence {state.id}: {call}() behind block {links.read[0].ordinal}, which sequence {links.read[0].writer.id} has planned "
                f"and not committed; commit its tokens first"
            )


def validate_offer(state: SequenceState) -> None:
    """The caller's mistakes in `publish_planned` that do not depend on the tokens."""
    if state.sharing.planned is None and state.forked_end > state.num_published:
        raise LogicError(
            f"sequence {state.id}: publish_planned() while block {state.num_published} is, or was, shared with a fork or a lease; begin "
            f"the step with a resize(), and settle leases first"
        )


def validate_offered_tokens(state: SequenceState, packed: bytes) -> None:
    """The tokens, which follow the committed ones, are those that the sequence has offered before, where it has: `ValueError` if not. Also
    in the blocks that others had published by then, as what is offered is below these."""
    links = state.sharing.planned
    if links is None:
        return
    tree = state.shared.tree
    block_bytes = tree.block_bytes
    text = state.tail.packed() + packed
    first = state.num_published + len(links.read)
    checked = first
    for planned in links.offered:
        block = planned.anchor
        ordinal = planned.ordinal - 1
        while block is not None and ordinal >= checked:
            _require_planned(state, text, tree.key_of(block), ordinal, (ordinal - first) * block_bytes)
            block = block.parent
            ordinal -= 1
        checked = planned.ordinal + 1
        _require_planned(state, text, planned.key, planned.ordinal, (planned.ordinal - first) * block_bytes)


def _require_planned(state: SequenceState, text: bytes, key: bytes, ordinal: i64, begin: i64) -> None:
    """The text has the key at ``begin``, as far as it goes."""
    if not key.startswith(text[begin : begin + state.shared.tree.block_bytes]):
        raise ValueError(
            f"sequence {state.id}: other tokens than it has planned for block {ordinal} (tokens from "
            f"{ordinal * state.shared.tokens_per_block} on); resize() to a smaller capacity takes planned tokens back"
        )


def refuse_other_stream(state: SequenceState, stream: int) -> bool:
    """Whether some planned block of the sequence is written on another stream; then the storage knows why `resume` is refused."""
    links = state.sharing.planned
    if links is None:
        return False
    for planned in links.read:
        writer = planned.writer
        if writer.stream != stream:
            storage = state.shared.storage
            free = int(storage.allocators[0].num_free)
            evictable = int(storage.queues[0].num_pages + storage.held_queues[0].num_pages)
            text = (
                f"sequence {state.id}: block {planned.ordinal} is planned by sequence {writer.id} on stream {writer.stream}, and not "
                f"committed: until then resume() on that stream, not on {stream}"
            )
            storage.digest.record(REFUSAL, writer.request.serial)
            storage.last_refusal = Refusal(GPU_LEVEL, 0, 0, free, evictable, text)
            return True
    return False


def validate_stream(state: SequenceState, stream: int) -> None:
    """Planned blocks keep their writer and their active readers on one stream."""
    links = state.sharing.planned
    if links is None or stream == state.stream:
        return
    require_valid(state, "cuda_stream")
    if len(links.read) > 0:
        raise LogicError(
            f"sequence {state.id}: cuda_stream cannot change while block {links.read[0].ordinal} is planned by sequence "
            f"{links.read[0].writer.id}; commit its tokens first"
        )
    for planned in links.offered:
        for reader in planned.readers:
            if reader.status == ACTIVE:
                raise LogicError(
                    f"sequence {state.id}: cuda_stream cannot change while sequence {reader.id} reads block {planned.ordinal}, which is "
                    f"planned; commit its tokens first"
                )


def find_taken_back(state: SequenceState, capacity: i64, history: i64) -> i64:
    """The first offered block that the writer takes back with a resize; -1 if there is none.

    One whose tokens have no room any more, or one that becomes a scratch block: then its page is not written.
    """
    links = state.sharing.planned
    if links is None or len(links.offered) == 0:
        return -1
    shared = state.shared
    first = capacity // shared.tokens_per_block
    if state.scratch.is_enabled and capacity != state.capacity:
        for life_cycle in range(shared.num_life_cycles):
            begin = state.scratch.compute_begin(life_cycle, history, capacity)
            if begin < state.scratch.compute_end(life_cycle, history, capacity) and begin < first:
                first = begin
    last = links.offered[len(links.offered) - 1].ordinal
    return first if first <= last else -1


def validate_others(state: SequenceState, capacity: i64, history: i64, batch_number: i64, call: str) -> None:
    """In a batch no sequence may take back what another one of the batch reads."""
    first = find_taken_back(state, capacity, history)
    links = state.sharing.planned
    if first < 0 or links is None:
        return
    for planned in links.offered:
        if planned.ordinal >= first:
            for below in state.shared.claims.planned.list_below(planned):
                for reader in below.readers:
                    if reader.batch_number == batch_number:
                        raise LogicError(
                            f"{call}: sequence {state.id} takes back block {planned.ordinal}, which sequence {reader.id} of the same batch "
                            f"reads; close that one first"
                        )


def pack_read(state: SequenceState) -> bytes:
    """The tokens of the planned blocks behind the sequence's published path."""
    links = state.sharing.planned
    return b"" if links is None else b"".join([planned.key for planned in links.read])
