"""By meaning: vectors of texts, where they come from, and how near they are."""
