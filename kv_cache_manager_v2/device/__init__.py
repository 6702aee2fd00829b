"""Devices: raw memory, streams, events and copies behind one port, and growable memory ranges.

The only folder that touches CUDA or the operating system's memory.
"""
