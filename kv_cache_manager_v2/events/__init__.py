"""KV events: what a router is told of the published blocks. Values, a log of page changes, and who follows it; no internals."""
