"""Codecs for pages below level 0, in numpy on the host device: references for kernels of one's own, and tools to try what one brings.

Nothing of the library imports this but `compat` and `replay`.
"""
