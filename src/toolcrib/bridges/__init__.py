"""Tools from elsewhere, and ours for others: a room for each framework, each with an extra of its own.

Nothing below imports a bridge, and a bridge imports its framework when it is used. A foreign tool is
a `Tool` like any other: its schema is validated, it asks and taints until its author says otherwise,
and every call of it goes through a `ToolRunner`.
"""
