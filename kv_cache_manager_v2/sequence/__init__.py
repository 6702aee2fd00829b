"""One request: its blocks, its page tables, how it grows, commits, sleeps and ends."""
