"""Ready-made policies, to be added to the standard one: `ToolRunner(…, policy=[…])`.

How a call is decided, and how to write one's own: `docs/deciding.md`.
"""

from toolcrib.policies.budget import budget
from toolcrib.policies.rate import rate_limit
from toolcrib.policies.rules import ask, deny_by_default, require_roles
from toolcrib.runner.policy import CountingPolicy, ForeseeingPolicy, Policy, Standard, standard

__all__ = [
    "CountingPolicy",
    "ForeseeingPolicy",
    "Policy",
    "Standard",
    "ask",
    "budget",
    "deny_by_default",
    "rate_limit",
    "require_roles",
    "standard",
]
