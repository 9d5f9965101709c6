"""What a calibrator remembers of the rows that it learned from, so that nobody is judged on them unawares.

A sketch of bounded size, kept in ``info_`` and in the model file: the smallest 64-bit hashes of the rows'
scores, the hashes of what the calibrator makes of the same rows, and one sum over all rows. It holds no score
and no label. Rows that occur more than once (saturated or discrete scores) identify nothing and are left out.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.data.provenance import mix, row_hashes
from hcal.runtime.numerics import FloatArray, IntArray

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator

#: Rows remembered: 4 KB of hashes of scores and as many of outputs.
KEPT = 512
KEY = "calibration_rows"
_FEWEST = 20  # fewer rows than this coincide by chance
_fitted: WeakSet[Any] = WeakSet()
_lock = threading.Lock()
Hashes = NDArray[np.uint64]


def hash_rows(x: FloatArray) -> Hashes:
    """Return a 64-bit hash of every row, from its values in float32: one unit in the last place is no news.

    Shapes: x (N, K) → (N,) in uint64.

    Examples
    --------
    >>> a = hash_rows(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> bool(a[0] == a[2]), bool(a[0] == a[1])
    (True, False)
    """
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and hashed as such
        return row_hashes(np.asarray(x, dtype=np.float32))


def _centred(x: FloatArray) -> FloatArray:
    """Logits up to the constant of each row, which means nothing."""
    with np.errstate(over="ignore"):
        return np.asarray(x - x.max(axis=1, keepdims=True))


def checked_rows(calibrator: Calibrator, scores: Any) -> FloatArray:
    """Return scores as the sketch of a calibrator sees them.

    Parameters
    ----------
    calibrator : Calibrator
        One for questions with different numbers of options has rows of its own.
    scores : array-like of shape (N, K)

    Returns
    -------
    array of shape (N, K)
    """
    own = getattr(calibrator, "rows", None)
    if own is not None:
        return np.asarray(own(scores))
    return inputs.check_logits(scores, input=calibrator.input, n_classes=calibrator.n_classes_)[0]


def sketch(x: FloatArray, y: IntArray) -> tuple[dict[str, Any], NDArray[np.intp]]:
    """Return the sketch of rows without what becomes of them, and the rows that it keeps.

    Parameters
    ----------
    x : array of shape (N, K)
    y : array of shape (N,)

    Returns
    -------
    dict, array of int
    """
    hashes = hash_rows(_centred(x))
    _, first, times = np.unique(hashes, return_index=True, return_counts=True)
    single = first[times == 1][:KEPT]  # np.unique sorts: these are the smallest hashes
    found = {
        "n": len(x),
        "scores": _packed(hashes[single]),
        "unique": float((times == 1).sum() / len(x)),
        "outputs": _packed(np.empty(0, dtype=np.uint64)),
        "unique_outputs": 0.0,
        "all": str(_digest(hashes, y)),
    }
    return found, single


def remember(calibrator: Calibrator, x: FloatArray, y: IntArray) -> None:
    """Add the sketch of the calibration rows to a calibrator that has just learned from them.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted.
    x : array of shape (N, K)
        Its checked logits.
    y : array of shape (N,)
    """
    found, single = sketch(x, y)
    outputs = _outputs(calibrator, x, single)
    found["outputs"] = _packed(outputs)
    found["unique_outputs"] = found["unique"] * len(outputs) / max(len(single), 1)
    calibrator.info_ = calibrator.info_ | {KEY: found}
    with _lock:
        _fitted.add(calibrator)


def _outputs(calibrator: Calibrator, x: FloatArray, rows: NDArray[np.intp]) -> Hashes:
    if not len(rows):
        return np.empty(0, dtype=np.uint64)
    found, times = np.unique(hash_rows(_shown(calibrator._predict_blocks(x[rows]))), return_counts=True)
    return np.asarray(found[times == 1])


def _shown(probs: FloatArray) -> FloatArray:
    """What identifies an output: P(class 1) alone of two classes, given as one column or as two."""
    return probs[:, 1:] if probs.shape[1] == 2 else probs


def _digest(hashes: Hashes, y: IntArray) -> int:
    """One number for a whole set of labelled rows in any order."""
    with np.errstate(over="ignore"):
        return int(mix(hashes ^ mix(y.astype(np.uint64))).sum(dtype=np.uint64))


def _packed(hashes: Hashes) -> str:
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode("ascii")


def _unpacked(text: str) -> Hashes:
    return np.frombuffer(base64.b64decode(text), dtype="<u8").astype(np.uint64)


def share_seen(calibrator: Calibrator, scores: FloatArray, y: IntArray) -> float:
    """Return the share of a calibrator's calibration rows that are among these scores.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted or loaded; one of a version that remembered nothing has seen nothing.
    scores : array of shape (N, K)
        Checked logits.
    y : array of shape (N,)

    Returns
    -------
    float
        0 where no more rows coincide than discrete scores do by chance.

    Examples
    --------
    >>> import hcal
    >>> x, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 3
    >>> x[np.arange(100), y] += 1
    >>> cal = hcal.make_calibrator("ts").fit(x, y)
    >>> share_seen(cal, x[:50], y[:50]) > 0.3, share_seen(cal, x + 1e-3 * x**2, y)
    (True, 0.0)
    """
    kept = calibrator.info_.get(KEY)
    if kept is None:
        return 0.0
    hashes = hash_rows(_centred(scores))
    if len(hashes) == kept["n"] >= _FEWEST and str(_digest(hashes, y)) == kept["all"]:
        return 1.0
    return _share(hashes, kept["scores"], kept["unique"], kept["n"])


def shares_predicted(calibrators: Iterable[Calibrator], probs: FloatArray) -> dict[str, float]:
    """Return, by method, the shares of calibration rows whose calibrated probabilities are among these.

    Parameters
    ----------
    probs : array of shape (N, K)
        As ``predict_proba`` gave them.

    Returns
    -------
    dict
        Of those with such rows only.
    """
    judged = [
        c for c in calibrators if c.n_classes_ == probs.shape[1] and c.name != "uncal" and KEY in c.info_
    ]
    hashes = hash_rows(_shown(probs)) if judged else np.empty(0, dtype=np.uint64)
    shares = {c.name: _share_of_outputs(hashes, c.info_[KEY]) for c in judged}
    return {name: share for name, share in shares.items() if share}


def _share_of_outputs(hashes: Hashes, kept: dict[str, Any]) -> float:
    return _share(hashes, kept["outputs"], kept["unique_outputs"], kept["n"])


def _share(hashes: Hashes, packed: str, unique: float, n: int) -> float:
    remembered = _unpacked(packed)
    if len(remembered) < min(_FEWEST, n):
        return 0.0
    share = float(np.isin(remembered, hashes).mean())
    # Where rows of the calibration set repeat each other, fresh rows repeat them too.
    by_chance = 3 * (1 - unique) * max(1.0, len(hashes) / n)
    return share if share > max(0.05, by_chance) else 0.0


def fitted_here() -> list[Any]:
    """Return the calibrators that were fitted in this process and are still alive."""
    with _lock:
        alive = list(_fitted)
    return [c for c in alive if "state_" in vars(c)]
