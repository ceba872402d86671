"""What every scorer has to do with: the protocol, hits, how they are ranked, what is kept."""
