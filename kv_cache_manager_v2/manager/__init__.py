"""The façade: `KVCacheManager`, one per engine rank, and `KVCache`, the handle of one sequence."""
