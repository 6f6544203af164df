"""Data sets: readers, manifest, splits and the synthetic phantoms."""
