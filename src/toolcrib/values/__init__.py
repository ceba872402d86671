"""The nouns: frozen values without IO, and the Protocols that several floors share.

Those that hold text, numbers and JSON only are kept from the garbage collector (`gc=False`): they
cannot be part of a cycle, and a call makes a dozen of them.
"""
