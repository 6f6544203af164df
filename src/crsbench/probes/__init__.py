"""Probes: small classifiers on frozen features.

Importing this package loads neither torch nor scikit-learn, so that a run job can apply a fitted
probe at once; fitting lives in the modules `selection`, `mlp` and `knn`.
"""

from crsbench.probes.fitted import FittedProbe, ProbeSettings

LOGISTIC, NEIGHBOURS, PERCEPTRON = "logistic", "neighbours", "perceptron"
"""The names of the probes in tables and files; the first is the protocol's, the others control."""

__all__ = ["LOGISTIC", "NEIGHBOURS", "PERCEPTRON", "FittedProbe", "ProbeSettings"]
