"""What in a catalog a provider would refuse, a model would miss, or a reader would confuse."""
