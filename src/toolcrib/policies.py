"""Ready-made policies, to be added to the standard one: `ToolRunner(…, policy=[…])`."""

from toolcrib.runner.policy import Policy, budget, deny_by_default, require_roles, standard

__all__ = ["Policy", "budget", "deny_by_default", "require_roles", "standard"]
