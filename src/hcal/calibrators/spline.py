"""Spline calibration (Gupta et al., ICLR 2021), extended to all ranks."""

from __future__ import annotations

import numpy as np
from scipy.interpolate import CubicSpline

from hcal.calibrators._normal_form import average_ties
from hcal.calibrators._one_vs_rest import (
    CURVES,
    FLOOR,
    MOST,
    ROUNDED,
    ROUNDED_FIELD,
    columns,
    default_floor,
    end_to_end,
    evaluate_curves,
    line,
    normalise,
    offsets_field,
    probabilities,
)
from hcal.calibrators._shared import whole_number
from hcal.calibrators.base import Calibrator, Fitted
from hcal.calibrators.declared import parameters
from hcal.calibrators.state import Field, StateSpec
from hcal.inputs import InputKind
from hcal.numerics import Float64, FloatArray, IntArray, run_starts


@parameters
class SplineCalibration(Calibrator):
    """The r-th largest probability moves by the slope of a spline through the cumulative gap of its rank.

    Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu, Hartley: Calibration of neural networks using splines,
    ICLR 2021. The original treats ranks 1 and 2; the comparison extends it to all K ranks and normalises.
    The state holds the calibration scores of every rank, about twice the calibration set.

    Parameters
    ----------
    knots : int
        Equally spaced knots of the natural cubic spline, at least 2.
    floor : float, optional
        Added to every probability before the last normalisation; 1/(N·K) unless given, 1e-20 as published.

    Examples
    --------
    >>> cal = SplineCalibration(floor=0, input="probs").fit([[0.1, 0.9]] * 40, [1, 1, 1, 0] * 10)
    >>> cal.predict_proba([[0.1, 0.9]]).round(1)
    array([[0.2, 0.8]])
    """

    name = "spline"
    title = "Spline calibration"
    state_specs = (
        StateSpec(
            (
                offsets_field("rank r owns offsets[r] to offsets[r+1]", order="increasing"),
                Field("knots", "calibration scores, rank after rank", ("P",), 0, MOST),
                Field("values", "recalibrated scores, cut to [0, 1] in use", ("P",)),
                FLOOR,
                ROUNDED_FIELD,
            ),
            CURVES.sizes,
            CURVES.rules,
        ),
    )

    knots: int = 6
    floor: float | None = None
    input: InputKind = "logits"

    def _fit(self, logits: FloatArray, y: IntArray, sample_weight: Float64 | None) -> Fitted:
        knots = whole_number("knots", self.knots, 2)
        probs = probabilities(logits)
        first, ties = _ranks_of_label(probs, y)
        probs.sort(axis=1)
        spline = _CumulativeSpline(len(y), knots)
        curves = [
            spline.recalibrate(s, ((first <= r) & (r < first + ties)) / ties)
            for r, s in columns(probs[:, ::-1])
        ]
        return Fitted(end_to_end(curves) | {"floor": default_floor(self.floor, *logits.shape)} | ROUNDED)

    def _predict(self, logits: FloatArray) -> FloatArray:
        probs, state = probabilities(logits, self.state_), self.state_
        order = np.argsort(-probs, axis=1, kind="stable")
        scores = np.take_along_axis(probs, order, axis=1)
        ranked = np.clip(evaluate_curves(state, scores, line), 0.0, 1.0)
        average_ties(ranked, scores)
        raw = np.empty_like(ranked)
        np.put_along_axis(raw, order, ranked, axis=1)
        return normalise(raw, probs, float(state["floor"]))


def _ranks_of_label(probs: FloatArray, y: IntArray) -> tuple[IntArray, IntArray]:
    """The first place of each row's label by falling probability, and how many classes share its value.

    Tied classes share their places: a hit counts as 1/ties at each.
    """
    own = probs[np.arange(len(y)), y][:, None]
    first, ties = (probs > own).sum(axis=1), (probs == own).sum(axis=1)
    return first.astype(np.int64), ties.astype(np.int64)


class _CumulativeSpline:
    """Least-squares natural cubic splines on u = 0..1, N points; the design serves every rank."""

    def __init__(self, n_rows: int, n_knots: int) -> None:
        u = np.linspace(0, 1, n_rows)
        knots = np.linspace(0, 1, n_knots)
        cardinal = CubicSpline(knots, np.eye(n_knots), bc_type="natural" if n_knots > 2 else "not-a-knot")
        self.solve = np.linalg.pinv(cardinal(u))
        self.slope = cardinal(u, 1)

    def recalibrate(self, score: Float64, hit: Float64) -> tuple[Float64, Float64]:
        """Return the distinct scores of one rank, ascending, and their recalibrated values."""
        order = np.argsort(score, kind="stable")
        score = score[order]
        gap = np.cumsum(hit[order] - score) / len(score)
        value = score + self.slope @ (self.solve @ gap)
        # Equal scores get one value, their mean: otherwise the order of rows would decide.
        first = run_starts(score)
        mean = np.add.reduceat(value, first) / np.diff(first, append=len(score))
        return score[first], mean
