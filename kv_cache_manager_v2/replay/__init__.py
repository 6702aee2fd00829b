"""Replays of traces and generated workloads through the manager, with reports. The top floor: public names only."""
