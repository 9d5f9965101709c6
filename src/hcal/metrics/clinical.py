"""``hcal.clinical``: what clinical papers report about the predicted risk of one outcome.

Calibration-in-the-large, slope and intercept are logistic regressions on the log-odds of the prediction (Cox,
Biometrika 1958; Steyerberg, Clinical Prediction Models, 2019). ICI, E50, E90 and E_max (Austin, Steyerberg,
Statistics in Medicine 2019) are distances to a smooth calibration curve: a logistic regression on a
restricted cubic spline of the log-odds. Net benefit: Vickers, Elkin, Medical Decision Making 2006. Which of
these to report: Van Calster et al., BMC Medicine 2019.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from scipy.special import expit, logit, ndtri

from hcal.inputs import check_confidence
from hcal.metrics.sample import Vector, as_sample
from hcal.metrics.smooth import spiegelhalter_z
from hcal.metrics.testing import hosmer_lemeshow_test, spiegelhalter_test
from hcal.numerics import Float64
from hcal.renamed import renamed
from hcal.solvers.regression import fit_logistic

#: Log-odds are taken of probabilities at least this far from 0 and 1.
_CLIP: Final = 1e-8
#: Quantiles at which the knots of the spline lie (Harrell), by their number.
_KNOTS: Final = {3: (0.1, 0.5, 0.9), 5: (0.05, 0.275, 0.5, 0.725, 0.95)}
#: With fewer rows of the rarer outcome the curve has three knots instead of five.
_ENOUGH: Final = 100
#: Ridge penalty that keeps the spline's coefficients finite if the predictions separate the outcomes.
_RIDGE: Final = 1e-6
#: Number of random curves for the intervals, and of points at which each is evaluated.
_DRAWS, _POINTS = 500, 1000
_SHOWN: Final = (0.01, 0.05, 0.1, 0.2, 0.5)

HOSMER_LEMESHOW_NOTE: Final = (
    "Do not rely on this test: it depends on the grouping, misses miscalibration in small samples, finds "
    "harmless miscalibration in large ones, and does not say how large it is."
)


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval; ends that do not exist are NaN."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.low):
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Curve:
    """The smooth calibration curve: observed against predicted risk, with pointwise intervals; (P,) each."""

    predicted: Vector
    observed: Vector
    low: Vector
    high: Vector


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit at each threshold, (T,) each, in true positives per row; treating nobody has a net benefit of 0."""

    thresholds: Vector
    model: Vector
    treat_all: Vector


@dataclass(frozen=True)
class Clinical:
    """The clinical panel. ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    n, events : int
        Rows, and rows with the outcome.
    positive : int
        The class that is the outcome.
    confidence : float
        Level of the intervals.
    in_the_large : Estimate
        Calibration-in-the-large: the difference of observed and predicted risk in log-odds; ideal 0.
    slope, intercept : Estimate
        Slope and intercept of a logistic regression on the predicted log-odds; ideal 1 and 0. A slope below 1
        means that predictions are too extreme.
    observed_expected : Estimate
        O:E, observed over expected number of outcomes; ideal 1.
    ici, e50, e90, e_max : Estimate
        Mean, median, 90th percentile and maximum of |observed − predicted risk| along the smooth curve. Their
        intervals allow for the bias of a distance, which is positive by chance.
    brier, scaled_brier : Estimate
        Mean of (p − outcome)², and 1 minus its ratio to that of predicting the observed risk for everybody.
        With two classes, :func:`hcal.metrics.brier` sums over both and is twice as large.
    auc : Estimate
        Area under the ROC curve, interval by DeLong's variance.
    spiegelhalter_z, spiegelhalter_p : float
    hosmer_lemeshow, hosmer_lemeshow_p : float
        Over tenths of the predicted risk, with as many degrees of freedom as groups (the predictions were not
        fitted on these rows). Included because journals ask for it; do not rely on it.
    curve : Curve
    net_benefit : DecisionCurve
    notes : tuple of str
    """

    n: int
    events: int
    positive: int
    confidence: float
    in_the_large: Estimate
    slope: Estimate
    intercept: Estimate
    observed_expected: Estimate
    ici: Estimate
    e50: Estimate
    e90: Estimate
    e_max: Estimate
    brier: Estimate
    scaled_brier: Estimate
    auc: Estimate
    spiegelhalter_z: float
    spiegelhalter_p: float
    hosmer_lemeshow: float
    hosmer_lemeshow_p: float
    curve: Curve
    net_benefit: DecisionCurve
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, lists and text; estimates as ``{"value", "low", "high"}``."""
        return asdict(self, dict_factory=_plain)

    def table(self) -> list[tuple[str, str, str]]:
        """Return (name, value with interval, meaning) of every number, formatted for reading."""
        rows = [
            ("calibration-in-the-large", self.in_the_large, "ideal 0"),
            ("calibration slope", self.slope, "ideal 1; below: too extreme"),
            ("calibration intercept", self.intercept, "ideal 0"),
            ("observed : expected", self.observed_expected, "ideal 1"),
            ("ICI", self.ici, "mean distance of observed from predicted risk"),
            ("E50", self.e50, "its median"),
            ("E90", self.e90, "its 90th percentile"),
            ("E_max", self.e_max, "its maximum"),
            ("Brier score", self.brier, "0 is perfect"),
            ("scaled Brier score", self.scaled_brier, "1 is perfect, 0 is no use"),
            ("AUC", self.auc, "0.5 is no use"),
            ("Spiegelhalter's z", f"{self.spiegelhalter_z:.3f}", _p_value(self.spiegelhalter_p)),
            (
                "Hosmer-Lemeshow",
                f"{self.hosmer_lemeshow:.3f}",
                f"{_p_value(self.hosmer_lemeshow_p)} (*)",
            ),
        ]
        return [(name, str(value), words) for name, value, words in rows]

    def __str__(self) -> str:
        head = f"{self.n:,} rows, {self.events:,} with class {self.positive} ({self.events / self.n:.1%})"
        lines = [f"{head}, {100 * self.confidence:g}% intervals"]
        lines += [f"{name:<25}{value:<28}{words}" for name, value, words in self.table()]
        lines += [
            "",
            f"{'net benefit at threshold':<25}{'model':>10}{'treat all':>12}{'treat none':>12}",
        ]
        b = self.net_benefit
        shown = np.isin(b.thresholds.round(9), _SHOWN) if len(b.thresholds) > 20 else slice(None)
        table = zip(b.thresholds[shown], b.model[shown], b.treat_all[shown], strict=True)
        lines += [
            f"{t:<25.1%}{model:>10.4f}{everybody:>12.4f}{0:>12}" for t, model, everybody in table
        ]
        return "\n".join([*lines, "", f"(*) {HOSMER_LEMESHOW_NOTE}", *self.notes])


def _p_value(p: float) -> str:
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


@renamed(ci="confidence")
def clinical(
    probs: Any,
    y: Any,
    *,
    confidence: float = 0.95,
    thresholds: Iterable[float] | None = None,
    positive: int = 1,
) -> Clinical:
    """Return the calibration, discrimination and clinical use of the predicted risk of one outcome.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
    y : array-like of shape (N,)
        Integer labels 0..K−1.
    confidence : float
        Level of the intervals.
    thresholds : array-like of float, optional
        Risks at or above which one would treat, for the net benefit; 1 % to 99 % by default.
    positive : int
        The class that is the outcome; with more than two classes it is compared with all others.

    Returns
    -------
    Clinical

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.beta(1, 4, 2000)
    >>> panel = clinical(p, rng.random(2000) < p)
    >>> panel.slope.low < 1 < panel.slope.high, panel.auc.value > 0.7
    (True, True)
    """
    confidence = check_confidence(confidence)
    s = as_sample(probs, y, None)
    if not isinstance(positive, int | np.integer) or not 0 <= positive < s.k:
        raise ValueError(f"positive must be a class 0..{s.k - 1}, got {positive!r}")
    if s.weight is not None:
        raise ValueError(
            "the clinical panel treats rows as independent observations: it takes no sample_weight"
        )
    p, event = s.data.column(int(positive)), (s.y == positive).astype(np.float64)
    events = int(event.sum())
    if not 0 < events < s.n:
        raise ValueError(
            f"clinical needs rows with and without class {positive}; {events} of {s.n} rows have it"
        )
    z = float(ndtri((1 + confidence) / 2))
    x = log_odds_of(p)
    large, variance = logistic(np.ones((s.n, 1)), event, offset=x)
    slope, intercept, notes = _cox(x, event, z)
    curve, distances = _calibration_curve(p, x, event, z)
    test = spiegelhalter_z(p, event, np.ones(s.n))
    groups_test = hosmer_lemeshow_test(p, event)
    return Clinical(
        n=s.n,
        events=events,
        positive=int(positive),
        confidence=confidence,
        in_the_large=_wald(large[0], variance[0, 0], z),
        slope=slope,
        intercept=intercept,
        observed_expected=_observed_expected(p, event, z),
        **dict(zip(("ici", "e50", "e90", "e_max"), distances, strict=True)),
        **_brier(p, event, z),
        auc=_auc(p, event, z),
        spiegelhalter_z=test,
        spiegelhalter_p=spiegelhalter_test(p, event).p_value,
        hosmer_lemeshow=groups_test.value,
        hosmer_lemeshow_p=groups_test.p_value,
        curve=curve,
        net_benefit=_net_benefit(p, event, thresholds),
        notes=notes,
    )


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    lists = {name: list(value) for name, value in items if isinstance(value, tuple)}
    return (
        dict(items) | lists | {name: x.tolist() for name, x in items if isinstance(x, np.ndarray)}
    )


def _wald(value: float, variance: float, z: float) -> Estimate:
    reach = z * float(np.sqrt(variance))
    return Estimate(float(value), float(value - reach), float(value + reach))


def log_odds_of(risk: Vector) -> Vector:
    """Return the log-odds of probabilities, which are finite."""
    return np.asarray(logit(np.clip(risk, _CLIP, 1 - _CLIP)))


def calibration_line(
    log_odds: Vector, event: Any, weight: Vector | None = None
) -> tuple[float, float]:
    """Return intercept and slope of the logistic regression of an event on log-odds; NaN where there is none.

    >>> x = np.array([-1.0, -1.0, 1.0, 1.0])
    >>> [round(value, 6) for value in calibration_line(x, np.array([1, 0, 0, 1]))]
    [0.0, 0.0]
    """
    happened = np.asarray(event, dtype=bool)
    if no_slope(log_odds, happened):
        return np.nan, np.nan
    design = np.stack([np.ones_like(log_odds), log_odds], axis=1)
    theta = fit_logistic(design, happened.astype(np.float64), weight).theta
    return float(theta[0]), float(theta[1])


def no_slope(log_odds: Vector, happened: Any) -> str:
    """Return why a logistic regression on log-odds has no finite slope; empty if it has one."""
    if happened.all() or not happened.any():
        return "all rows have the same outcome: there is no slope"
    if log_odds.min() == log_odds.max():
        return "all predictions are equal: there is no slope"
    yes, no = log_odds[happened], log_odds[~happened]
    if yes.min() >= no.max() or yes.max() <= no.min():
        return "the predictions separate the outcomes: the slope is not finite"
    return ""


def logistic(
    X: Float64, y: Vector, offset: Any = 0.0, ridge: float = 0.0
) -> tuple[Vector, Float64]:
    """Return the coefficients (C,) of a logistic regression, and their covariance."""
    fitted = fit_logistic(X, y, ridge=ridge / 2, offset=offset)
    return fitted.theta, fitted.covariance


def _cox(x: Vector, event: Vector, z: float) -> tuple[Estimate, Estimate, tuple[str, ...]]:
    """Return slope and intercept of the logistic regression of the outcome on the predicted log-odds x (N,)."""
    nothing = Estimate(np.nan, np.nan, np.nan)
    if reason := no_slope(x, event == 1):
        return nothing, nothing, (reason,)
    coef, covariance = logistic(np.stack([np.ones_like(x), x], axis=1), event)
    return _wald(coef[1], covariance[1, 1], z), _wald(coef[0], covariance[0, 0], z), ()


def _spline(x: Vector, knots: Vector) -> Float64:
    """Return 1, x and the restricted cubic spline terms (Harrell), linear beyond the outer knots; (N, C)."""
    terms = [np.ones_like(x), x] if len(knots) > 1 else [np.ones_like(x)]
    if len(knots) > 2:
        cubes = np.maximum(x[:, None] - knots, 0) ** 3 / (knots[-1] - knots[0]) ** 2
        for j, t in enumerate(knots[:-2]):
            share = (knots[-1] - t) / (knots[-1] - knots[-2])
            terms.append(cubes[:, j] - cubes[:, -2] * share + cubes[:, -1] * (share - 1))
    return np.stack(terms, axis=1)


def _calibration_curve(
    p: Vector, x: Vector, event: Vector, z: float
) -> tuple[Curve, list[Estimate]]:
    """Return the smooth curve, and ICI, E50, E90 and E_max."""
    rare = min(event.sum(), len(event) - event.sum())
    centre, scale = x.mean(), x.std() or 1.0
    u = (x - centre) / scale
    knots = np.unique(np.quantile(u, _KNOTS[5 if rare >= _ENOUGH else 3]))
    basis = _spline(u, knots)
    coef, covariance = logistic(basis, event, ridge=_RIDGE)
    found = _distances(np.abs(expit(basis @ coef) - p)[:, None])[:, 0]
    some = np.argsort(p, kind="stable")[
        np.linspace(0, len(p) - 1, min(_POINTS, len(p))).astype(np.int64)
    ]
    eta, spread = (
        basis[some] @ coef,
        np.sqrt(np.einsum("nc,cd,nd->n", basis[some], covariance, basis[some])),
    )
    # Random curves around the fitted one show the spread of each distance; random curves around perfect
    # calibration, with the same noise in the coefficients, show its value by chance.
    noise = np.random.default_rng(0).multivariate_normal(
        0 * coef, covariance, _DRAWS, method="cholesky"
    )
    moves = basis[some] @ noise.T
    drawn, null = (
        _distances(np.abs(expit(at[:, None] + moves) - p[some, None])) for at in (eta, x[some])
    )
    reach = z * np.maximum(drawn.std(axis=1, ddof=1), null.std(axis=1, ddof=1))
    low = np.maximum(found - null.mean(axis=1) - reach, 0)
    estimates = [
        Estimate(*map(float, row))
        for row in np.stack([found, low, np.minimum(found + reach, 1)], axis=1)
    ]
    return Curve(p[some], expit(eta), expit(eta - z * spread), expit(eta + z * spread)), estimates


def _distances(gap: Float64) -> Float64:
    """Return mean, median, 90th percentile and maximum of gaps (N, D): (4, D)."""
    return np.stack([gap.mean(axis=0), *np.quantile(gap, [0.5, 0.9, 1.0], axis=0)])


def _observed_expected(p: Vector, event: Vector, z: float) -> Estimate:
    """Return O:E, its interval from the binomial variance of log O (Debray et al., BMJ 2017)."""
    observed, expected = event.sum(), max(p.sum(), _CLIP)
    reach = np.exp(z * np.sqrt((1 - event.mean()) / observed))
    ratio = float(observed / expected)
    return Estimate(ratio, float(ratio / reach), float(ratio * reach))


def _brier(p: Vector, event: Vector, z: float) -> dict[str, Estimate]:
    rows, rate = (p - event) ** 2, event.mean()
    null = rate * (1 - rate)
    # To first order each row contributes (1 − 2·rate)(event − rate) to the null score.
    scaled = rows - rows.mean() * (null + (1 - 2 * rate) * (event - rate)) / null
    variance = rows.var(ddof=1) / len(p), scaled.var(ddof=1) / len(p) / null**2
    return {
        "brier": _wald(rows.mean(), variance[0], z),
        "scaled_brier": _wald(1 - rows.mean() / null, variance[1], z),
    }


def _midranks(x: Vector) -> Vector:
    """Return ranks from 1, ties with their mean rank."""
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])


def _auc(p: Vector, event: Vector, z: float) -> Estimate:
    """Return the area under the ROC curve with DeLong's interval (Biometrics 1988), by ranks."""
    yes, no = p[event == 1], p[event == 0]
    ranks = _midranks(p)
    # For each row with the outcome, the share of rows without it that lie below; and the reverse.
    above = (ranks[event == 1] - _midranks(yes)) / len(no)
    below = 1 - (ranks[event == 0] - _midranks(no)) / len(yes)
    variances = (v.var(ddof=1) / len(v) if len(v) > 1 else np.nan for v in (above, below))
    found = _wald(above.mean(), sum(variances), z)
    return Estimate(found.value, max(found.low, 0.0), min(found.high, 1.0))


def _net_benefit(p: Vector, event: Vector, thresholds: Iterable[float] | None) -> DecisionCurve:
    """Return TP/n − FP/n·t/(1 − t) of treating at a risk of t or more, and of treating everybody."""
    t = (
        np.arange(1, 100) / 100
        if thresholds is None
        else np.asarray(list(thresholds), dtype=np.float64)
    )
    if t.ndim != 1 or not len(t) or not ((t > 0) & (t < 1)).all():
        raise ValueError("thresholds must be risks between 0 and 1, such as [0.05, 0.1, 0.2]")
    order = np.argsort(p, kind="stable")
    first = np.searchsorted(p[order], t, side="left")  # rows from this rank on are treated
    hits = np.concatenate([np.cumsum(event[order][::-1])[::-1], [0.0]])[first]
    odds, n, rate = t / (1 - t), len(p), event.mean()
    return DecisionCurve(t, hits / n - (n - first - hits) / n * odds, rate - (1 - rate) * odds)
