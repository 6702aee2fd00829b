"""Words and small mechanisms that every other floor uses and that know nothing of caches."""
