"""Tests of the fake engine: of its parts, on the host, on a simulated device, and of its CUDA kernels."""
