"""Statistics for people and dashboards: values only, never internals."""
