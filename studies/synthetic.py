"""Synthetic tasks whose true probabilities are known, with one controlled fault each.

Features are Gaussian given the class, x | y ~ N(s·e_y, I), so the true posterior is exactly
softmax(log π + s·x). The classifier "shows" a distorted version of that logit:

- ``calibrated``: nothing is wrong;
- ``temperature``: logits multiplied by a constant (over-confidence above 1);
- ``class_bias``: a constant added per class;
- ``non_monotone``: confidence inflated in the middle of its range, so that shown confidence is not an
  increasing function of true confidence, while every argmax stays;
- ``label_shift``: right for the calibration prior, but the test prior is another one;
- ``long_tail``: a long-tailed prior in both parts, and over-confidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from hcal.numerics import Float64, IntArray, softmax

Distortion = Literal[
    "calibrated", "temperature", "class_bias", "non_monotone", "label_shift", "long_tail"
]
KINDS: Final[tuple[Distortion, ...]] = get_args(Distortion)


@dataclass(frozen=True)
class SyntheticTask:
    """Logits, labels and the true probabilities of both parts."""

    logits_cal: Float64  # (N, K)
    y_cal: IntArray  # (N,)
    true_cal: Float64  # (N, K): the probabilities the labels were drawn from
    logits_test: Float64
    y_test: IntArray
    true_test: Float64


def make_synthetic(
    kind: Distortion,
    *,
    n_classes: int = 10,
    n_cal: int = 3000,
    n_test: int = 5000,
    strength: float = 1.0,
    random_state: int = 0,
) -> SyntheticTask:
    """Draw a task with known true probabilities.

    ``kind`` is the fault, see the module's description, ``strength`` how much of it there is: 0 leaves the
    classifier calibrated (on the calibration prior).

    >>> task = make_synthetic("temperature", n_classes=3, n_cal=50, n_test=40)
    >>> task.logits_cal.shape, task.true_test.shape
    ((50, 3), (40, 3))
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; valid kinds: {', '.join(KINDS)}")
    if n_classes < 2 or n_cal < 1 or n_test < 1:
        raise ValueError(
            f"need n_classes >= 2 and rows in both parts, got {n_classes}, {n_cal}, {n_test}"
        )
    rng = np.random.default_rng([random_state, n_classes, KINDS.index(kind)])
    prior_cal, prior_test = _priors(kind, n_classes, strength)
    bias = (
        rng.normal(size=n_classes) * 1.5 * strength if kind == "class_bias" else np.zeros(n_classes)
    )
    cal, y_cal = _draw(n_cal, prior_cal, rng)
    test, y_test = _draw(n_test, prior_test, rng)
    return SyntheticTask(
        _distort(kind, cal + np.log(prior_cal), bias, strength),
        y_cal,
        _posterior(cal, prior_cal),
        _distort(kind, test + np.log(prior_cal), bias, strength),
        y_test,
        _posterior(test, prior_test),
    )


def _posterior(likelihood: Float64, prior: Float64) -> Float64:
    return softmax(likelihood + np.log(prior)).astype(np.float64, copy=False)


def _priors(kind: Distortion, k: int, strength: float) -> tuple[Float64, Float64]:
    """Return the class priors of the calibration and the test part."""
    flat: Float64 = np.full(k, 1.0 / k)
    weights = np.arange(1, k + 1, dtype=np.float64) ** -strength
    tail: Float64 = np.asarray(weights / weights.sum(), dtype=np.float64)
    if kind == "label_shift":
        return tail, flat
    return (tail, tail) if kind == "long_tail" else (flat, flat)


def _draw(n: int, prior: Float64, rng: np.random.Generator) -> tuple[Float64, IntArray]:
    """Return log-likelihood logits s·x (N, K), without the prior, and labels (N,)."""
    k = len(prior)
    # Separation grows with K so that accuracy stays between about 0.75 and 0.85.
    separation = 0.2 + np.sqrt(2 * np.log(k))
    y = rng.choice(k, size=n, p=prior).astype(np.int64)
    x = rng.normal(size=(n, k))
    x[np.arange(n), y] += separation
    return separation * x, y


def _distort(kind: Distortion, logits: Float64, bias: Float64, strength: float) -> Float64:
    """Return what the classifier shows, given the right logits (N, K)."""
    if kind in ("temperature", "long_tail"):
        return logits * (1 + 1.2 * strength)
    if kind == "class_bias":
        return logits + bias
    if kind == "non_monotone":
        top = softmax(logits).max(axis=1, keepdims=True)
        bump = np.exp(-0.5 * ((top - 0.65) / 0.12) ** 2)
        return np.asarray(logits * (1 + 5 * strength * bump))
    return logits


def parse_synthetic(text: str) -> SyntheticTask:
    """Build a task from its name: ``KIND``, then any of ``-kK``, ``-nN``, ``-sSEED``.

    >>> parse_synthetic("class_bias-k5-n100-s3").logits_test.shape
    (100, 5)
    """
    kind, *options = text.split("-")
    keys = {"k": "n_classes", "n": "n_cal", "s": "random_state"}
    try:
        numbers = {keys[o[0]]: int(o[1:]) for o in options}
    except (KeyError, ValueError, IndexError):
        raise ValueError(
            f"cannot read synthetic task {text!r}; write for example temperature-k10-n3000-s0"
        ) from None
    if "n_cal" in numbers:
        numbers["n_test"] = numbers["n_cal"]
    return make_synthetic(kind, **numbers)  # type: ignore[arg-type]
