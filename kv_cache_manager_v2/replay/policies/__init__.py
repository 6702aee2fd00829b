"""Eviction policies to compare with. Their queues are `VictimQueue`s."""
