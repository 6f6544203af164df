"""Features: the store (one Arrow file a condition) and the extraction loop that fills it."""
