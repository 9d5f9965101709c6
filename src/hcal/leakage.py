"""Which rows a calibrator was fitted on, and how many of other rows are among them.

A calibrator looks better on its own rows than on new ones, so certificates refuse them and evaluations say
so. Outputs cannot tell (a step function has few values), so the *inputs* are compared. A fingerprint keeps
four numbers of each row: two projections of its log-scores and two of the square roots of its probabilities.
They change by no more than rounding between float32, float64 and six printed digits, and a constant added to
a row does not change them at all. The fingerprint travels with the calibrator and in its file.

Scores with few distinct values (forests, rounded scores) repeat by chance. How often is estimated from the
fitted rows among themselves, and only what exceeds it counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from hcal import inputs

#: From this share of the judged rows on, a certificate is refused.
REFUSED_FROM: Final = 0.05
#: Rows that a fingerprint keeps (512 KB); of more rows, those in randomly chosen stripes of the scores.
KEPT_ROWS: Final = 2**15
_STRIPE: Final = 0.01
_LOWEST: Final = -30.0  # log-scores below this are equal: float32 knows no smaller probabilities than 1e-45
#: Widths of the cells in which two rows count as equal: from float64 to six printed digits.
_WIDTHS: Final = ((3e-6, 3e-5, 3e-4, 3e-3), (1e-6, 1e-5, 1e-4, 2e-3, 1e-2))
_CHANCE: Final = 1e-4  # probability with which fresh rows may look like fitted ones, for each width
_SPARSE: Final = 0.02  # of rows that repeat others: below it coincidences come in single pairs
_GOLDEN: Final = np.pi * (3 - np.sqrt(5))  # an angle whose multiples never repeat

Fingerprint = dict[str, NDArray[Any]]
Matrix = NDArray[np.float64]
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Overlap:
    """How many of some rows a calibrator was fitted on.

    Attributes
    ----------
    share : float
        Estimated share of the judged rows that were fitted on, beyond chance.
    expected : float
        Share of fresh rows that would coincide with a fitted row by chance.
    n : int
        Judged rows.
    refused : bool
        Whether the share is 5 % or more: such rows prove nothing about the calibrator.
    sentence : str
        What was found; empty where nothing was.
    """

    share: float
    expected: float
    n: int
    refused: bool
    sentence: str


class RowsOfTheFitError(ValueError):
    """A certificate was asked for on rows that the calibrator was fitted on."""


def fingerprint(x: NDArray[Any]) -> Fingerprint:
    """Return the fingerprint of rows of logits.

    Parameters
    ----------
    x : array of shape (N, K)
        Logits or log-probabilities; −inf is allowed.

    Returns
    -------
    dict of arrays
        ``rows`` (int64, shape ()), the number of rows N; ``kept_below`` (float64, shape ()), in 0..1: rows
        whose stripe has a smaller hash were kept, 1 for all; ``projections`` (float32, shape (M, 4)).

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 3))
    >>> overlap(fingerprint(x), x[:50].astype(np.float32) + 1).share
    1.0
    """
    rows, classes = x.shape
    angle = _GOLDEN * np.arange(classes)
    weights = np.stack([np.cos(angle), np.sin(angle + 1)], axis=1)
    logs, step = np.empty((rows, 2)), max(1, 2**21 // classes)
    for start in range(0, rows, step):
        logs[start : start + step] = _log_scores(x[start : start + step]) @ weights
    logs *= np.sqrt(2 / classes)
    kept, below = _choose(_stripes(logs[:, 0]))
    roots = np.empty((len(kept), 2))
    for start in range(0, len(kept), step):
        p = np.exp(_log_scores(x[kept[start : start + step]]))
        roots[start : start + step] = np.sqrt(p / p.sum(axis=1, keepdims=True)) @ weights
    projections = np.concatenate([logs[kept], roots], axis=1).astype(np.float32)
    return {"rows": np.array(rows), "kept_below": np.array(below), "projections": projections}


def merge_fingerprints(one: Fingerprint | None, other: Fingerprint | None) -> Fingerprint | None:
    """Return the fingerprint of two sets of rows together; None is that of no rows.

    >>> x = np.random.default_rng(0).normal(size=(100, 3))
    >>> both = merge_fingerprints(fingerprint(x[:30]), fingerprint(x[30:]))
    >>> all(np.array_equal(both[name], array) for name, array in fingerprint(x).items())
    True
    """
    if one is None or other is None:
        return other if one is None else one
    limit = min(float(one["kept_below"]), float(other["kept_below"]))
    projections = np.concatenate([one["projections"], other["projections"]])
    stripes = _stripes(projections[:, 0])
    projections, stripes = projections[stripes < limit], stripes[stripes < limit]
    kept, below = _choose(stripes)
    return {
        "rows": one["rows"] + other["rows"],
        "kept_below": np.array(min(below, limit)),
        "projections": projections[kept],
    }


def check_fingerprint(stored: Mapping[str, Any]) -> Fingerprint:
    """Return the fingerprint of a file as a dictionary of arrays, or raise ValueError with what is wrong.

    >>> check_fingerprint({"rows": np.array(2), "kept_below": np.array(2.0)})
    Traceback (most recent call last):
    ...
    ValueError: the fingerprint of the fitted rows must hold kept_below, projections, rows
    """
    what = "the fingerprint of the fitted rows"
    if sorted(stored) != ["kept_below", "projections", "rows"]:
        raise ValueError(f"{what} must hold kept_below, projections, rows")
    rows, below, projections = (np.asarray(stored[name]) for name in ("rows", "kept_below", "projections"))
    if rows.shape or rows.dtype.kind not in "iu" or rows < 1:
        raise ValueError(f"{what}: rows must be one positive integer")
    if below.shape or below.dtype.kind != "f" or not 0 <= below <= 1:
        raise ValueError(f"{what}: kept_below must be one number in 0..1")
    if projections.ndim != 2 or projections.shape[1] != 4 or projections.dtype != np.float32:
        raise ValueError(f"{what}: projections must be float32 of shape (M, 4)")
    if len(projections) > min(int(rows), KEPT_ROWS) or not np.isfinite(projections).all():
        raise ValueError(f"{what}: projections must be finite and of {KEPT_ROWS} rows at most")
    return {"rows": rows, "kept_below": below, "projections": projections}


def overlap(fitted: Fingerprint, judged: NDArray[Any] | Fingerprint) -> Overlap:
    """Return how many of the judged rows are among the fitted ones, beyond what chance would give.

    Parameters
    ----------
    fitted : dict of arrays
        Of :func:`fingerprint`.
    judged : array of shape (N, K), or dict of arrays
        Logits, or their fingerprint.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(2000, 3))
    >>> overlap(fingerprint(x[:1000]), x[500:1500]).sentence
    'About 50 % of the 1,000 rows were used to fit the calibrator.'
    >>> overlap(fingerprint(x[:1000]), x[1000:]).sentence
    ''
    """
    other = judged if isinstance(judged, dict) else fingerprint(judged)
    n = int(other["rows"])
    limit = min(float(fitted["kept_below"]), float(other["kept_below"]))
    mine, theirs = (f["projections"][_stripes(f["projections"][:, 0]) < limit] for f in (fitted, other))
    share, expected = 0.0, 0.0
    if len(mine) and len(theirs):
        ratio = max(1.0, int(fitted["rows"]) / n)
        tested = [
            _excess(mine[:, i : i + 2], theirs[:, i : i + 2], width, ratio)
            for i, widths in zip((0, 2), _WIDTHS, strict=True)
            for width in widths
        ]
        _, share, expected = max(tested, key=lambda t: (t[0], -t[2]))
        if int(fitted["rows"]) == n and _is_same_set(mine, theirs):
            share = 1.0
    sentence = f"About {share:.0%} of the {n:,} rows were used to fit the calibrator.".replace("%", " %")
    return Overlap(share, expected, n, share >= REFUSED_FROM, sentence if share else "")


def fit_overlap(calibrator: Any, scores: Any) -> Overlap | None:
    """Return how many of these rows a calibrator was fitted on; None where it does not know its rows.

    Examples
    --------
    >>> import hcal
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(50, 3))
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> fit_overlap(hcal.make_calibrator("ts").fit(z, y), z).share
    1.0
    """
    fitted = getattr(calibrator, "fitted_on_", None)
    if fitted is None:
        return None
    own = getattr(calibrator, "rows", None)  # questions with different numbers of options have their own
    if own is not None:
        return overlap(fitted, np.asarray(own(scores)))
    return overlap(fitted, inputs.check_logits(scores, input=calibrator.input, n_classes=calibrator.n_classes_)[0])


def coincidence(fitted: Fingerprint | NDArray[Any], judged: NDArray[Any] | Fingerprint) -> str:
    """Return a warning where calibration rows are among the rows of an evaluation, or nothing.

    Parameters
    ----------
    fitted, judged : array of logits of shape (N, K), or dict of arrays
        The rows, or their fingerprints.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> coincidence(x, x)
    'About 100 % of the 50 rows were used to fit the calibrator: its errors look smaller than on new rows.'
    """
    found = overlap(fitted if isinstance(fitted, dict) else fingerprint(fitted), judged)
    return f"{found.sentence[:-1]}: its errors look smaller than on new rows." if found.sentence else ""


def model_fingerprint(calibrator: Any) -> str:
    """Return 16 hexadecimal digits that name a fitted calibrator by what it computes.

    Files of probabilities carry it, so that a certificate of them can ask for the model.

    >>> from hcal import make_calibrator
    >>> x, y = [[0.0, 2.0]] * 4, [1, 1, 1, 0]
    >>> one, other = (make_calibrator(name).fit(x, y) for name in ("ts", "ts"))
    >>> model_fingerprint(one) == model_fingerprint(other)
    True
    """
    digest = hashlib.sha256(f"{type(calibrator).__name__} {getattr(calibrator, 'input', '')}".encode())
    _digest(calibrator.prediction_, digest)
    return digest.hexdigest()[:16]


def _digest(value: Any, digest: Any) -> None:
    """Add a map's fields, nested in any way, to a hash."""
    if is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__name__.encode())
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        value = [part for name in sorted(value, key=str) for part in (str(name), value[name])]
    if isinstance(value, list | tuple):
        for part in value:
            _digest(part, digest)
    elif isinstance(value, np.ndarray | np.number | float):
        array = np.asarray(value, dtype=np.float64)
        digest.update(repr(array.shape).encode() + np.ascontiguousarray(array, dtype="<f8").tobytes())
    else:
        digest.update(str(value).encode())


# -- how rows are compared ------------------------------------------------------------------------


def _log_scores(x: NDArray[Any]) -> Matrix:
    x = np.asarray(x, dtype=np.float64)
    return np.asarray(np.maximum(x - x.max(axis=1, keepdims=True), _LOWEST))


def _stripes(u: NDArray[Any]) -> Matrix:
    """Return a hash in 0..1 of the stripe in which a projection (N,) lies; rounding rarely changes it."""
    cell = np.floor(u.astype(np.float32) / np.float32(_STRIPE)).astype(np.int64).view(np.uint64)
    cell = (cell ^ (cell >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finaliser
    cell = (cell ^ (cell >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((cell >> np.uint64(11)).astype(np.float64) / 2.0**53)


def _choose(stripes: Matrix) -> tuple[NDArray[np.intp], float]:
    """Return the rows that are kept, in order, and the hash below which stripes were."""
    if len(stripes) <= KEPT_ROWS:
        return np.arange(len(stripes)), 1.0
    hashes, counts = np.unique(stripes, return_counts=True)
    whole = max(1, int(np.searchsorted(np.cumsum(counts), KEPT_ROWS, side="right")))
    below = float(hashes[whole]) if whole < len(hashes) else 1.0
    kept = np.flatnonzero(stripes < below)
    return kept[:: -(-len(kept) // KEPT_ROWS)], below  # one stripe alone may hold too many


def _keys(uv: NDArray[np.float32], width: float) -> list[Keys]:
    """Return the cells of rows (N, 2) on three staggered grids.

    Two rows less than a third of a cell apart share a cell of at least one grid: each coordinate can have an
    edge between them in one grid only.
    """
    found = []
    for shift in (0.0, 1 / 3, 2 / 3):
        cell = np.floor(uv.astype(np.float64) / width + shift).astype(np.int64).view(np.uint64)
        found.append(cell[:, 0] * np.uint64(0x9E3779B97F4A7C15) + cell[:, 1] * np.uint64(0xC2B2AE3D27D4EB4F))
    return found


def _repeats(keys: list[Keys]) -> NDArray[np.bool_]:
    """Return for each row whether another one of the same set shares a cell."""
    repeated = np.zeros(len(keys[0]), dtype=bool)
    for key in keys:
        _, place, counts = np.unique(key, return_inverse=True, return_counts=True)
        repeated |= counts[place] > 1
    return repeated


def _excess(
    mine: NDArray[np.float32], theirs: NDArray[np.float32], width: float, ratio: float
) -> tuple[float, float, float]:
    """Return the share of judged rows that were fitted on, at least and estimated, and what chance gives.

    Chance is how often fitted rows coincide with other fitted rows. Where the fitted rows were copied, the
    judged rows among themselves bound it: a set ``ratio`` times as large is met at most that many times as
    often. The first number is a lower bound of the share, by which the best width is chosen.
    """
    fitted, judged = _keys(mine, width), _keys(theirs, width)
    hits = np.zeros(len(theirs), dtype=bool)
    for a, b in zip(fitted, judged, strict=True):
        hits |= np.isin(b, a)
    matched = int(hits.sum())
    chance, upper = _rate(int(_repeats(fitted).sum()), len(mine))
    among, among_upper = _rate(int(_repeats(judged).sum()), len(theirs))
    if ratio * among_upper < upper:
        chance, upper = min(chance, ratio * among), ratio * among_upper
    likely = special.bdtrc(matched - 1, len(theirs), upper) if matched else 1.0
    if matched and max(chance, among) < _SPARSE:
        # Coincidences of fresh rows are as likely between the sets as within them, by the number of pairs.
        n, m = len(mine), len(theirs)
        pairs = matched + int(chance * n + among * m) // 2
        between = n * m / (n * m + n * (n - 1) / 2 + m * (m - 1) / 2)
        likely = min(likely, special.bdtrc(matched - 1, pairs, between))
    if likely > _CHANCE or upper >= 1:
        return 0.0, 0.0, chance
    rate = matched / len(theirs)
    return max((rate - upper) / (1 - upper), 1e-9), (rate - chance) / (1 - chance), chance


def _rate(count: int, n: int) -> tuple[float, float]:
    """Return a share and an upper bound of it; repeats come in pairs, which halves the rows."""
    return count / n, float(special.betaincinv(count / 2 + 1, max(n - count, 0) / 2 + 1e-9, 1 - _CHANCE))


def _is_same_set(mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> bool:
    """Return whether two sets hold the same rows in any order, where chance would not make them equal."""
    if len(mine) != len(theirs):
        return False
    apart = np.abs(np.sort(mine, axis=0) - np.sort(theirs, axis=0)).max(axis=0)
    if (apart[:2] > _WIDTHS[0][2]).any() and (apart[2:] > _WIDTHS[1][2]).any():
        return False
    counts = np.sort(np.unique(_keys(mine[:, 2:], _WIDTHS[1][2])[0], return_counts=True)[1])
    # Two fresh samples have the same count of a value with probability of about 1/√(4πm); the last follows.
    return bool(0.5 * np.log(4 * np.pi * counts[:-1]).sum() > -np.log(_CHANCE))
