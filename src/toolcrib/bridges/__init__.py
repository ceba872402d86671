"""Bridges to other frameworks, in both directions. Each has a package and an extra of its own.

No lower module imports a bridge, and a bridge imports its framework only when it is used. A foreign
tool is a `Tool` like any other. Its schema is validated, it asks for approval and its results are
untrusted until its author says otherwise, and every call of it goes through a `ToolRunner`.
"""
