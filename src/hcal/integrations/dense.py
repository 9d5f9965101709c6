"""Dense outputs (N, K, H, W), as of segmentation: every labelled pixel is a row.

``calibrator.fit(*rows(logits, y, ignore_index=255))`` learns, :func:`predict_proba` keeps the shape.
numpy arrays and torch tensors; any number of spatial axes. The class axis is 1, as in PyTorch.
"""

from __future__ import annotations

import numpy as np

from hcal.frames import AnyArray
from hcal.methods.base import Calibrator
from hcal.numerics import IntArray


def rows(
    logits: AnyArray,
    y: AnyArray,
    *,
    ignore_index: int | None = None,
    pixels: int | None = None,
    random_state: int = 0,
) -> tuple[AnyArray, AnyArray]:
    """Flatten dense outputs to rows, without the pixels that have no label.

    Parameters
    ----------
    logits : array or Tensor of shape (N, K, ...)
    y : array or Tensor of shape (N, ...) or (N, 1, ...)
    ignore_index : int, optional
        The label of pixels to leave out (often 255 or −100).
    pixels : int, optional
        Keep at most this many random labelled pixels of each of the N items; neighbouring pixels are similar.
    random_state : int

    Returns
    -------
    logits : array or Tensor of shape (M, K)
    y : array or Tensor of shape (M,)

    Examples
    --------
    >>> z, y = np.zeros((2, 3, 4, 4)), np.zeros((2, 4, 4), dtype=int)
    >>> y[0] = 255
    >>> [a.shape for a in rows(z, y, ignore_index=255)]
    [(16, 3), (16,)]
    """
    if y.ndim == logits.ndim > 1 and y.shape[1] == 1:  # masks (N, 1, H, W)
        y = y[:, 0]
    expected = (logits.shape[0], *logits.shape[2:])
    if tuple(y.shape) != expected:
        raise ValueError(
            f"scores of shape {tuple(logits.shape)} need labels of shape {expected}, got "
            f"{tuple(y.shape)}"
        )
    flat = logits if logits.ndim == 1 else _last(logits).reshape(-1, logits.shape[1])
    labels = y.reshape(-1)
    if ignore_index is None and pixels is None:
        return flat, labels
    kept = (
        np.ones(len(labels), bool) if ignore_index is None else np.asarray(labels != ignore_index)
    )
    index = np.flatnonzero(kept)
    if pixels is not None:
        index = _sample(index, len(labels) // max(len(logits), 1), pixels, random_state)
    return flat[index], labels[index]


def _last(x: AnyArray) -> AnyArray:
    """Return a view with the classes as its last axis."""
    return x.movedim(1, -1) if hasattr(x, "movedim") else np.moveaxis(x, 1, -1)


def _sample(index: IntArray, per_item: int, most: int, random_state: int) -> IntArray:
    """Keep at most ``most`` of the flat positions that belong to each item."""
    rng = np.random.default_rng(random_state)
    shuffled = rng.permutation(index)
    shuffled = shuffled[np.argsort(shuffled // per_item, kind="stable")]
    item = shuffled // per_item
    rank = np.arange(len(item)) - np.searchsorted(item, item)
    return np.sort(shuffled[rank < most])


def predict_proba(calibrator: Calibrator, logits: AnyArray) -> AnyArray:
    """Return calibrated probabilities of dense outputs, in their shape, library and float width.

    Parameters
    ----------
    calibrator : Calibrator
    logits : array or Tensor of shape (N, K, ...)

    Returns
    -------
    array or Tensor of shape (N, K, ...)

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("uncal").fit([[0.0, 1.0]], [1])
    >>> predict_proba(cal, np.zeros((1, 2, 5, 5))).shape
    (1, 2, 5, 5)
    """
    last = _last(logits)
    probs = calibrator.predict_proba(last.reshape(-1, logits.shape[1])).reshape(last.shape)
    return probs.movedim(-1, 1) if hasattr(probs, "movedim") else np.moveaxis(probs, -1, 1)
