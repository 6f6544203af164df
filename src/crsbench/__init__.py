"""CRS-Bench: a reliability benchmark for frozen medical image encoders."""
