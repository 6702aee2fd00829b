"""Raw memory, streams, events and copies: the port, what implements it, and growable memory ranges.

The only folder that touches CUDA or the operating system's memory.
"""
