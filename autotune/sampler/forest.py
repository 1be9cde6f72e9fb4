"""Forests that say what to expect of a configuration, how sure that is, and whether it will run."""

from __future__ import annotations

import numpy as np
import sklearn
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.tree import DecisionTreeRegressor

from autotune.sampler.encoding import Matrix

Vector = NDArray[np.float64]

TREES = 24
RENEWED = 8  # trees planted at a time in a forest that stands already
_MOST_ROWS = 400  # a tree is grown from so many at most
_LEAST_SPREAD = 1e-3  # relative: below it two configurations are alike to any benchmark


class Forest:
    """Regression trees on resampled rows; the disagreement of the trees is the doubt.

    Most of the cost of a proposal is growing trees, so a standing forest loses its oldest third
    and gains as many that know the newest trials.
    """

    def __init__(self, *, features: float = 1.0) -> None:
        """``features``: the share of columns that each split may choose from."""
        self._features = features
        self._trees: list[DecisionTreeRegressor] = []

    def grow(self, rows: Matrix, values: Vector, rng: np.random.Generator) -> None:
        """Plant trees that know these rows; the oldest make room."""
        wanted = RENEWED if self._trees else TREES
        count = len(values)
        size = min(count, _MOST_ROWS)
        with sklearn.config_context(skip_parameter_validation=True, assume_finite=True):
            for _ in range(wanted):
                weight = np.bincount(rng.integers(0, count, size), minlength=count)
                kept = np.flatnonzero(weight)
                tree = DecisionTreeRegressor(
                    max_features=self._features, random_state=int(rng.integers(1 << 31))
                )
                tree.fit(rows[kept], values[kept], weight[kept].astype(float), check_input=False)
                self._trees.append(tree)
        self._trees = self._trees[-TREES:]

    def clear(self) -> None:
        """Fell every tree: what they learnt is no longer what is asked."""
        self._trees = []

    def predict(self, rows: Matrix) -> tuple[Vector, Vector]:
        """Mean and spread over the trees."""
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        votes = np.stack([tree.tree_.predict(rows).reshape(len(rows)) for tree in self._trees])
        return votes.mean(axis=0), votes.std(axis=0)


def improvement(mean: Vector, spread: Vector, best: float) -> Vector:
    """The expected gain below ``best`` of values that are normal about ``mean``."""
    spread = spread + _LEAST_SPREAD
    z = (best - mean) / spread
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return np.asarray(spread * (z * ndtr(z) + density))
