"""toolcrib."""
