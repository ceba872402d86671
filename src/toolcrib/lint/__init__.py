"""What in a catalog a provider would refuse, a model would miss, or a reader would confuse."""

from toolcrib.lint.check import check_tools
from toolcrib.lint.rules import RULES, Finding, Rule

__all__ = ["RULES", "Finding", "Rule", "check_tools"]
