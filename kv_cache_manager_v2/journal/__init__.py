"""A record of the calls on a manager, compact enough to be on in production, complete enough to do them all again."""
