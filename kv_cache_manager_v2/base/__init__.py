"""Basic types and helpers for all folders: errors, ids, ranges, values. They know nothing of caches."""
