"""Whether rows to judge by are rows to learn from: one rule for evaluate, compare, report, commands."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hcal import inputs
from hcal.calibrators.calibration_rows import checked_rows

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator

#: Rows in common that chance does not explain: this many standard errors more than it would bring.
BEYOND_CHANCE: Final = 3.0


def coinciding_rows(calibration: Any, test: Any) -> float:
    """Return the share of test rows that are equal to some calibration row.

    Rows that occur more than once in the calibration set do not count: saturated predictions repeat.

    Parameters
    ----------
    calibration : array-like of shape (M, K)
    test : array-like of shape (N, K)

    Examples
    --------
    >>> coinciding_rows([[0.1, 0.9], [0.3, 0.7]], [[0.3, 0.7], [0.5, 0.5]])
    0.5
    """
    matches, _ = _matches(calibration, test)
    return sum(matches.values()) / max(len(test), 1)


def coincidence(calibration: Any, test: Any) -> str:
    """Say in words that test rows are calibration rows, or return nothing.

    Scores with few distinct values coincide by chance, about as often as calibration rows come in pairs
    (Good and Turing's estimate); only rows beyond that, by three standard errors, are spoken of. For scores
    that never repeat these are three rows.

    Parameters
    ----------
    calibration : array-like of shape (M, K)
    test : array-like of shape (N, K)

    Examples
    --------
    >>> z = np.random.default_rng(0).normal(size=(50, 3))
    >>> coincidence(z, z[:4])
    '4 of 4 test rows also stand in the calibration set: their errors look smaller than they are on new data'
    >>> coincidence(z, z[:4] + 1)
    ''
    """
    matches, twice = _matches(calibration, test)
    found, per_row = sum(matches.values()), len(test) / max(len(calibration), 1)
    expected = 2 * twice * per_row
    # A value of a coarse score is met several times over, so what chance brings comes in clusters.
    cluster = sum(n * n for n in matches.values()) / max(found, 1)
    variance = expected * cluster + (2 * per_row) ** 2 * twice
    if found < expected + BEYOND_CHANCE * sqrt(max(variance, 1.0)):
        return ""
    return (
        f"{found} of {len(test)} test rows also stand in the calibration set: "
        "their errors look smaller than they are on new data"
    )


def _matches(calibration: Any, test: Any) -> tuple[Counter[bytes], int]:
    """Return the test rows by the single calibration row they equal, and how many of those come in pairs."""
    a, b = inputs.to_numpy(calibration, "calibration")[0], inputs.to_numpy(test, "probs")[0]
    if a.ndim != b.ndim or a.shape[1:] != b.shape[1:]:
        return Counter(), 0
    dtype = np.result_type(a, b)
    seen = Counter(row.tobytes() for row in np.ascontiguousarray(a, dtype=dtype))
    keys = (row.tobytes() for row in np.ascontiguousarray(b, dtype=dtype))
    return Counter(key for key in keys if seen.get(key) == 1), sum(n == 2 for n in seen.values())


def learned_from(calibrator: Calibrator | None, scores: Any) -> list[str]:
    """Return a note where these are the very rows that a calibrator learned from, in any order.

    Parameters
    ----------
    calibrator : Calibrator or None
        Fitted in this version: older files do not say.
    scores : array-like of shape (N, K)
        As for the calibrator's ``predict_proba``.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> learned_from(cal, [[0.0, 2.0]] * 4)
    ['these are the rows that the calibrator learned from: judge it on others']
    """
    from hcal.io.provenance import fingerprint

    fitted_on = {} if calibrator is None else calibrator.info_.get("fitted_on", {})
    if calibrator is None or "rows_sha256" not in fitted_on:
        return []
    logits = checked_rows(calibrator, scores)
    same = fitted_on["rows_sha256"] == fingerprint(logits)["rows_sha256"]
    return ["these are the rows that the calibrator learned from: judge it on others"] if same else []
