"""CRS-Bench: a reliability benchmark for frozen medical image encoders."""

__version__ = "0.1.0"
