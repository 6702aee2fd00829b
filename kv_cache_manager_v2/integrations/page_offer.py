"""Pages that a peer may read or write: where each buffer lies, and which slots one sequence's blocks have.

A `PageOffer` travels with a request from one process to another. `plan_ranges` compares two of them, the pages here and the pages there,
and lists the byte ranges to copy. The two sides may split layers and heads differently: each range is one that both have.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..base.ids import BAD_PAGE_INDEX, LayerId
from ..config.layer_config import SsmLayerConfig
from ..config.model_id import ModelId
from ..device.cuda_device import CudaDevice
from ..reuse.token_forms import Tokens
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..reuse.block_hashes import compute_block_hashes

FORMAT: Final = 3
"""Of the bytes of an offer and of the agents' messages; a peer with another one is refused by name."""

SECRET_DIGITS: Final = 32
"""Hexadecimal ones: 128 bits."""

READ: Final = "read"
WRITE: Final = "write"
HEAD_LAYOUTS: Final = ("NHD", "HND")

Ranges = npt.NDArray[np.uint64]
"""Rows of (address, bytes, device), as transfer engines take them."""


@dataclass(frozen=True)
class BufferPlace:
    """One layer's buffer: block ``i`` of its layer group lies at ``base + stride * slot`` and has ``size`` bytes.

    ``expansion``: how many of its kernel's blocks lie in one block.
    """

    layer_id: int
    role: str
    layer_group_id: int
    base: int
    stride: int
    size: int
    expansion: int


@dataclass(frozen=True)
class PageOffer:
    """The pages of one sequence's first ``num_tokens`` tokens, as a peer needs to know them.

    ``pages``: by layer group, (block, slot) of each page. ``model`` and ``heads``: of the agent's `ModelId`. ``prefix_hash``: of the
    tokens, so that no peer takes another prompt's pages. ``access``: what the peer may do, "read" or "write". ``secret``: 128 bits that
    each message about these pages must have. A peer that has the offer has the secret: send offers to peers that may have the pages.
    ``checksums``: by layer group, of each page that may be read, over its buffers in the order of ``buffers``; none where none were made.
    """

    number: str
    access: str
    agent: str
    metadata: bytes
    lease_seconds: float
    model: str
    heads: tuple[int, int] | None
    head_layout: str
    tokens_per_block: int
    num_tokens: int
    prefix_hash: str
    device: int
    buffers: tuple[BufferPlace, ...]
    pages: tuple[tuple[tuple[int, int], ...], ...]
    secret: str = field(repr=False)
    checksums: tuple[tuple[int, ...], ...] = ()

    def to_bytes(self) -> bytes:
        """As a request carries it."""
        fields = asdict(self)
        fields["metadata"] = base64.b64encode(self.metadata).decode("ascii")
        return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def read_offer(data: bytes | PageOffer) -> PageOffer:
    """What `PageOffer.to_bytes` wrote. `ValueError` for other bytes, or of another format, or for an offer that cannot be."""
    if isinstance(data, PageOffer):
        _check(data)
        return data
    if not isinstance(data, (bytes, bytearray)):
        raise TypeError(f"an offer must be a PageOffer or its bytes, not {type(data).__name__}")
    try:
        fields: dict[str, Any] = json.loads(data)
        version = fields.pop("format")
        if version != FORMAT:
            raise ValueError(f"the offer has format {version!r}; this version of the library reads {FORMAT}")
        fields["metadata"] = base64.b64decode(fields["metadata"], validate=True)
        fields["heads"] = None if fields["heads"] is None else (int(fields["heads"][0]), int(fields["heads"][1]))
        fields["buffers"] = tuple([BufferPlace(**place) for place in fields["buffers"]])
        fields["pages"] = tuple([tuple([(int(block), int(slot)) for block, slot in group]) for group in fields["pages"]])
        fields["checksums"] = tuple([tuple(group) for group in fields["checksums"]])
        offer = PageOffer(**fields)
    except (LookupError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"these {len(data)} bytes are no offer of pages: {error}") from error
    _check(offer)
    return offer


def _check(offer: PageOffer) -> None:
    """`ValueError` for values that no agent writes."""
    texts = [offer.number, offer.agent, offer.model, offer.prefix_hash, offer.secret]
    limit = len(offer.pages) if isinstance(offer.pages, tuple) else 0
    is_sound = (
        all([isinstance(text, str) for text in texts])
        and len(offer.secret) == SECRET_DIGITS
        and offer.access in (READ, WRITE)
        and isinstance(offer.metadata, bytes)
        and isinstance(offer.lease_seconds, (int, float))
        and 0 < offer.lease_seconds < float("inf")
        and (offer.heads is None or (_are_counts(offer.heads, 2) and offer.heads[0] < offer.heads[1]))
        and offer.head_layout in HEAD_LAYOUTS
        and _are_counts((offer.tokens_per_block, offer.num_tokens), 2)
        and type(offer.device) is int
        and -1 <= offer.device < 1 << 16
        and isinstance(offer.buffers, tuple)
        and all([isinstance(place, BufferPlace) and _is_place(place, limit) for place in offer.buffers])
        and all([isinstance(group, tuple) and all([_are_counts(page, 2) for page in group]) for group in offer.pages])
        and isinstance(offer.checksums, tuple)
        and all([isinstance(sums, tuple) and _are_counts(sums, len(sums)) for sums in offer.checksums])
        and [len(sums) for sums in offer.checksums] in ([], [len(group) for group in offer.pages])
    )
    if not is_sound:
        raise ValueError(f"the offer {str(offer.number)[:64]!r} has values that no agent writes; it was changed on its way")


def _is_place(place: BufferPlace, num_groups: int) -> bool:
    numbers = (place.layer_id, place.layer_group_id, place.base, place.stride, place.size, place.expansion)
    return _are_counts(numbers, 6) and isinstance(place.role, str) and place.layer_group_id < num_groups and place.expansion > 0


def _are_counts(numbers: object, count: int) -> bool:
    """A tuple of so many ints that are no address beyond memory."""
    if not isinstance(numbers, tuple) or len(numbers) != count:
        return False
    return all([type(number) is int and 0 <= number < 1 << 62 for number in numbers])


def describe_model(model_id: ModelId | None) -> str:
    """Equal for two ranks of one model: everything that changes bytes, but not which heads the rank has."""
    if model_id is None:
        return ""
    return repr((model_id.name, model_id.revision, model_id.dtype, tuple(model_id.details), model_id.salt_domain))


def hash_prefix(kv_cache: KVCache, tokens: Tokens) -> str:
    """Of all tokens, with the scope in which they are reused."""
    size = kv_cache.tokens_per_block
    # A sequence of tokens, whichever of its forms.
    listed: Any = tokens
    num_full = len(listed) // size * size
    blocks = compute_block_hashes(listed[:num_full], size, kv_cache.reuse_scope) if num_full > 0 else []
    rest = compute_block_hashes(listed[num_full:], 1, kv_cache.reuse_scope) if num_full < len(listed) else []
    return hashlib.sha256(repr((blocks[-1:], rest[-1:], len(listed))).encode()).hexdigest()


def list_buffers(manager: KVCacheManager) -> tuple[BufferPlace, ...]:
    """All buffers of all layers. `ValueError` for a model with recurrent layers: leases have no states."""
    for layer in manager.init_config.layers:
        if isinstance(layer, SsmLayerConfig):
            raise ValueError(f"layer {layer.layer_id} is recurrent: the state of a recurrent layer cannot be transferred")
    places: list[BufferPlace] = []
    for buffer_id in manager.all_buffer_ids:
        pages = manager.get_aggregated_pages([buffer_id])[0]
        expansion = pages.buffers[0].expansion
        places.append(
            BufferPlace(
                int(buffer_id.layer_id), str(buffer_id.role), int(pages.layer_group_id), int(pages.base), pages.stride, pages.size,
                expansion,
            )
        )
    return tuple(places)


def list_pages(kv_cache: KVCache, num_groups: int, begin: int, end: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """By layer group (block, slot) of the pages of blocks ``begin .. end - 1``."""
    groups: list[tuple[tuple[int, int], ...]] = []
    for group in range(num_groups):
        slots = kv_cache.get_base_page_indices(group)
        groups.append(tuple([(block, slots[block]) for block in range(begin, end) if slots[block] != BAD_PAGE_INDEX]))
    return tuple(groups)


def device_ordinal(manager: KVCacheManager) -> int:
    """Of the GPU that has level 0; -1 for host memory."""
    device = manager.device
    return device.ordinal if isinstance(device, CudaDevice) else -1


@dataclass(frozen=True)
class RangePlan:
    """What to copy between the pages here and the pages of one offer: row ``i`` of `ours` and of `theirs` are the same bytes.

    ``heads``: by (layer, role) the heads that are copied, (0, 1) where neither side names heads.
    """

    ours: Ranges
    theirs: Ranges
    heads: dict[tuple[int, str], tuple[int, int]]


def plan_ranges(ours: PageOffer, theirs: PageOffer, layer_ids: Sequence[LayerId] | None = None) -> RangePlan:
    """The byte ranges that both sides have, of these layers (None: all). `ValueError` if the two do not fit, and why."""
    for name in ("model", "head_layout", "tokens_per_block", "num_tokens", "prefix_hash"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            raise ValueError(f"{name} is {mine!r} here, and {other!r} in the offer of agent {theirs.agent!r}: these are other bytes")
    there = {(place.layer_id, place.role): place for place in theirs.buffers}
    wanted = None if layer_ids is None else {int(layer) for layer in layer_ids}
    here: list[Ranges] = []
    remote: list[Ranges] = []
    heads: dict[tuple[int, str], tuple[int, int]] = {}
    for place in ours.buffers:
        key = (place.layer_id, place.role)
        other_place = there.get(key)
        if other_place is None or (wanted is not None and place.layer_id not in wanted):
            continue
        shared = _shared_heads(ours.heads, theirs.heads)
        if shared is None:
            continue
        blocks, slots = _page_columns(ours.pages[place.layer_group_id])
        slot_of = dict(theirs.pages[other_place.layer_group_id])
        missing = [block for block in blocks.tolist() if block not in slot_of]
        if missing:
            raise ValueError(
                f"block {missing[0]} of layer {place.layer_id} has a page here and none in the offer of agent {theirs.agent!r}: "
                f"its sequence has moved on; offer pages before it grows"
            )
        other_slots = np.array([slot_of[block] for block in blocks.tolist()], dtype=np.uint64)
        heads[key] = shared
        here.append(_ranges_of(place, ours, slots, shared, theirs.heads == ours.heads, other_place.size))
        remote.append(_ranges_of(other_place, theirs, other_slots, shared, theirs.heads == ours.heads, place.size))
    if not here:
        return RangePlan(np.empty((0, 3), np.uint64), np.empty((0, 3), np.uint64), heads)
    mine_rows, their_rows = _merge(np.concatenate(here), np.concatenate(remote))
    return RangePlan(mine_rows, their_rows, heads)


def require_all_heads(ours: PageOffer, plans: Sequence[RangePlan]) -> None:
    """`ValueError` unless these plans together bring every head of every buffer here exactly once."""
    first, end = (0, 1) if ours.heads is None else ours.heads
    for place in ours.buffers:
        spans = sorted([plan.heads[place.layer_id, place.role] for plan in plans if (place.layer_id, place.role) in plan.heads])
        at = first
        for span in spans:
            if span[0] != at:
                break
            at = span[1]
        if at != end or len(spans) == 0 or spans[-1][1] != end:
            raise ValueError(
                f"layer {place.layer_id}, {place.role!r}: the offers have heads {spans} of {(first, end)}; they must bring each once"
            )


def _shared_heads(ours: tuple[int, int] | None, theirs: tuple[int, int] | None) -> tuple[int, int] | None:
    if ours is None and theirs is None:
        return 0, 1
    if ours is None or theirs is None:
        raise ValueError(f"heads are {ours} here and {theirs} there: name the heads in the ModelId of both agents, or of none")
    begin, end = max(ours[0], theirs[0]), min(ours[1], theirs[1])
    return (begin, end) if begin < end else None


def _page_columns(pages: Sequence[tuple[int, int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    blocks = np.array([block for block, _slot in pages], dtype=np.int64)
    return blocks, np.array([slot for _block, slot in pages], dtype=np.uint64)


def _ranges_of(
    place: BufferPlace, side: PageOffer, slots: npt.NDArray[np.uint64], heads: tuple[int, int], is_whole: bool, other_size: int
) -> Ranges:
    """One row a page, or one for each token (NHD) or kernel block (HND) of it where the sides have other heads."""
    if is_whole:
        if place.size != other_size:
            sizes = f"{place.size} bytes on one side, {other_size} on the other"
            raise ValueError(f"layer {place.layer_id}, {place.role!r}: a block has {sizes}")
        pieces, begin, length = 1, 0, place.size
    else:
        first, end = (0, 1) if side.heads is None else side.heads
        pieces = side.tokens_per_block if side.head_layout == "NHD" else place.expansion
        if place.size % (pieces * (end - first)) != 0:
            raise ValueError(
                f"layer {place.layer_id}, {place.role!r}: {place.size} bytes of a block cannot be shared out to {end - first} heads in "
                f"{pieces} pieces ({side.head_layout})"
            )
        head_bytes = place.size // pieces // (end - first)
        begin, length = (heads[0] - first) * head_bytes, (heads[1] - heads[0]) * head_bytes
    page_starts = np.uint64(place.base) + np.uint64(place.stride) * slots
    offsets = np.arange(pieces, dtype=np.uint64) * np.uint64(place.size // pieces) + np.uint64(begin)
    rows = np.empty((len(slots) * pieces, 3), np.uint64)
    rows[:, 0] = (page_starts[:, None] + offsets[None, :]).ravel()
    rows[:, 1] = length
    rows[:, 2] = max(side.device, 0)
    return rows


def _merge(ours: Ranges, theirs: Ranges) -> tuple[Ranges, Ranges]:
    """Ranges that follow one another on both sides become one: buffers of neighbouring layers lie side by side in a slot."""
    if len(ours) != len(theirs) or not np.array_equal(ours[:, 1], theirs[:, 1]):
        raise ValueError(f"{len(ours)} ranges here, {len(theirs)} there, or of other sizes: the heads lie in another order (head_layout)")
    order = np.argsort(ours[:, 0])
    ours, theirs = ours[order], theirs[order]
    follows = (ours[:-1, 0] + ours[:-1, 1] == ours[1:, 0]) & (theirs[:-1, 0] + theirs[:-1, 1] == theirs[1:, 0])
    begins = np.concatenate(([True], ~follows))
    starts = np.flatnonzero(begins)
    lengths = np.add.reduceat(ours[:, 1], starts)
    merged_ours, merged_theirs = ours[starts].copy(), theirs[starts].copy()
    merged_ours[:, 1] = lengths
    merged_theirs[:, 1] = lengths
    return merged_ours, merged_theirs


def only_their_blocks(ours: PageOffer, theirs: PageOffer) -> PageOffer:
    """Without the pages that the peer has no use for: of blocks that it found by reuse, or that are out of its window."""
    groups_there = {place.layer_id: place.layer_group_id for place in theirs.buffers}
    pages = list(ours.pages)
    for place in ours.buffers:
        group = groups_there.get(place.layer_id)
        if group is not None:
            wanted = {block for block, _slot in theirs.pages[group]}
            have = {block for block, _slot in ours.pages[place.layer_group_id]}
            if not wanted <= have:
                missing = min(wanted - have)
                raise ValueError(f"agent {theirs.agent!r} asks for block {missing} of layer {place.layer_id}, which has no page here")
            pages[place.layer_group_id] = tuple([page for page in ours.pages[place.layer_group_id] if page[0] in wanted])
    return PageOffer(**{**{name: getattr(ours, name) for name in ours.__dataclass_fields__}, "pages": tuple(pages)})


def list_pool_ranges(manager: KVCacheManager) -> Ranges:
    rows = [
        (int(pool.base_address), pool.slot_bytes * group.num_slots, 0) for group in manager.pool_group_descs for pool in group.pools
    ]
    return np.array(rows, dtype=np.uint64)
