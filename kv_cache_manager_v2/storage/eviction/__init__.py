"""Eviction policies beyond recency, and what they are made of. All of them are `VictimQueue`s."""
