"""The shared level: pages that other processes have computed, in stores that exist. See `SharedLevel`; the core needs none of it."""

from .memory_store import MemoryStore
from .mooncake_store import MooncakeStore
from .object_store import ObjectStore
from .remote_report import RemoteAnswer, RemoteReport
from .remote_request import RemoteRequest
from .shared_level import SharedLevel
from .shared_statistics import SharedStatistics
from .shared_store import SharedStore, StoreConnection, StoreError, StoreFullError
from .valkey_store import ValkeyStore

__all__ = [
    "MemoryStore",
    "MooncakeStore",
    "ObjectStore",
    "RemoteAnswer",
    "RemoteReport",
    "RemoteRequest",
    "SharedLevel",
    "SharedStatistics",
    "SharedStore",
    "StoreConnection",
    "StoreError",
    "StoreFullError",
    "ValkeyStore",
]
