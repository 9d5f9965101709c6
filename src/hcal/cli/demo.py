"""The demo's network: small, real, and over-confident.

scikit-learn ships 1,797 handwritten digits of 8 × 8 pixels. A multi-layer perceptron with far more
parameters than images, trained on a few hundred grainy ones until it knows them by heart, does what large
networks do: it is right less often than it says. Held-out digits are looked at several times, each time
through new grain, so that there are rows enough to measure on; looks at one digit are not independent, which
makes the demo's intervals a little too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal.io.atomic import atomic_path
from hcal.numerics import FloatArray, IntArray
from hcal.runtime.threads import one_openmp_thread

_TRAIN, _CAL = 400, 700  # digits; the other 697 are the test part
_LOOKS = 4  # times that a held-out digit is looked at
CAL_ROWS = _CAL * _LOOKS
_GRAIN = 0.25  # standard deviation of the noise on pixels in 0..1
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
    train = slice(0, _TRAIN)
    held_out = np.concatenate([_grainy(pixels[_TRAIN:], rng) for _ in range(_LOOKS)])
    with one_openmp_thread():  # for a net this small, threads only wait for one another
        logits = _train(_grainy(pixels[train], rng), y[train], held_out, random_state)
    # One axis a look, so that all looks at a digit fall into the same part.
    looks, labels = logits.reshape(_LOOKS, -1, 10), np.tile(y[_TRAIN:], (_LOOKS, 1))
    cal, test = slice(0, _CAL), slice(_CAL, None)
    return Digits(
        looks[:, cal].reshape(-1, 10),
        labels[:, cal].ravel(),
        looks[:, test].reshape(-1, 10),
        labels[:, test].ravel(),
    )


def _grainy(pixels: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
    return (pixels + rng.normal(0, _GRAIN, pixels.shape)).astype(np.float32)


def _train(x: NDArray[Any], y: NDArray[Any], held_out: NDArray[Any], random_state: int) -> FloatArray:
    """Train on (x, y) and return logits of held-out rows, leaving torch's global random state as it was."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        net = nn.Sequential(
            nn.Linear(64, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 10)
        )
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(_EPOCHS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        return np.asarray(net(torch.from_numpy(held_out)).numpy())
