"""Tests of the simulated device and of its parts."""
