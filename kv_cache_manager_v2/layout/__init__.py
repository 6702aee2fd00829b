"""Layout: life cycles, the place of each buffer in a slot, page indices, slots per quota. Pure arithmetic."""
