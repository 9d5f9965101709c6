"""The demo's network: small, real, and over-confident.

scikit-learn ships 1,797 handwritten digits of 8 × 8 pixels. A multi-layer perceptron with far more
parameters than images, trained on a few hundred noisy ones until it knows them by heart, does what large
networks do: it is right less often than it says. Every held-out digit is shown four times, each time with
new noise, so that there are enough rows to measure on. Copies of one digit are not independent, so the
demo's intervals are a little too narrow.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hcal.io.atomic import atomic_path
from hcal.numerics import FloatArray, IntArray

_TRAIN, _CAL = 400, 700  # digits; the other 697 are the test part
_COPIES = 4  # times that a held-out digit is shown
CAL_ROWS = _CAL * _COPIES
_NOISE = 0.25  # standard deviation of the noise on pixels in 0..1
_EPOCHS, _WIDTH = 300, 256


@dataclass(frozen=True)
class Digits:
    """Logits of the trained network on rows it has not seen, in a calibration and a test part."""

    logits_cal: FloatArray
    y_cal: IntArray
    logits_test: FloatArray
    y_test: IntArray

    def save(self, path: Path) -> None:
        """Write a task file that every ``hcal`` command reads."""
        with atomic_path(path) as temporary:
            np.savez_compressed(temporary, **vars(self))


def train_digits(random_state: int = 0) -> Digits:
    """Train the network and return its logits on held-out digits; all draws follow ``random_state``.

    >>> train_digits().logits_test.shape
    (2788, 10)
    """
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(random_state)
    order = rng.permutation(len(y))
    pixels, y = pixels[order] / 16, y[order].astype(np.int64)

    def noisy(part: FloatArray) -> FloatArray:
        return part + rng.normal(0, _NOISE, part.shape)

    held_out = np.concatenate([noisy(pixels[_TRAIN:]) for _ in range(_COPIES)])
    logits = _train(noisy(pixels[:_TRAIN]), y[:_TRAIN], held_out, random_state)
    # One axis per copy, so that all copies of a digit fall into the same part.
    shown, labels = logits.reshape(_COPIES, -1, 10), np.tile(y[_TRAIN:], (_COPIES, 1))
    cal, test = slice(0, _CAL), slice(_CAL, None)
    return Digits(
        shown[:, cal].reshape(-1, 10),
        labels[:, cal].ravel(),
        shown[:, test].reshape(-1, 10),
        labels[:, test].ravel(),
    )


def _train(x: FloatArray, y: IntArray, held_out: FloatArray, random_state: int) -> FloatArray:
    """Train on (x, y) and return the logits of held-out rows, computed from the network's weights."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    net = MLPClassifier(
        (_WIDTH, _WIDTH),
        alpha=0.0,
        batch_size=len(x),
        max_iter=_EPOCHS,
        tol=0.0,
        n_iter_no_change=_EPOCHS,
        random_state=random_state,
    )
    with threadpool_limits(1), warnings.catch_warnings():  # for a network this small, threads only wait
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is meant to be trained for too long
        net.fit(x, y)
    *hidden, last = zip(net.coefs_, net.intercepts_, strict=True)
    for weights, bias in hidden:
        held_out = np.maximum(held_out @ weights + bias, 0.0)
    return np.asarray(held_out @ last[0] + last[1])
