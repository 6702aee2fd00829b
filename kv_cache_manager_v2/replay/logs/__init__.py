"""Logs of requests in the formats that serving systems and benchmarks write, recognised by their content."""
