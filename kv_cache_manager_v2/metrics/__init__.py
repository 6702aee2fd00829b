"""Statistics for those outside: metrics for Prometheus, lines for the log."""
