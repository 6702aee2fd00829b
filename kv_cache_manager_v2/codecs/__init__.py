"""Codecs for pages below level 0: in numpy on the host device, one also by kernels on a GPU. References for kernels of one's own, and tools
to try what a codec brings.

Nothing of the library imports this but `compat` and `replay`.
"""
