"""Serves traces and made workloads through the manager and reports. The top floor: public names only."""
