"""Recalibration: better calibrated probabilities from a few hundred labelled cases.

`calibrators` holds the methods, in the manner of scikit-learn; `selection` chooses among them. All
that they learn comes from a calibration set. Importing this package alone loads nothing.
"""

METHODS = ("temperature", "vector", "isotonic", "dirichlet")
"""The names of the methods, in the order of the protocol."""

NONE = "none"
"""In place of a method: probabilities as they are."""

CHOSEN = "chosen"
"""In place of a method: for each seed the one that cross-validation chose."""

SOURCE = "source"
"""On a shift target: the method chosen, and fitted, on the source's calibration set."""
