"""The journal: a record of all calls on a manager, compact enough for production, complete enough to rerun them."""
