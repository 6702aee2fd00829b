"""Policy over pools: which page keeps its slot, which one is evicted. Knows pages, not tokens."""
