"""By words: an inverted index of a catalog, and BM25F."""
