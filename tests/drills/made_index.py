"""A made index of a durable level: so many blocks in runs of a thousand under one root, each with a page of one layer group."""

import struct
from pathlib import Path

from kv_cache_manager_v2 import AttentionLayerConfig, BufferConfig, DiskCacheTierConfig, GpuCacheTierConfig, KVCacheManager
from kv_cache_manager_v2 import HostDevice, KVCacheManagerConfig, LayerId, ModelId
from kv_cache_manager_v2.device.checksum import hash_bytes
from kv_cache_manager_v2.durable.record_format import MAGIC, PACKED, encode_node, encode_page, encode_root, frame

TOKENS_PER_BLOCK = 32
SLOT_BYTES = 64
RUN_BLOCKS = 1000


def index_config(folder: str, num_blocks: int) -> KVCacheManagerConfig:
    """One pool group with a slot for each block on the disk."""
    disk = DiskCacheTierConfig(num_blocks * SLOT_BYTES, folder, durable=True, model_id=ModelId("made"))
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", SLOT_BYTES)])]
    return KVCacheManagerConfig(tokens_per_block=TOKENS_PER_BLOCK, cache_tiers=[GpuCacheTierConfig(64 * SLOT_BYTES), disk], layers=layers)


def make_index(folder: Path, num_blocks: int) -> KVCacheManagerConfig:
    """A folder whose log says that each slot has the page of a block; returns the configuration that finds it."""
    config = index_config(str(folder), num_blocks)
    KVCacheManager(config, device=HostDevice()).shutdown()
    (path,) = folder.iterdir()
    for old in [*path.glob("log-*"), *path.glob("snapshot-*")]:
        old.unlink()
    checksum = hash_bytes(bytes(SLOT_BYTES))
    (path / "log-1").touch(mode=0o600)
    with open(path / "log-1", "wb") as file:
        file.write(MAGIC)
        records = [encode_root(1, None, None)]
        for block in range(num_blocks):
            node = block + 2
            parent = 1 if block % RUN_BLOCKS == 0 else node - 1
            tokens = struct.pack(f"<{TOKENS_PER_BLOCK}i", *range(block, block + TOKENS_PER_BLOCK))
            records.append(encode_node(node, parent, tokens, PACKED) + encode_page(node, node, block, 0, 0, [checksum]))
            if len(records) == RUN_BLOCKS:
                file.write(frame(b"".join(records)))
                records = []
        file.write(frame(b"".join(records)))
    return config
