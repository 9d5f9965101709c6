"""The default: its promises, its regressions against refits, its compiled twin, and how little rounding moves it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.numerics import softmax
from hcal.pool import map as maps
from hcal.pool import members
from hcal.pool.two_classes import LogOddsTable
from hcal.rows import Rows
from hcal.solvers.regression import fit_logistic, fit_softmax
from helpers import assert_as_before, changeable_records

ROOT = Path(__file__).resolve().parents[2]
Data = tuple[np.ndarray, np.ndarray]


def draw(n: int, k: int, *, seed: int = 0, biased: bool = False) -> Data:
    """Overconfident logits; if biased, the classifier takes one class for another most of the time."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    z = rng.normal(size=(n, k)) + 2.0 * np.eye(k)[y]
    if biased:
        z[:, 0] += 2.5
    return 2.5 * z, y


def forest(n: int, k: int, seed: int = 0) -> Data:
    """Probabilities of a small forest: multiples of a tenth, many ties and zeros."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    signal = 1.5 * np.eye(k)[y]
    p = softmax(rng.normal(size=(n, k)) + signal)
    return np.stack([rng.multinomial(10, row) for row in p]) / 10, y


def fit(z: np.ndarray, y: np.ndarray, **params: Any) -> hcal.PooledCalibrator:
    weight = params.pop("weight", None)
    groups = params.pop("groups", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hcal.PooledCalibrator(**params).fit(z, y, weight, groups=groups)


def predicted(calibrator: hcal.PooledCalibrator, scores: np.ndarray) -> np.ndarray:
    """Return the class that the calibrated probabilities predict for each row."""
    return calibrator.predict_proba(scores).argmax(axis=1)


# -- the regressions ------------------------------------------------------------------------------------


def test_left_out_log_odds_are_as_in_refits() -> None:
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(80), rng.normal(size=(80, 2))])
    hit = (rng.random(80) < 0.7).astype(float)
    offset = rng.normal(size=80)
    on_all_rows = fit_logistic(design, hit, offset=offset, ridge=1.0)
    inside = offset + design @ on_all_rows.theta
    for row in (0, 17, 53):
        others = np.delete(np.arange(80), row)
        refit = fit_logistic(design[others], hit[others], offset=offset[others], ridge=1.0)
        expected = offset[row] + design[row] @ refit.theta
        assert abs(on_all_rows.left_out[row] - expected) < 0.1 * abs(expected - inside[row]) + 1e-3


def test_left_out_choices_are_as_in_refits() -> None:
    z, y = draw(80, 3)
    basis = np.stack([z / 2.5, np.abs(z)], axis=2)
    weight = np.ones(80)
    centre = np.array([1.0, 0.0])
    on_all_rows = fit_softmax(basis, y, weight, ridge=1.0, centre=centre)
    changes = on_all_rows.left_out_changes()
    for row in (0, 17, 53):
        others = np.delete(np.arange(80), row)
        refit = fit_softmax(basis[others], y[others], weight[others], ridge=1.0, centre=centre)
        expected = softmax(basis[row] @ refit.theta)
        left_out = softmax(basis[row] @ on_all_rows.theta + changes[row])
        np.testing.assert_allclose(left_out, expected, atol=2e-3)


@pytest.mark.parametrize("kind", ["temperature", "top-versus-rest", "matrix"])
def test_members_leave_rows_out_as_refits_do(kind: str) -> None:
    z, y = draw(120, 3)
    rows = Rows(z / 2.5, "logits", y=y)
    margins = members.TemperatureMember().fit(rows).margins
    shrinkage = members.shrinkage_of(rows, margins)
    makers: dict[str, Any] = {
        "temperature": members.TemperatureMember,
        "top-versus-rest": lambda: members.TopVersusRest(margins, shrinkage),
        "matrix": lambda: members.Matrix(margins),
    }
    on_all_rows = makers[kind]().fit(rows)
    left_out = softmax(on_all_rows.left_out())
    inside = softmax(on_all_rows.scores(rows.x))
    for row in (0, 17, 53):
        refit = makers[kind]().fit(rows[np.delete(np.arange(120), row)])
        expected = softmax(refit.scores(rows.x[row : row + 1]))[0]
        gap = np.abs(expected - inside[row]).max()
        np.testing.assert_allclose(left_out[row], expected, atol=0.35 * gap + 2e-3)


def test_matrix_scaling_is_stationary() -> None:
    """Where the solver stops, the penalised loss rises in every direction."""
    z, y = draw(200, 4)
    rng = np.random.default_rng(1)
    rows = Rows(z / 2.5, "logits", y=y, weight=rng.uniform(0.5, 2, 200))
    margins = members.TemperatureMember().fit(rows).margins
    learned = members.Matrix(margins).fit(rows).matrix
    least = matrix_loss(learned, rows, margins)
    for _ in range(5):
        step = 1e-3 * rng.normal(size=learned.shape)
        up = matrix_loss(learned + step, rows, margins)
        down = matrix_loss(learned - step, rows, margins)
        assert min(up, down) > least
        assert abs(up - down) < 1e-6 * least


def matrix_loss(matrix: np.ndarray, rows: Rows, margins: maps.Margins) -> float:
    scores = maps.matrix_scores(matrix, margins.tempered(margins(rows.x)))
    nll = -np.log(softmax(scores))[np.arange(len(rows)), rows.labels]
    square = matrix[:, :-1]
    diagonal = ((square.diagonal() - 1) ** 2).sum()
    others = (square**2).sum() - (square.diagonal() ** 2).sum()
    penalty = diagonal + 3 * others + (matrix[:, -1] ** 2).sum()
    return float(rows.weights @ nll + 4 * members.MATRIX_RIDGE * penalty)


def test_a_useless_member_gets_no_weight() -> None:
    z, y = draw(200, 4)
    log_p = np.log(softmax(z / 2.5))
    left_out = np.stack([log_p, -log_p, 0.5 * log_p], axis=2)
    weights = members.weigh(left_out, Rows(z, "logits", y=y), members.Shrinkage(60.0))
    assert 0 <= weights[1] < 1e-8


# -- the map --------------------------------------------------------------------------------------------


def test_projection_is_the_likeliest_that_keeps_the_top() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(6, 0.7), 300)
    top = rng.integers(0, 6, 300)
    out = np.exp(maps.keep_top(np.log(p), np.eye(6)[top]))
    for row, t, kept in zip(p, top, out, strict=True):
        others = np.sort(np.delete(row, t))[::-1]
        sums = row[t] + np.concatenate([[0], np.cumsum(others)])
        means = sums / np.arange(1, 7)
        level = means.max()  # pool-adjacent-violators: the top class with as many as raise the mean
        want = np.minimum(row, level)
        want[t] = level
        np.testing.assert_allclose(kept, want, atol=1e-12)


def test_ties_on_top_share_it() -> None:
    z, y = forest(400, 4)
    cal = fit(z, y, input="probs", preserve="accuracy")
    p = cal.predict_proba(z)
    is_highest = z == z.max(axis=1, keepdims=True)
    rows = np.flatnonzero(is_highest.sum(axis=1) > 1)
    assert len(rows) > 20
    for row in rows:
        tied = p[row, z[row] == z[row].max()]
        assert np.ptp(tied) < 1e-9
        assert tied.max() >= p[row].max() - 1e-9


@pytest.mark.parametrize("preserve", ["accuracy", "order", None])
def test_the_compiled_twin_is_the_formula(preserve: Any) -> None:
    pytest.importorskip("numba")
    problems = {3: forest(300, 3), 10: draw(600, 10), 40: draw(500, 40)}
    for k, data in problems.items():
        kind = "probs" if k == 3 else "logits"
        cal = fit(*data, input=kind, preserve=preserve)
        z = np.log(np.maximum(data[0], 1e-3)) if kind == "probs" else data[0]
        for x, close in ((z, 1e-12), (z.astype(np.float32), 2e-6)):
            of_kernel = cal.map_.compiled(x)
            assert of_kernel is not None
            assert of_kernel.dtype == x.dtype
            expected = np.exp(cal.map_(x.astype(np.float64)))
            np.testing.assert_allclose(of_kernel, expected, atol=close)


def test_without_the_twin_and_in_torch_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = draw(400, 6)
    cal = fit(z, y)
    p = cal.predict_proba(z)
    monkeypatch.setitem(sys.modules, "hcal.pool._numba", None)
    np.testing.assert_allclose(cal.predict_proba(z), p, atol=1e-12)
    torch = pytest.importorskip("torch")
    np.testing.assert_allclose(cal.predict_proba(torch.as_tensor(z)).numpy(), p, atol=1e-9)
    torn = z[:3].copy()
    torn[0, 2], torn[1, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        assert np.isnan(cal.prediction_(torn)[:2]).all()
        assert np.isfinite(cal.prediction_(torn)[2]).all()


# -- promises -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knots", "values", "beta", "below", "above"),
    [
        # The outer halves rise by 1 and by 2.
        ([0, 1, 2, 3, 4], [0, 1, 2, 4, 6], 10.0, -4.0, 14.0),
        ([0, 1, 2, 3], [0, 1, 2, 6], 10.0, -3.0, 13.5),
        # Temperature scaling rises by 1.5.
        ([0, 1, 2, 3, 4], [0, 1, 2, 4, 6], 1.5, -4.0, 12.0),
        # A half that is narrower than a thousandth of the table counts as so wide.
        ([0, 1e-6, 1e-5, 5, 10], [0, 1, 2, 3, 4], 1000.0, -2000.0, 6.0),
        ([-10, -5, -1e-5, -1e-6, 0], [0, 1, 2, 3, 4], 1000.0, -2.0, 2004.0),
    ],
)
def test_the_table_of_two_classes_goes_on_as_its_outer_half(
    knots: list[float], values: list[float], beta: float, below: float, above: float
) -> None:
    table = LogOddsTable(np.array(knots, dtype=float), np.array(values, dtype=float), 1e-3)
    longer = table.extended(beta)
    width = knots[-1] - knots[0]
    assert longer.knots.tolist() == [knots[0] - width, *knots, knots[-1] + width]
    assert longer.values[1:-1].tolist() == values
    assert longer.values[[0, -1]] == pytest.approx([below, above], rel=1e-4)


def test_many_classes_have_no_matrix() -> None:
    for k, has_matrix in ((32, True), (33, False)):
        z, y = draw(200, k)
        assert (fit(z, y).map_.matrix is not None) == has_matrix


def test_records_cannot_be_changed() -> None:
    assert changeable_records("hcal.pool") == {"PooledCalibrator"}


def test_what_a_fit_notes_is_printed_only_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    z, y = draw(400, 2, biased=True)
    notes = fit(z, y).fit_.notes
    assert notes
    assert capsys.readouterr().err == ""
    fit(z, y, verbose=True)
    assert capsys.readouterr().err.splitlines() == [f"pool: {note}" for note in notes]


def test_predictions_stay_unless_held_out_rows_prove_the_contrary() -> None:
    z, y = draw(1500, 4)
    kept = fit(z, y)
    assert kept.preserves == "accuracy"
    assert kept.fit_.notes == ()
    assert (predicted(kept, z) == z.argmax(axis=1)).all()
    z, y = draw(1500, 4, biased=True)
    free = fit(z, y)
    assert free.preserves is None
    before, after = (
        100 * free.fit_.details["held_out_accuracy"][key] for key in ("before", "after")
    )
    assert after > before + 5
    assert free.fit_.notes[0] == (
        f"Predicted classes may change: on held-out rows accuracy rises from {before:.1f} % "
        f"to {after:.1f} %. preserve='accuracy' keeps them."
    )
    changed = int((predicted(free, z) != z.argmax(axis=1)).sum())
    assert free.fit_.details["changed_predictions"] == changed
    stubborn = fit(z, y, preserve="accuracy")
    assert stubborn.preserves == "accuracy"
    assert "costs accuracy" in stubborn.fit_.notes[0]
    assert (predicted(stubborn, z) == z.argmax(axis=1)).all()
    assert fit(z, y, preserve=None).preserves is None
    with pytest.raises(ValueError, match="preserve"):
        fit(z, y, preserve="all")


def test_order_keeps_every_rank() -> None:
    z, y = draw(600, 7, biased=True)
    cal = fit(z, y, preserve="order")
    assert cal.preserves == "order"
    for x in (z, z.astype(np.float32), 100 * z):
        by_score = np.argsort(x, axis=1, kind="stable")
        p = np.take_along_axis(cal.predict_proba(x), by_score, axis=1)
        assert (np.diff(p, axis=1) >= 0).all()


def test_two_classes_keep_the_ranking_and_say_what_crosses() -> None:
    rng = np.random.default_rng(0)
    u = 3 * rng.normal(size=2000)
    rate = 1 / (1 + np.exp(1.5 - u / 3))
    y = (rng.random(2000) < rate).astype(int)
    cal = hcal.PooledCalibrator().fit(u, y, classes=["no", "yes"])
    p = cal.predict_proba(np.sort(u))[:, 1]
    assert (np.diff(p) > 0).all()
    assert cal.preserves is None
    threshold = 100 * cal.fit_.details["threshold"]
    assert threshold > 60
    moved = f"is above {threshold:.1f} % (before: 50 %)"
    note = f"class yes is now predicted when the model's own score {moved}"
    assert note in cal.fit_.notes[0]
    stays = fit(u, y, preserve="accuracy")
    side = stays.predict_proba(u)[:, 1] > 0.5
    assert (side == (u > 0)).all()
    assert stays.preserves == "accuracy"
    assert stays.fit_.details["changed_predictions"] == 0
    other = fit(-u, 1 - y).predict_proba(-u)
    expected = fit(u, y).predict_proba(u)
    np.testing.assert_allclose(other[:, ::-1], expected, atol=1e-9)


# -- rows -----------------------------------------------------------------------------------------------


def test_a_weight_counts_rows() -> None:
    for z, y in (draw(200, 4), draw(200, 2)):
        times = np.random.default_rng(3).integers(0, 4, 200)
        weighted = fit(z, y, weight=times.astype(float)).predict_proba(z)
        repeated = fit(np.repeat(z, times, axis=0), np.repeat(y, times))
        copied = repeated.predict_proba(z)
        np.testing.assert_allclose(weighted, copied, atol=1e-4)


def test_groups_are_left_out_together() -> None:
    """Rows that are copies of each other look better than they are, unless they are left out together."""
    for k in (2, 5):
        z, y = draw(60, k, seed=1)
        z = np.repeat(z, 10, axis=0)
        y = np.repeat(y, 10)
        z = z + 1e-3 * np.random.default_rng(0).normal(size=z.shape)
        alone = fit(z, y)
        together = fit(z, y, groups=np.repeat(np.arange(60), 10))
        fresh, labels = draw(3000, k, seed=2)
        nll = [hcal.metrics.nll(c.predict_proba(fresh), labels) for c in (alone, together)]
        assert nll[1] <= nll[0] + 0.02
        assert alone.fit_.details["weights"] != together.fit_.details["weights"]


def test_few_rows_and_odd_ones() -> None:
    for k in (2, 3, 12):
        for n in (1, 2, 5, 30):
            z, y = draw(n, k, seed=n)
            one_class = np.zeros(n, dtype=int)
            no_signal = np.zeros((n, k))
            for data in ((z, y), (z, one_class), (no_signal, y), (1e4 * z, y), (1e-9 * z, y)):
                p = fit(*data).predict_proba(data[0])
                assert np.isfinite(p).all()
                assert (p > 0).all()
                np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-9)
    fresh, labels = draw(4000, 5, seed=9)
    before = -np.log(softmax(fresh)[np.arange(4000), labels]).mean()
    for n, limit in (
        (30, 1.15),
        (100, 1.02),
    ):  # the scores are good as they are: few rows must not spoil them
        after = []
        for seed in range(5):
            cal = fit(*draw(n, 5, seed=seed))
            after.append(hcal.metrics.nll(cal.predict_proba(fresh), labels))
        assert np.median(after) < limit * before


def test_all_labels_of_one_class_are_met_with_a_warning() -> None:
    with pytest.warns(hcal.CalibrationWarning, match="one class"):
        hcal.PooledCalibrator().fit(draw(50, 3)[0], np.ones(50, dtype=int))


# -- stability, in short --------------------------------------------------------------------------------


def test_rounding_moves_nothing() -> None:
    rng = np.random.default_rng(0)
    tasks = [(*draw(800, k), "logits") for k in (5, 2)]
    tasks += [(*forest(600, k), "probs") for k in (4, 2)]
    for z, y, kind in tasks:
        base = fit(z, y, input=kind).predict_proba(z)
        noisy = z * (1 + 1e-6 * rng.normal(size=z.shape))
        noisy = noisy / noisy.sum(axis=1, keepdims=True) if kind == "probs" else noisy
        order = rng.permutation(z.shape[1])
        single = z.astype(np.float32)
        of_noisy = fit(noisy, y, input=kind)
        of_single = fit(single, y, input=kind)
        of_swapped = fit(z[:, order], np.argsort(order)[y], input=kind)
        of_turned = fit(z[::-1], y[::-1], input=kind)
        swapped_back = of_swapped.predict_proba(z[:, order])[:, np.argsort(order)]
        moved = {
            "noise": (of_noisy.predict_proba(z), 1e-5),
            "float32": (of_single.predict_proba(single), 1e-3),
            "classes": (swapped_back, 1e-6),
            "rows": (of_turned.predict_proba(z), 1e-9),
        }
        for name, (probs, limit) in moved.items():
            assert np.abs(base - probs).max() < limit, (name, kind, z.shape)
        dropped = fit(z[1:], y[1:], input=kind).predict_proba(z)
        assert np.abs(base - dropped).mean() < 2e-3


def test_large_problems_are_fitted_on_all_rows_and_weighed_on_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of dependent rows with two classes, some were weighed by the labels of others."""
    groups = np.arange(1000) // 2
    problems = [(*draw(1000, 6), None), (*draw(1000, 6), groups), (*draw(1000, 2), groups)]
    all_weighed = [fit(z, y, groups=dependent).predict_proba(z) for z, y, dependent in problems]
    monkeypatch.setattr(members, "_MOST_SCORES", 1000)
    monkeypatch.setattr(members, "_BLOCK_SCORES", 700)
    monkeypatch.setattr(members, "_MANY_SCORES", 1500)
    for (z, y, dependent), expected in zip(problems, all_weighed, strict=True):
        some_weighed = fit(z, y, groups=dependent).predict_proba(z)
        assert np.abs(some_weighed - expected).mean() < 0.02


def test_the_kernel_keeps_the_top_class_to_the_last_bit() -> None:
    """Also where another class would overtake, where rounding ties the two, and in float32."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3000, 4))
    under_rated = np.array([0.0, 0.0, 0.0, 1.5])  # class 3
    y = (z + under_rated + rng.gumbel(size=z.shape)).argmax(axis=1)
    cal = hcal.PooledCalibrator(preserve="accuracy").fit(z, y)
    free = hcal.PooledCalibrator(preserve=None).fit(z, y)
    assert (predicted(free, z) != z.argmax(axis=1)).mean() > 0.1
    next_above = np.nextafter(np.round(z), np.inf)
    for x in (z, z.astype(np.float32), np.round(z, 1), next_above):
        np.testing.assert_array_equal(predicted(cal, x), x.argmax(axis=1))


def test_the_kernel_can_be_kept_on_disk() -> None:
    """numba knows a kernel again by what it holds: a closure over another kernel is new in every process."""
    kernel = pytest.importorskip("hcal.pool._numba")._predict
    assert kernel.py_func.__closure__ is None


# -- every number -----------------------------------------------------------------------------------------


def lines() -> Iterator[str]:
    """Fit small sets of every kind and say what was learned, and what a few rows become."""
    rng = np.random.default_rng(7)
    cases: dict[str, tuple[Data, dict[str, Any]]] = {
        "two": (draw(300, 2), {}),
        "two, many": (draw(5000, 2), {}),
        "two, one score often": (forest(300, 2), {"input": "probs", "preserve": "accuracy"}),
        "two, groups": (
            draw(200, 2),
            {"groups": rng.integers(0, 40, 200), "weight": rng.random(200) * 3},
        ),
        "three": (draw(300, 3), {}),
        "few errors": ((4 * draw(80, 3)[0] + 20 * np.eye(3)[draw(80, 3)[1]], draw(80, 3)[1]), {}),
        "biased": (draw(400, 4, biased=True), {}),
        "biased, kept": (draw(400, 4, biased=True), {"preserve": "accuracy"}),
        "ordered": (draw(300, 5), {"preserve": "order"}),
        "forest": (forest(300, 4), {"input": "probs"}),
        "weights and groups": (
            draw(300, 4),
            {"groups": rng.integers(0, 60, 300), "weight": rng.random(300) * 3},
        ),
        "forty": (draw(500, 40), {}),
    }
    for name, ((z, y), params) in cases.items():
        cal = fit(z, y, **params)
        yield f"{name}: {cal.preserves} {cal.fit_.details} {cal.fit_.notes}"
        values = cal.map_.arrays() | {"probs": cal.predict_proba(z[:3])}
        for field, value in values.items():
            sampled = np.ravel(value)[:: 1 + np.size(value) // 24]
            yield "  ".join(["", field, *(f"{v:.7g}" for v in sampled)])


def test_every_number_is_as_it_was() -> None:
    assert_as_before(lines(), Path(__file__).with_name("pool_expected.txt"))


if __name__ == "__main__":
    Path(__file__).with_name("pool_expected.txt").write_text(
        "\n".join(lines()) + "\n", encoding="utf-8"
    )
