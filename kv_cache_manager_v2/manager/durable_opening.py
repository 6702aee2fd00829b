"""Opening the durable level of a configuration: whose folder it is, and what must be equal for its slots to be read."""

import json
import os
from typing import Final

from ..base.errors import OutOfMemoryError
from ..base.package_log import PackageLog
from ..config.cache_tier_config import DiskCacheTierConfig
from ..config.manager_config import KVCacheManagerConfig
from ..config.model_id import ModelId
from ..device.checksum import require_xxhash
from ..device.port import Device
from ..device.read_only_files import ReadOnlyFiles
from ..durable.cache_folder import CacheFolder
from ..durable.durable_level import DurableLevel
from ..durable.folder_removal import remove_folder
from ..layout.slot_layout import SlotLayout
from ..storage.level_slots import LevelSlots

_logger: Final = PackageLog("kv_cache_manager_v2")


def list_absolute_paths(tier: DiskCacheTierConfig) -> list[str]:
    """The paths from the working folder of this moment, ``path`` first: they name the same folders when the process changes its working
    folder later. ".." and links are left to the file system."""
    return [path if os.path.isabs(path) else os.path.join(os.getcwd(), path) for path in tier.paths]


def describe_identity(model_id: ModelId, config: KVCacheManagerConfig, codec: str | None = None) -> str:
    """The identity that names the folder, as JSON: the model, the rectangle of layers and heads, and the codec that packs its pages, if
    one does."""
    identity: dict[str, object] = {
        "name": model_id.name,
        "revision": model_id.revision,
        "dtype": model_id.dtype,
        "details": [list(pair) for pair in model_id.details],
        "salt_domain": model_id.salt_domain,
        "heads": None if model_id.heads is None else list(model_id.heads),
        "layers": sorted({int(layer.layer_id) for layer in config.layers}),
        "tokens_per_block": config.tokens_per_block,
    }
    if codec is not None:
        identity["codec"] = codec
    return json.dumps(identity, sort_keys=True)


def describe_layout(layout: SlotLayout, level: int = 0) -> str:
    """The meaning of each byte of a slot of that level, as JSON."""
    placements = [layout.buffer_placement(buffer_id) for buffer_id in layout.buffer_ids]
    described = {
        "life_cycles": [[cycle.has_page_per_block, cycle.window_size, int(cycle.num_sink_blocks)] for cycle in layout.life_cycles],
        "pool_groups": list(layout.pool_group_indices),
        "slots": [list(layout.slot_bytes(index, level)) for index in range(layout.num_pool_groups)],
        "buffers": [
            [
                int(placement.buffer_id.layer_id),
                str(placement.buffer_id.role),
                int(placement.life_cycle_id),
                int(placement.pool_index),
                placement.layer_offset,
                placement.num_bytes,
            ]
            for placement in placements
        ],
    }
    return json.dumps(described, sort_keys=True)


def open_durable(device: Device, config: KVCacheManagerConfig, layout: SlotLayout, levels: list[LevelSlots], codec: str | None) -> None:
    """Open the folder of the last level, if it is durable; its `LevelSlots` has it then. ``codec``: the identity of what packs pages."""
    last = len(levels) - 1
    tier = config.cache_tiers[last]
    if not isinstance(tier, DiskCacheTierConfig) or not tier.durable or tier.model_id is None:
        return
    files = device.file_port()
    if files is None:
        raise ValueError(f"cache_tiers[{last}] is durable, and {device.name} has no files that outlive the process; use another device")
    require_xxhash()
    slot_bytes = [layout.slot_bytes(index, last) for index in range(layout.num_pool_groups)]
    if tier.read_only:
        files = ReadOnlyFiles()
    folder = CacheFolder(
        files, list_absolute_paths(tier), describe_identity(tier.model_id, config, codec), describe_layout(layout, last), tier.read_only
    )
    try:
        levels[last].durable = DurableLevel(last, folder, slot_bytes, levels[last].num_slots)
    except BaseException as error:
        _abandon_folder(folder)
        if isinstance(error, MemoryError):
            text = f"cache_tiers[{last}] has more slots than memory can list: lower the tier's quota, {tier.quota} bytes"
            raise OutOfMemoryError(text) from error
        raise


def close_durable(levels: list[LevelSlots]) -> None:
    """The manager is not made: unlock the folder again, and remove it if it was made for this manager."""
    durable = levels[len(levels) - 1].durable
    if durable is not None:
        durable.close()
        _abandon_folder(durable.folder)


def _abandon_folder(folder: CacheFolder) -> None:
    folder.close()
    if folder.is_new:
        try:
            remove_folder(folder.files, folder.path)
        except Exception:
            _logger.exception("removing %s, which was made for a manager that could not be made, failed", folder.path)
