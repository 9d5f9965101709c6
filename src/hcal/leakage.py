"""Recognise the rows that a calibrator was fitted on when they are used again to evaluate it.

A calibrator looks better on its own rows than on new ones, so certificates refuse such rows and evaluations warn
about them. Calibrated probabilities are no help in finding them (a step function has few values), so the *inputs* are
compared. A fingerprint keeps four numbers of each row: two projections of its log-scores and two of the square roots of
its probabilities. They differ only by rounding between float32, float64 and six printed digits, and a constant added
to a row does not change them. The fingerprint is stored in the calibrator and in its file.

Scores with few distinct values (forests, rounded scores) coincide by chance. The rate of such coincidences is
estimated within the fitted rows, and only what exceeds it counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from hcal.frames import AnyArray
from hcal.numerics import Float64, NumpyArray, row_blocks, softmax
from hcal.text import JsonObject

#: A certificate is refused if at least this share of its rows was used in the fit.
REFUSED_FROM: Final = 0.05
#: The most rows that a fingerprint keeps (512 KB); of larger sets it keeps the rows in randomly chosen stripes.
KEPT_ROWS: Final = 2**15
_STRIPE: Final = 0.01
_LOWEST: Final = -30.0  # log-scores below this count as equal to it
#: Distances up to which two rows count as equal: from rounding in float64 to that of six printed digits.
_DISTANCES: Final = (1e-6, 1e-5, 1e-4, 1e-3, 5e-3)
_CHANCE: Final = 1e-4  # for each distance, the probability of taking new rows for fitted ones
#: If fewer rows than this share coincide with others, they do so in single pairs.
_SPARSE: Final = 0.02
_GOLDEN: Final = np.pi * (3 - np.sqrt(5))  # an angle whose multiples never repeat

Fingerprint = dict[str, NumpyArray]


@dataclass(frozen=True)
class Overlap:
    """The share of some rows that a calibrator was fitted on.

    Attributes
    ----------
    share : float
        Estimated share of the rows that were used in the fit, chance coincidences left out.
    sentence : str
        The finding in words; empty if the share is 0.
    """

    share: float
    sentence: str

    @property
    def refused(self) -> bool:
        """Whether the share is 5 % or more, too much for a certificate."""
        return self.share >= REFUSED_FROM


class RowsOfTheFitError(ValueError):
    """A certificate was asked for on rows that the calibrator was fitted on.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> probs = rng.dirichlet([1, 1, 1], 200)
    >>> y = (probs.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
    >>> import hcal
    >>> cal = hcal.TemperatureScaling().fit(np.log(probs), y)
    >>> try:
    ...     hcal.certify(cal, np.log(probs), y)
    ... except RowsOfTheFitError as error:
    ...     print(str(error)[:14])
    no certificate
    """


def fingerprint(x: NumpyArray) -> Fingerprint:
    """Return the fingerprint of rows of logits.

    Parameters
    ----------
    x : array of shape (N, K)
        Logits or log-probabilities; −inf is allowed.

    Returns
    -------
    dict of arrays
        ``rows`` (int64, shape ()): the number of rows N. ``kept_below`` (float64, shape ()): rows whose stripe has a
        hash below it were kept; 1 means all. ``projections`` (float32, shape (M, 4)): the kept rows.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 3))
    >>> overlap(fingerprint(x), x[:50].astype(np.float32) + 1).share
    1.0
    """
    logs = _projected(x, np.arange(len(x)), lambda z: z * np.sqrt(2 / x.shape[1]))
    kept, below = _choose(_stripes(logs[:, 0]))
    roots = _projected(x, kept, lambda z: np.sqrt(softmax(z)))
    projections = np.concatenate([logs[kept], roots], axis=1).astype(np.float32)
    return {"rows": np.array(len(x)), "kept_below": np.array(below), "projections": projections}


def merge_fingerprints(one: Fingerprint | None, other: Fingerprint | None) -> Fingerprint | None:
    """Return the fingerprint of the union of two sets of rows; None stands for no rows.

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
    in_both = stripes < limit
    projections = projections[in_both]
    kept, below = _choose(stripes[in_both])
    return {
        "rows": one["rows"] + other["rows"],
        "kept_below": np.array(min(below, limit)),
        "projections": projections[kept],
    }


def check_fingerprint(stored: Mapping[str, object]) -> None:
    """Raise a ValueError if arrays from a file are not a valid fingerprint.

    >>> check_fingerprint({"rows": np.array(2), "kept_below": np.array(2.0)})
    Traceback (most recent call last):
    ...
    ValueError: the fingerprint of the fitted rows must hold rows, a positive integer; kept_below, from 0 to 1; ...
    """
    if not _is_fingerprint(stored):
        raise ValueError(
            "the fingerprint of the fitted rows must hold rows, a positive integer; kept_below, "
            f"from 0 to 1; and projections, at most {KEPT_ROWS} rows of 4 finite float32 numbers"
        )


def _is_fingerprint(stored: Mapping[str, object]) -> bool:
    rows = np.asarray(stored.get("rows"))
    if rows.shape != () or rows.dtype.kind not in "iu" or not rows >= 1:
        return False
    below = np.asarray(stored.get("kept_below"))
    if below.shape != () or below.dtype.kind != "f" or not 0 <= below <= 1:
        return False
    projections = np.asarray(stored.get("projections"))
    if projections.dtype != np.float32 or projections.shape[1:] != (4,):
        return False
    most_rows = min(int(rows), KEPT_ROWS)
    is_finite = bool(np.isfinite(projections).all())
    return len(stored) == 3 and len(projections) <= most_rows and is_finite


def overlap(fitted: Fingerprint, judged: NumpyArray | Fingerprint) -> Overlap:
    """Estimate how many of the judged rows are among the fitted ones, chance coincidences left out.

    Parameters
    ----------
    fitted : dict of arrays
        The result of :func:`fingerprint` for the rows of the fit.
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
    n_fitted = int(fitted["rows"])
    n_judged = int(other["rows"])
    limit = min(float(fitted["kept_below"]), float(other["kept_below"]))
    of_fit = _projections_below(limit, fitted)
    of_judged = _projections_below(limit, other)
    share = 0.0
    if len(of_fit) and len(of_judged):
        ratio = max(1.0, n_fitted / n_judged)
        by_log_scores = _excesses(of_fit[:, :2], of_judged[:, :2], ratio)
        by_roots = _excesses(of_fit[:, 2:], of_judged[:, 2:], ratio)
        _, share = max([*by_log_scores, *by_roots])
        if n_fitted == n_judged and _is_same_set(of_fit, of_judged):
            share = 1.0
    if not share:
        return Overlap(share, "")
    percent = f"{100 * share:.0f} %"
    sentence = f"About {percent} of the {n_judged:,} rows were used to fit the calibrator."
    return Overlap(share, sentence)


def _projections_below(limit: float, stored: Fingerprint) -> NDArray[np.float32]:
    """Return the projections of the rows whose stripes both fingerprints keep."""
    projections = stored["projections"]
    return projections[_stripes(projections[:, 0]) < limit]


def fit_overlap(calibrator: object, scores: AnyArray) -> Overlap | None:
    """Estimate how many of these rows a calibrator was fitted on; None if it has no fingerprint.

    Examples
    --------
    >>> import hcal
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(50, 3))
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> fit_overlap(hcal.make_calibrator("ts").fit(z, y), z).share
    1.0
    """
    record = getattr(calibrator, "fit_", None)
    if record is None:
        return None
    if hasattr(
        calibrator, "rows"
    ):  # a multiple-choice calibrator brings its questions to one width
        return overlap(record.fingerprint, np.asarray(calibrator.rows(scores)))
    assert hasattr(calibrator, "rows_like")
    return overlap(record.fingerprint, calibrator.rows_like(scores).logits())


def coincidence(fitted: NumpyArray, judged: NumpyArray) -> str:
    """Return a warning if calibration rows (logits, (N, K)) are among the rows of an evaluation, else an empty string.

    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> coincidence(x, x)
    'About 100 % of the 50 rows were used to fit the calibrator: its errors look smaller than on new rows.'
    """
    sentence = overlap(fingerprint(fitted), judged).sentence
    if not sentence:
        return ""
    return f"{sentence[:-1]}: its errors look smaller than on new rows."


class Formula(Protocol):
    """What a fitted calibrator computes: choices, and arrays of numbers."""

    def options(self) -> JsonObject:
        """Return the choices by name."""

    def arrays(self) -> Mapping[str, NumpyArray]:
        """Return the arrays by name."""


class HasFormula(Protocol):
    """A fitted calibrator of rows."""

    @property
    def name(self) -> str:
        """The name of the method."""

    @property
    def prediction_(self) -> Formula:
        """What the calibrator computes."""


def model_fingerprint(calibrator: HasFormula) -> str:
    """Return 16 hexadecimal digits that identify a fitted calibrator by the function that it computes.

    Files of probabilities store it, so that ``hcal certify`` can ask for the model that made them.

    >>> from hcal import make_calibrator
    >>> x, y = [[0.0, 2.0]] * 4, [1, 1, 1, 0]
    >>> one, other = (make_calibrator(name).fit(x, y) for name in ("ts", "ts"))
    >>> model_fingerprint(one) == model_fingerprint(other)
    True
    """
    formula = calibrator.prediction_
    options = json.dumps([calibrator.name, formula.options()])
    digest = hashlib.sha256(options.encode())
    for name, array in sorted(formula.arrays().items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


# -- how rows are compared ------------------------------------------------------------------------


def _projected(
    x: NumpyArray, kept: NDArray[np.intp], function: Callable[[Float64], Float64]
) -> Float64:
    """Apply a function to the log-scores of the kept rows and return two projections (M, 2) of the result."""
    angle = _GOLDEN * np.arange(x.shape[1])
    weights = np.stack([np.cos(angle), np.sin(angle + 1)], axis=1)
    out = np.empty((len(kept), 2))
    for rows in row_blocks((len(kept), x.shape[1]), 2**18):
        block = x[kept[rows]].astype(np.float64)
        depth = block - block.max(axis=1, keepdims=True)
        out[rows] = function(np.maximum(depth, _LOWEST)) @ weights
    return out


def _stripes(u: NumpyArray) -> Float64:
    """Return a hash in 0..1 of the stripe that each projection (N,) falls into; rounding rarely changes the stripe."""
    stripe = np.floor(u.astype(np.float32) / np.float32(_STRIPE))
    number = stripe.astype(np.int64).view(np.uint64)
    # The last steps of splitmix64.
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((number >> np.uint64(11)).astype(np.float64) / 2.0**53)


def _choose(stripes: Float64) -> tuple[NDArray[np.intp], float]:
    """Return the indices of the rows to keep, ascending, and the hash below which stripes are kept."""
    if len(stripes) <= KEPT_ROWS:
        return np.arange(len(stripes)), 1.0
    hashes, counts = np.unique(stripes, return_counts=True)
    n_stripes = max(1, int(np.searchsorted(np.cumsum(counts), KEPT_ROWS, side="right")))
    below = float(hashes[n_stripes]) if n_stripes < len(hashes) else 1.0
    kept = np.flatnonzero(stripes < below)
    step = -(-len(kept) // KEPT_ROWS)  # one stripe alone may hold too many
    return kept[::step], below


class _Neighbours:
    """Rows (N, 2) in which the nearest to another row is looked up."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        from scipy.spatial import cKDTree

        values, place, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        self.tree = cKDTree(values)
        self.place = place
        # The distance is infinite if there is only one value.
        distances, _ = self.tree.query(values, k=2, p=np.inf)
        gaps = np.asarray(distances)[:, 1]
        self.gaps = np.where(counts > 1, 0.0, gaps)

    def gaps_to_others(self) -> Float64:
        """Return for each row the distance to the nearest other row."""
        return self.gaps[self.place]

    def nearest(self, rows: NDArray[np.float32]) -> tuple[Float64, Float64]:
        """Return the distance of each row to the nearest one here, and the distance of that one to its nearest."""
        distance, index = self.tree.query(rows, p=np.inf)
        return np.asarray(distance), self.gaps[index]


def _excesses(
    of_fit: NDArray[np.float32], of_judged: NDArray[np.float32], ratio: float
) -> list[tuple[float, float]]:
    """Return for each distance in ``_DISTANCES`` a lower bound and an estimate of the share of judged rows in the fit.

    The rate of chance coincidences is that of fitted rows with other fitted rows. Judged rows may come from a part of
    the scores that is denser (questions of two options, where the fit had also some of four), so it is also that of the
    fitted rows near them, and of different judged rows with each other. If the fitted set holds copies, that rate is
    too high; then coincidences among the judged rows bound it, times ``ratio`` for a fitted set that is so much larger.
    The caller takes the estimate with the largest lower bound.
    """
    fitted = _Neighbours(of_fit)
    to_fitted, around_nearest = fitted.nearest(of_judged)
    gaps = _Gaps(
        to_fitted=to_fitted,
        around_nearest=around_nearest,
        within_fit=fitted.gaps_to_others(),
        within_judged=_Neighbours(of_judged).gaps_to_others(),
        of_different=_Neighbours(np.unique(of_judged, axis=0)).gaps_to_others(),
    )
    return [_excess(gaps, distance, ratio) for distance in _DISTANCES]


@dataclass(frozen=True)
class _Gaps:
    """Distances of n fitted and m judged rows to the nearest one."""

    to_fitted: Float64  # (m,) of judged rows to fitted ones
    around_nearest: Float64  # (m,) of these fitted ones to other fitted rows
    within_fit: Float64  # (n,)
    within_judged: Float64  # (m,)
    of_different: Float64  # of judged rows that differ, to each other


def _excess(gaps: _Gaps, distance: float, ratio: float) -> tuple[float, float]:
    """Return a lower bound and an estimate of the share of fitted rows by those that lie within a distance of one."""
    n = len(gaps.within_fit)
    m = len(gaps.to_fitted)
    matched = int((gaps.to_fitted <= distance).sum())
    among_different = min(1.0, ratio * float((gaps.of_different <= distance).mean()))
    among_fitted = (gaps.within_fit <= distance).mean()
    near_judged = (gaps.around_nearest <= distance).mean()
    chance, upper = _rate(max(among_fitted, near_judged, among_different), n)
    among_judged, upper_judged = _rate((gaps.within_judged <= distance).mean(), m)
    if ratio * upper_judged < upper:
        chance = min(chance, ratio * among_judged)
        upper = ratio * upper_judged

    p_value = special.bdtrc(matched - 1, m, upper) if matched else 1.0
    if matched and max(chance, among_judged) < _SPARSE:
        # If all rows are new, a coincidence falls between the sets with the share of pairs from both.
        between = n * m / (n * m + n * (n - 1) / 2 + m * (m - 1) / 2)
        pairs = matched + int(chance * n + among_judged * m) // 2
        p_value = min(p_value, special.bdtrc(matched - 1, pairs, between))
    if p_value > _CHANCE or upper >= 1:
        return 0.0, 0.0
    lower = max((matched / m - upper) / (1 - upper), 1e-9)
    return lower, (matched / m - chance) / (1 - chance)


def _rate(share: float, n: int) -> tuple[float, float]:
    """Return a share of n rows and an upper confidence bound for it; repeats come in pairs, so half of them count."""
    pairs = share * n / 2
    misses = (1 - share) * n / 2
    return float(share), float(special.betaincinv(pairs + 1, misses + 1e-9, 1 - _CHANCE))


def _is_same_set(mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> bool:
    """Return whether two sets hold the same rows in any order, and equality by chance is improbable."""
    if len(mine) != len(theirs):
        return False
    apart = np.abs(np.sort(mine, axis=0) - np.sort(theirs, axis=0)).max(axis=0)
    if apart[:2].max() > 3e-4 and apart[2:].max() > 1e-4:
        return False
    cells = np.floor(mine[:, 2:] / 1e-4)
    _, counts = np.unique(cells, axis=0, return_counts=True)
    counts = np.sort(counts)
    # Two new samples have the same count m of a value with a probability of about 1/√(4πm); the last count follows.
    log_chance = -0.5 * np.log(4 * np.pi * counts[:-1]).sum()
    return bool(log_chance < np.log(_CHANCE))
