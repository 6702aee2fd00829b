"""Metrics: statistics for Prometheus and for the log."""
