"""KV events: messages to routers about published blocks. Values, a log of page changes, and an index that follows them."""
