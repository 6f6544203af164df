"""Control probe: k nearest neighbours, exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from crsbench.metrics.arrays import UNKNOWN
from crsbench.probes.logistic import check_features, check_truth

_QUERIES_AT_ONCE = 512
_PAIRS_AT_ONCE = 1 << 14
_ROUNDING = 2.0**-24  # of one float32 operation


@dataclass(frozen=True)
class NeighbourSettings:
    """neighbours : k. metric : "cosine" or "euclidean". device : "cpu" or a CUDA device."""

    neighbours: int = 5
    metric: str = "cosine"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ValueError(f"neighbours is {self.neighbours}; it must be at least 1.")
        if self.metric not in ("cosine", "euclidean"):
            raise ValueError(f"metric is {self.metric!r}; allowed are 'cosine' and 'euclidean'.")


class NeighbourProbe:
    """The share of each class among the k nearest training rows.

    A row as far as the k-th neighbour to the last bit of a float64 distance is no worse than it:
    such rows share the votes that the nearer ones leave, so that the order of the rows is of no
    effect. With fewer than k training rows all of them vote, and shares are of their number. A
    class that no neighbour has gets probability 0. The neighbours for a label are sought among the
    rows whose label is known; without any the probability is 1/2. For the cosine metric a row of
    zeros is at distance 1 from every row.

    The probe is its training features, so it is fitted and applied in one job, not stored.
    """

    def __init__(self, features: np.ndarray, truth: np.ndarray, settings: NeighbourSettings):
        self._settings = settings
        self._rows = features
        self._truth = truth
        patterns, pattern_of_class = np.unique(truth.T != UNKNOWN, axis=0, return_inverse=True)
        self._searches = [
            (torch.from_numpy(known).to(settings.device), np.flatnonzero(pattern_of_class == p))
            for p, known in enumerate(patterns)
        ]
        self._length = _length(features)
        self._searched = self._search_form(features, self._length)
        squares = self._searched.square().sum(1)
        self._largest = float(squares.max().sqrt())
        self._offset = squares if settings.metric == "euclidean" else torch.zeros_like(squares)

    def predict_proba(self, features: np.ndarray) -> np.ndarray:
        """Probabilities (m, K), float64, of features (m, d) standardised as in training."""
        features = np.asarray(features)
        check_features(features)
        if features.shape[1] != self._rows.shape[1]:
            raise ValueError(
                f"features have {features.shape[1]} columns; {self._rows.shape[1]} are needed."
            )
        blocks = range(0, len(features), _QUERIES_AT_ONCE)
        return np.concatenate(
            [self._shares(features[start : start + _QUERIES_AT_ONCE]) for start in blocks]
        )

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities (m, K) and what ranks: the same, as shares do not saturate."""
        shares = self.predict_proba(features)
        return shares, shares

    def _shares(self, queries: np.ndarray) -> np.ndarray:
        """Shares of the classes (m, K), one search for the classes that are known for like rows."""
        shares = np.full((len(queries), self._truth.shape[1]), 0.5)
        queries_length = _length(queries)
        searched = self._search_form(queries, queries_length)
        # |a - b|^2 = |a|^2 + |b|^2 - 2 a.b, so |b|^2 - 2 a.b sorts the rows b of a query a alike;
        # the cosine distance 1 - a.b of unit rows sorts as -2 a.b.
        distance = self._offset - 2.0 * (searched @ self._searched.T)
        length = searched.square().sum(1, keepdim=True).sqrt()
        exact = queries.astype(np.float64)
        if self._settings.metric == "cosine":
            exact /= queries_length[:, None]
        for known, classes in self._searches:
            k = min(self._settings.neighbours, int(known.sum()))
            if k:
                query, row = self._candidates(distance.where(known, torch.inf), length, k)
                vote = _votes(query, self._exact_distances(exact, query, row), k)
                shares[:, classes] = 0.0
                np.add.at(
                    shares, (query[:, None], classes), vote[:, None] * self._truth[row][:, classes]
                )
        return shares

    def _candidates(
        self, distance: torch.Tensor, length: torch.Tensor, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (query, row) that hold, for sure, the k nearest rows of each query, in query order.

        A row is left out only if its float32 distance is beyond the k-th by more than twice the
        bound of a dot product's rounding error, d u |a| |b| (Higham, Accuracy and Stability of
        Numerical Algorithms, 2nd ed., section 3.1), and of the sums about it.
        """
        kth = distance.topk(k, dim=1, largest=False).values[:, -1:]
        # |error| of |b|^2 - 2 a.b <= (d + 8) u (2 |a| |b| + |b|^2), |b| at most the largest length;
        # twice, since the k-th distance has an error too.
        terms = self._rows.shape[1] + 8
        scale = self._largest * (2.0 * length + self._largest)
        query, row = (distance <= kth + 2.0 * terms * _ROUNDING * scale).nonzero(as_tuple=True)
        return query.cpu().numpy(), row.cpu().numpy()

    def _search_form(self, rows: np.ndarray, length: np.ndarray) -> torch.Tensor:
        """Rows in float32, for the cosine metric of length 1."""
        rows = rows.astype(np.float32)
        if self._settings.metric == "cosine":
            rows /= length.astype(np.float32)[:, None]
        return torch.from_numpy(rows).to(self._settings.device)

    def _exact_distances(self, exact: np.ndarray, query: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Of each pair; exact: the queries (m, d) in float64, for the cosine metric of length 1."""
        distances = np.empty(len(query))
        for start in range(0, len(query), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            a, b = exact[query[part]], self._rows[row[part]].astype(np.float64)
            if self._settings.metric == "cosine":
                distances[part] = -(a * b).sum(1) / self._length[row[part]]  # -a.b / |b|, |a| = 1
            else:
                distances[part] = np.square(a - b).sum(1)  # |a - b|^2
        return distances


def fit_neighbours(
    features: np.ndarray,
    truth: np.ndarray,
    task: str,
    settings: NeighbourSettings | None = None,
) -> NeighbourProbe:
    """Keep the rows: features (n, d) floats, standardised by the caller; truth (n, K) of 0 and 1.

    Multilabel truth may also be -1, unknown.

    Raises UserError for features that are not finite, ValueError for arguments that do not fit
    together.
    """
    features, truth = np.asarray(features), np.asarray(truth)
    check_features(features)
    unknown = (truth == UNKNOWN) & (task == "multilabel")
    check_truth(np.where(unknown, 0, truth), len(features), task)
    return NeighbourProbe(features, truth, settings or NeighbourSettings())


def _votes(query: np.ndarray, distance: np.ndarray, k: int) -> np.ndarray:
    """The vote of each pair, 1/k or a part of it, for the pairs in the order of their queries."""
    order = np.lexsort((distance, query))  # by query, then by distance
    first = np.searchsorted(query, np.arange(query[-1] + 1))  # of each query's pairs
    kth = distance[order][first + k - 1][query]
    nearer, level = distance < kth, distance == kth
    # A nearer row votes 1/k; each of the t rows level with the k-th (k - #nearer rows) / (k t).
    left = k - np.bincount(query, nearer)
    votes: np.ndarray = (nearer + level * (left / np.bincount(query, level))[query]) / k
    return votes


def _length(rows: np.ndarray) -> np.ndarray:
    """Length (n,) of each row in float64, and 1 for a row of zeros."""
    blocks = (rows[at : at + _PAIRS_AT_ONCE] for at in range(0, len(rows), _PAIRS_AT_ONCE))
    length = np.concatenate([np.sqrt(np.square(b.astype(np.float64)).sum(1)) for b in blocks])
    return np.where(length > 0, length, 1.0)
