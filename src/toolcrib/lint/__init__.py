"""Find what a provider would refuse, a model would miss, or a reader would confuse in a catalog."""

from toolcrib.lint.check import check_tools
from toolcrib.lint.rules import RULES, Finding, Rule

__all__ = ["RULES", "Finding", "Rule", "check_tools"]
