"""Policy over pools: which page keeps its slot, which one makes room. Knows pages, not tokens."""
