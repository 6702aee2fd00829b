"""Adapters for engines and tensor libraries; each imports its package when it is imported itself, and the core needs none of them."""
