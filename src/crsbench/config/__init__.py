"""The configuration: validated and frozen; the grid of its runs; the names of their files."""
