"""The eviction policy that learns, and what it is made of: a `VictimQueue`."""
