"""Frozen values without IO, and the Protocols that several layers share.

Values that hold only text, numbers and JSON are excluded from garbage collection (`gc=False`). They
cannot be part of a reference cycle, and each call creates a dozen of them.
"""
