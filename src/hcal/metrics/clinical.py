"""``hcal.clinical``: what clinical papers report about the predicted risk of one outcome.

Calibration-in-the-large, slope and intercept are logistic regressions on the log-odds of the prediction (Cox,
Biometrika 1958; Steyerberg, Clinical Prediction Models, 2019). ICI, E50, E90 and E_max (Austin, Steyerberg,
Statistics in Medicine 2019) are distances to a smooth calibration curve: a logistic regression on a
restricted cubic spline of the log-odds. Net benefit: Vickers, Elkin, Medical Decision Making 2006. Which of
these to report: Van Calster et al., BMC Medicine 2019.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from scipy.special import expit

from hcal.class_names import class_title, number_of_class
from hcal.frames import AnyArray, refuse_other_index
from hcal.inputs import check_confidence, check_groups
from hcal.metrics.estimates import (
    FEWEST_FOR_SCALED,
    Outcome,
    area,
    brier_scores,
    in_the_large,
    observed_expected,
    regression,
    slope_and_intercept,
)
from hcal.metrics.estimates import Estimate as Estimate
from hcal.metrics.sample import PositiveClass, Vector, as_sample
from hcal.metrics.smooth import spiegelhalter_z
from hcal.metrics.testing import CalibrationTest, hosmer_lemeshow_test, spiegelhalter_test
from hcal.numerics import Float64
from hcal.renamed import renamed
from hcal.results import OnePanel, Result
from hcal.row_segments import Segments
from hcal.rows import ClassNames
from hcal.text import JsonObject, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Quantiles at which the knots of the spline lie (Harrell), by their number.
_KNOTS: Final = {3: (0.1, 0.5, 0.9), 5: (0.05, 0.275, 0.5, 0.725, 0.95)}
#: With fewer rows of the rarer outcome the curve has three knots instead of five.
_ENOUGH: Final = 100
#: Ridge penalty that keeps the spline's coefficients finite if the predictions separate the outcomes.
_RIDGE: Final = 1e-6
#: Number of random curves for the intervals, and of points at which each is evaluated.
_DRAWS: Final = 500
_POINTS: Final = 1000
#: Thresholds whose net benefit is printed.
_PRINTED: Final = (0.01, 0.05, 0.1, 0.2, 0.5)

HOSMER_LEMESHOW_NOTE: Final = (
    "Do not rely on this test: it depends on the grouping, misses miscalibration in small samples, "
    "finds harmless miscalibration in large ones, and does not say how large it is."
)


@dataclass(frozen=True)
class CalibrationCurve:
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


@dataclass(frozen=True, repr=False)
class Clinical(OnePanel, Result):
    """The clinical panel. ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    n, events : int
        Rows, and rows with the outcome.
    positive : int
        The number of the class that is the outcome.
    confidence : float
        Level of the intervals. An interval whose ends are NaN is not given; ``notes`` say why.
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
        Area under the ROC curve.
    spiegelhalter_z, spiegelhalter_p : float
        The p-values are NaN where rows of one group depend on each other.
    hosmer_lemeshow, hosmer_lemeshow_p : float
        Over tenths of the predicted risk, with as many degrees of freedom as groups (the predictions were not
        fitted on these rows). Included because journals ask for it; do not rely on it.
    curve : CalibrationCurve
    net_benefit : DecisionCurve
    notes : tuple of str
    subgroups : dict of Clinical
        The panel of every segment of ``by``, by name. Each interval holds by itself, not all of them together.
    names : tuple of K str or int, or None
        Names of the classes.
    """

    schema: ClassVar[str] = "hcal/clinical/1"

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
    curve: CalibrationCurve
    net_benefit: DecisionCurve
    notes: tuple[str, ...] = ()
    subgroups: dict[str, Clinical] = field(default_factory=dict)
    names: ClassNames | None = None

    def table(self) -> list[tuple[str, str, str]]:
        """Return (name, value with interval, meaning) of every number, formatted for reading."""
        lines = [(name, str(getattr(self, field)), words) for field, name, words in _TABLE]
        z = f"{self.spiegelhalter_z:.3f}"
        lines.append(("Spiegelhalter's z", z, _p_value(self.spiegelhalter_p)))
        statistic = f"{self.hosmer_lemeshow:.3f}"
        lines.append(("Hosmer-Lemeshow", statistic, f"{_p_value(self.hosmer_lemeshow_p)} (*)"))
        return lines

    def to_records(self) -> list[JsonObject]:
        """Return one row for each estimate, of all rows and then of every segment."""
        records = []
        for segment, panel in [("", self), *self.subgroups.items()]:
            for name, _, _ in _TABLE:
                record = {"segment": segment, "rows": panel.n, "estimate": name}
                records.append(record | vars(getattr(panel, name)))
        return records

    def _headline(self) -> list[str]:
        share = f"{self.events / self.n:.1%}"
        outcome = class_title(self.positive, self.names)
        head = f"{self.n:,} rows, {self.events:,} with {outcome} ({share})"
        lines = [f"{head}, {100 * self.confidence:g}% intervals"]
        lines += [f"{name:<25}{value:<28}{words}" for name, value, words in self.table()]
        lines += ["", *self._net_benefit_lines(), *self._subgroup_lines()]
        return [*lines, "", f"(*) {HOSMER_LEMESHOW_NOTE}", *self.notes]

    def _net_benefit_lines(self) -> list[str]:
        """Return the table of net benefits, at a few thresholds if there are many."""
        benefit = self.net_benefit
        lines = [
            f"{'net benefit at threshold':<25}{'model':>10}{'treat all':>12}{'treat none':>12}"
        ]
        printed = np.ones(len(benefit.thresholds), dtype=bool)
        if len(benefit.thresholds) > 20:
            printed = np.isin(benefit.thresholds.round(9), _PRINTED)
        for i in np.flatnonzero(printed):
            model = benefit.model[i]
            everybody = benefit.treat_all[i]
            lines.append(f"{benefit.thresholds[i]:<25.1%}{model:>10.4f}{everybody:>12.4f}{0:>12}")
        return lines

    def _subgroup_lines(self) -> list[str]:
        """Return one line for every segment."""
        if not self.subgroups:
            return []
        lines = ["", f"{'segment':<25}{'rows':>9}{'events':>9}  {'in the large':<28}slope"]
        for name, panel in self.subgroups.items():
            counts = f"{printable(name):<25}{panel.n:>9,}{panel.events:>9,}"
            lines.append(f"{counts}  {panel.in_the_large!s:<28}{panel.slope}")
        return lines

    def _draw_on(self, ax: Axes) -> None:
        """Draw the observed risk against the predicted risk, smoothed, with its band."""
        curve = self.curve
        highest = max(float(curve.predicted.max()), float(curve.high.max()))
        ends = [0, highest]
        ax.plot(ends, ends, color="black", linewidth=0.8, linestyle=":")
        ax.fill_between(curve.predicted, curve.low, curve.high, alpha=0.25)
        ax.plot(curve.predicted, curve.observed)
        ax.set(xlabel="predicted risk", ylabel="observed risk")


#: The estimates of a panel in the order of its table: field, name and meaning.
_TABLE: Final = (
    ("in_the_large", "calibration-in-the-large", "ideal 0"),
    ("slope", "calibration slope", "ideal 1; below: too extreme"),
    ("intercept", "calibration intercept", "ideal 0"),
    ("observed_expected", "observed : expected", "ideal 1"),
    ("ici", "ICI", "mean distance of observed from predicted risk"),
    ("e50", "E50", "its median"),
    ("e90", "E90", "its 90th percentile"),
    ("e_max", "E_max", "its maximum"),
    ("brier", "Brier score", "0 is perfect"),
    ("scaled_brier", "scaled Brier score", "1 is perfect, 0 is no use"),
    ("auc", "AUC", "0.5 is no use"),
)


def _p_value(p: float) -> str:
    if np.isnan(p):
        return "not tested"
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


@renamed(ci="confidence")
def clinical(  # noqa: PLR0913 - a public door
    probs: AnyArray,
    y: AnyArray = None,
    *,
    confidence: float = 0.95,
    thresholds: Iterable[float] | None = None,
    positive: PositiveClass = None,
    groups: AnyArray = None,
    by: AnyArray = None,
) -> Clinical:
    """Return the calibration, discrimination and clinical use of the predicted risk of one outcome.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
    y : array-like of shape (N,)
        Integer labels 0..K−1; names where the columns of a frame are named like them.
    confidence : float
        Level of the intervals.
    thresholds : array-like of float, optional
        Risks at or above which one would treat, for the net benefit; 1 % to 99 % by default.
    positive : int or str, optional
        The class that is the outcome, by its number or, of a frame, its name; class 1 by default. With more than two
        classes it is compared with all others.
    groups : array-like of shape (N,), optional
        Rows of one group depend on each other (a patient, a hospital): standard errors count whole groups. Intervals
        need 20 groups, and the two tests, which need independent rows, are left out.
    by : array-like of shape (N,), frame, or dict of columns, optional
        The segment of each row: adds a panel for each of them.

    Returns
    -------
    Clinical
        Intervals need 10 observed and 10 expected outcomes (the scaled Brier score 40 expected ones), and as many rows
        without; otherwise they are NaN, and ``notes`` say why.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.beta(1, 4, 2000)
    >>> panel = clinical(p, rng.random(2000) < p)
    >>> panel.slope.low < 1 < panel.slope.high, panel.auc.value > 0.7
    (True, True)
    """
    confidence = check_confidence(confidence)
    refuse_other_index(probs, {"y": y, "groups": groups, "by": by})
    s = as_sample(probs, y, None)
    number = number_of_class(positive, s.names, s.k)
    if s.weight is not None:
        raise ValueError(
            "the clinical panel treats rows as independent observations: it takes no sample_weight"
        )
    event = (s.y == number).astype(np.float64)
    risk = s.data.column(number)
    rows = Outcome(risk, event, confidence, check_groups(groups, s.n))
    levels = _checked_thresholds(thresholds)
    events = int(event.sum())
    if not 0 < events < s.n:
        raise ValueError(
            f"clinical needs rows with and without {class_title(number, s.names)}; {events} of "
            f"{s.n} rows have it"
        )
    if by is None:
        return replace(_panel(rows, number, levels), names=s.names)
    subgroups, notes = _of_segments(rows, Segments.of(by, s.n), number, levels)
    named = {name: replace(panel, names=s.names) for name, panel in subgroups.items()}
    return replace(_panel(rows, number, levels, named, notes), names=s.names)


def _of_segments(
    rows: Outcome, segments: Segments, positive: int, thresholds: Vector
) -> tuple[dict[str, Clinical], tuple[str, ...]]:
    """Return the panel of every segment, and notes on those that have none."""
    panels = {}
    notes = []
    for code, name in enumerate(segments.names):
        members = segments.rows_of(code)
        groups = None if rows.groups is None else rows.groups[members]
        segment = Outcome(rows.risk[members], rows.event[members], rows.confidence, groups)
        if 0 < segment.event.sum() < segment.n:
            panels[name] = _panel(segment, positive, thresholds)
        else:
            notes.append(
                f"{name}: all {segment.n:,} rows have the same outcome, so it has no panel"
            )
    return panels, tuple(notes)


def _panel(
    rows: Outcome,
    positive: int,
    thresholds: Vector,
    subgroups: dict[str, Clinical] | None = None,
    notes: tuple[str, ...] = (),
) -> Clinical:
    """Return the panel of rows with both outcomes."""
    slope, intercept, no_slope = slope_and_intercept(rows)
    curve, distances = _calibration_curve(rows)
    brier, scaled_brier = brier_scores(rows)
    spiegelhalter, hosmer_lemeshow = _tests(rows)
    return Clinical(
        n=rows.n,
        events=int(rows.event.sum()),
        positive=positive,
        confidence=rows.confidence,
        in_the_large=in_the_large(rows),
        slope=slope,
        intercept=intercept,
        observed_expected=observed_expected(rows),
        ici=distances[0],
        e50=distances[1],
        e90=distances[2],
        e_max=distances[3],
        brier=brier,
        scaled_brier=scaled_brier,
        auc=area(rows),
        spiegelhalter_z=spiegelhalter_z(rows.risk, rows.event, np.ones(rows.n)),
        spiegelhalter_p=spiegelhalter.p_value,
        hosmer_lemeshow=hosmer_lemeshow.value,
        hosmer_lemeshow_p=hosmer_lemeshow.p_value,
        curve=curve,
        net_benefit=decision_curve(rows.risk, rows.event, thresholds),
        notes=(*_reasons(rows, no_slope), *notes),
        subgroups=subgroups or {},
    )


def _reasons(rows: Outcome, no_slope: str) -> list[str]:
    """Return why there is no slope, why there are no intervals and why there are no tests."""
    reasons = [no_slope] if no_slope else []
    if rows.no_interval():
        reasons.append(f"no intervals: {rows.no_interval()}")
    elif rows.no_interval(FEWEST_FOR_SCALED):
        reasons.append(
            f"no interval of the scaled Brier score: {rows.no_interval(FEWEST_FOR_SCALED)}"
        )
    if rows.groups is not None:
        reasons.append("no tests: they need independent rows, and rows of one group are not")
    return reasons


def _tests(rows: Outcome) -> tuple[CalibrationTest, CalibrationTest]:
    """Return the tests of Spiegelhalter and of Hosmer and Lemeshow; groups of rows have no p-value."""
    spiegelhalter = spiegelhalter_test(rows.risk, rows.event)
    hosmer_lemeshow = hosmer_lemeshow_test(rows.risk, rows.event)
    if rows.groups is None:
        return spiegelhalter, hosmer_lemeshow
    return spiegelhalter.without_p_value(), hosmer_lemeshow.without_p_value()


# -- the smooth curve ---------------------------------------------------------------------------------


def _spline(x: Vector, knots: Vector) -> Float64:
    """Return 1, x and the restricted cubic spline terms (Harrell), linear beyond the outer knots; (N, C)."""
    if len(knots) == 1:
        return np.ones((len(x), 1))
    terms = [np.ones_like(x), x]
    if len(knots) == 2:
        return np.stack(terms, axis=1)
    width = knots[-1] - knots[0]
    cubes = np.maximum(x[:, None] - knots, 0) ** 3 / width**2
    for j, knot in enumerate(knots[:-2]):
        share = (knots[-1] - knot) / (knots[-1] - knots[-2])
        straight = cubes[:, -2] * share - cubes[:, -1] * (share - 1)
        terms.append(cubes[:, j] - straight)
    return np.stack(terms, axis=1)


def _calibration_curve(rows: Outcome) -> tuple[CalibrationCurve, list[Estimate]]:
    """Return the smooth curve, and ICI, E50, E90 and E_max."""
    log_odds = rows.log_odds
    rarer = min(rows.event.sum(), rows.n - rows.event.sum())
    scaled = (log_odds - log_odds.mean()) / (log_odds.std() or 1.0)
    knots = np.unique(np.quantile(scaled, _KNOTS[5 if rarer >= _ENOUGH else 3]))
    basis = _spline(scaled, knots)
    fitted = regression(rows, basis, ridge=_RIDGE)
    covariance = fitted.by_model if rows.groups is None else fitted.by_residuals
    observed = expit(basis @ fitted.coefficients)
    values = _distances(np.abs(observed - rows.risk)[:, None])[:, 0]

    steps = np.linspace(0, rows.n - 1, min(_POINTS, rows.n))
    points = np.argsort(rows.risk, kind="stable")[steps.astype(np.int64)]
    basis = basis[points]
    risk = rows.risk[points]
    curve_log_odds = basis @ fitted.coefficients
    error = np.sqrt(np.einsum("nc,cd,nd->n", basis, covariance, basis))
    low = expit(curve_log_odds - rows.z * error)
    high = expit(curve_log_odds + rows.z * error)
    curve = CalibrationCurve(risk, expit(curve_log_odds), low, high)
    if rows.no_interval():
        return _without_band(curve), [Estimate.alone(value) for value in values]

    # Random curves around the fitted one show the spread of each distance; random curves around perfect
    # calibration, with the same noise in the coefficients, show its value by chance.
    normals = np.random.default_rng(0).standard_normal((_DRAWS, len(covariance)))
    moves = basis @ (normals @ _root(covariance).T).T
    curves = expit(curve_log_odds[:, None] + moves)
    calibrated = expit(log_odds[points, None] + moves)
    drawn = _distances(np.abs(curves - risk[:, None]))
    null = _distances(np.abs(calibrated - risk[:, None]))
    spread = drawn.std(axis=1, ddof=1)
    spread_by_chance = null.std(axis=1, ddof=1)
    margin = rows.z * np.maximum(spread, spread_by_chance)
    low = np.maximum(values - null.mean(axis=1) - margin, 0)
    high = np.minimum(values + margin, 1)
    ends = zip(values.tolist(), low.tolist(), high.tolist(), strict=True)
    return curve, [Estimate(*estimate) for estimate in ends]


def _without_band(curve: CalibrationCurve) -> CalibrationCurve:
    missing = np.full_like(curve.observed, np.nan)
    return CalibrationCurve(curve.predicted, curve.observed, missing, missing)


def _root(covariance: Float64) -> Float64:
    """Return L with L·Lᵀ = covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))


def _distances(gap: Float64) -> Float64:
    """Return mean, median, 90th percentile and maximum of gaps (N, D): (4, D)."""
    quantiles = np.quantile(gap, [0.5, 0.9, 1.0], axis=0)
    return np.concatenate([[gap.mean(axis=0)], quantiles])


# -- net benefit --------------------------------------------------------------------------------------


def _checked_thresholds(thresholds: Iterable[float] | None) -> Vector:
    """Return thresholds strictly between 0 and 1; 1 % to 99 % by default."""
    if thresholds is None:
        return np.arange(1, 100) / 100
    levels = np.asarray(list(thresholds), dtype=np.float64)
    inside = (levels > 0) & (levels < 1)
    if levels.ndim != 1 or not len(levels) or not inside.all():
        raise ValueError("thresholds must be risks between 0 and 1, such as [0.05, 0.1, 0.2]")
    return levels


def decision_curve(risk: Vector, event: Vector, thresholds: Vector) -> DecisionCurve:
    """Return TP/n − FP/n·t/(1 − t) of treating at a risk of t or more, and of treating everybody.

    >>> decision_curve(np.array([0.1, 0.9]), np.array([0.0, 1.0]), np.array([0.5])).model
    array([0.5])
    """
    order = np.argsort(risk, kind="stable")
    # Rows from this rank on are treated.
    first = np.searchsorted(risk[order], thresholds, side="left")
    events_below = np.concatenate([[0.0], np.cumsum(event[order])])
    hits = events_below[-1] - events_below[first]
    false_alarms = len(risk) - first - hits
    odds = thresholds / (1 - thresholds)
    rate = event.mean()
    model = (hits - false_alarms * odds) / len(risk)
    return DecisionCurve(thresholds, model, rate - (1 - rate) * odds)
