"""Introspection: invariants checked from scratch, and state dumps. May read everything, changes nothing."""
