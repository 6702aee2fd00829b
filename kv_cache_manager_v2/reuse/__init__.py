"""Which tokens are already here: token keys, tree blocks, the radix tree, the longest reusable prefix."""
