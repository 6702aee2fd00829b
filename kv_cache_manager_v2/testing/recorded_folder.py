"""The folder of a durable level for a journal that is run again: as the recorded manager found it, but for the bytes of its pages."""

from ..config.cache_tier_config import DiskCacheTierConfig
from ..config.manager_config import KVCacheManagerConfig
from ..device.checksum import require_xxhash
from ..device.cold_page_codec import ColdPageCodec
from ..device.file_port import FilePort
from ..device.port import Device
from ..durable.cache_folder import CacheFolder
from ..durable.index_snapshot import encode_state
from ..durable.index_state import IndexState
from ..layout.registry import LifeCycleRegistry
from ..layout.sizing import plan_slot_counts
from ..layout.slot_layout import SlotLayout
from ..manager.durable_opening import describe_identity, describe_layout, list_absolute_paths
from ..storage.page_packer import lay_out_slots


def write_folder(device: Device, config: KVCacheManagerConfig, pieces: list[bytes], codec: ColdPageCodec | None) -> None:
    """Make the durable level's folder as another process has left it, but for the bytes of its pages. ``pieces``: the records of a
    snapshot, from `IndexSnapshot`. `BadRecordError` where they are none."""
    tier = config.cache_tiers[len(config.cache_tiers) - 1]
    assert isinstance(tier, DiskCacheTierConfig) and tier.model_id is not None, "a folder of a level that is not durable"
    files = device.file_port()
    if files is None:
        raise ValueError(f"the last tier is durable, and {device.name} has no files that outlive the process; use another device")
    require_xxhash()
    state = IndexState()
    for piece in pieces:
        state.apply(piece)
    layout = lay_out_slots(config, LifeCycleRegistry(config), codec)
    last = len(config.cache_tiers) - 1
    identity = describe_identity(tier.model_id, config, None if codec is None else codec.identity)
    folder = CacheFolder(files, list_absolute_paths(tier)[:1], identity, describe_layout(layout, last))
    try:
        folder.append(b"".join(encode_state(state)))
        if tier.read_only:
            _make_data_files(files, folder.path, layout, plan_slot_counts(layout, config, tier.quota, last), last)
    finally:
        folder.close()


def _make_data_files(files: FilePort, path: str, layout: SlotLayout, num_slots: tuple[int, ...], level: int) -> None:
    """Make the files that a manager that only reads must find there; empty."""
    for group in range(layout.num_pool_groups):
        for pool, slot_bytes in enumerate(layout.slot_bytes(group, level)):
            file = files.open_named(f"{path}/data-{group}-{pool}", False)
            try:
                files.grow(file, 0, num_slots[group] * slot_bytes)
            finally:
                files.close_file(file)
