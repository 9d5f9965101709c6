"""The common table: what every registered calibrator promises, tested on all of them.

A new method needs no line here. One whose default search takes minutes at K = 100 gets an entry in
``QUICK`` (the contract does not depend on how thorough a search is); one whose single fit takes seconds
whatever its parameters stands in ``SECONDS`` and runs the whole table under ``-m slow``, a part of it always.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import hcal
from helpers import synthetic

METHODS = hcal.list_calibrators()
CLASSES = (2, 3, 10, 100)
ROWS = 160
WIDTHS = ("float32", "float64")

# Smaller searches for the methods whose default one is long: one penalty in place of a grid.
QUICK: dict[str, dict[str, Any]] = {
    "ms": {"penalty": (0.1, 1e-3), "folds": 2, "max_iterations": 8},
    "dir": {"penalty": (0.1, 1e-3), "folds": 2, "max_iterations": 8},
    "beta": {"max_iterations": 40},
    "vs": {"max_iterations": 30},
    "diag": {"hidden": (2,), "max_iterations": 40},
    "dec": {"max_critics": 4},
    "gp": {"inducing": 4, "samples": 10, "max_iterations": 5},
}
SECONDS = {"h", "gp", "diag"}
ALWAYS = {(3, "float64"), (10, "float32")}


def _slow_if(name: str, condition: bool = True) -> tuple[Any, ...]:
    return (pytest.mark.slow,) if name in SECONDS and condition else ()


TABLE = [
    pytest.param(name, k, width, id=f"{name}-{k}-{width}", marks=_slow_if(name, (k, width) not in ALWAYS))
    for name in METHODS
    for k in CLASSES
    for width in WIDTHS
]
#: For the tests that fit several times.
PATIENT = [pytest.param(name, marks=_slow_if(name)) for name in METHODS]


def make(name: str, **params: Any) -> Any:
    return hcal.make_calibrator(name, **QUICK.get(name, {}) | params)


def fit_quietly(cal: Any, logits: Any, y: Any, **kwargs: Any) -> Any:
    """Fit; a calibration warning is legal here, any other warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        return cal.fit(logits, y, **kwargs)


def data(k: int, width: str = "float64", *, n: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    logits, y = synthetic(n, k, seed=seed)
    return logits.astype(width), y


@cache
def fitted(name: str, k: int, width: str = "float64") -> Any:
    return fit_quietly(make(name), *data(k, width))


def hostile(k: int, width: str) -> np.ndarray:
    """Logits made to break order: ties, neighbours one ulp apart, and scales from 1e-4 to 1e4."""
    rng = np.random.default_rng(1)
    scales = rng.permutation(np.repeat([1e-4, 1e-2, 1.0, 10.0, 1e2, 1e4], 8))
    z = (rng.normal(size=(len(scales), k)) * scales[:, None]).astype(width)
    z[::4, 1] = z[::4, 0]
    z[1::4, 0] = np.nextafter(z[1::4, 1], z.dtype.type(np.inf))
    z[2::4, 1] = np.nextafter(z[2::4].max(axis=1), z.dtype.type(np.inf))
    z[3] = 0
    z[7] = np.where(np.arange(k) % 2, 1e4, -1e4)
    return np.clip(z, -1e4, 1e4)


def assert_probabilities(p: np.ndarray, shape: tuple[int, int]) -> None:
    assert p.shape == shape
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    assert np.abs(p.sum(axis=1, dtype=np.float64) - 1).max() < 1e-6


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("name", "k", "width"), TABLE)
def test_rows_are_probabilities_in_the_form_of_the_input(name: str, k: int, library: str, width: str) -> None:
    logits, _ = data(k, width, n=60, seed=5)
    x: Any = logits
    if library == "torch":
        import torch

        x = torch.from_numpy(logits)
    p = fitted(name, k, width).predict_proba(x)
    assert type(p) is type(x)
    assert p.dtype == x.dtype
    assert_probabilities(np.asarray(p), (60, k))


@pytest.mark.parametrize(("name", "k", "width"), TABLE)
def test_claims_of_preservation_hold_on_hostile_logits(name: str, k: int, width: str) -> None:
    cal = fitted(name, k, width)
    z = hostile(k, width)
    p = cal.predict_proba(z)
    assert_probabilities(p, z.shape)
    if cal.preserves is not None:
        np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))
    if cal.preserves == "order":
        order = np.argsort(z, axis=1, kind="stable")
        along = np.take_along_axis(p, order, axis=1)
        rises = np.diff(np.take_along_axis(z, order, axis=1), axis=1) > 0
        # A class may equal its better (floats end somewhere) but never beat any class above it.
        inverted = rises & (along[:, :-1] > np.minimum.accumulate(along[:, ::-1], axis=1)[:, ::-1][:, 1:])
        assert not inverted.any()


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_result(name: str) -> None:
    logits, y = data(3)
    again = fit_quietly(clone(make(name)), logits, y).predict_proba(logits)
    np.testing.assert_array_equal(again, fitted(name, 3).predict_proba(logits))


@pytest.mark.parametrize("name", METHODS)
def test_torch_and_numpy_fit_the_same(name: str) -> None:
    import torch

    logits, y = data(10, "float32")
    cal = fit_quietly(make(name), torch.from_numpy(logits), torch.from_numpy(y))
    np.testing.assert_array_equal(
        cal.predict_proba(logits), fitted(name, 10, "float32").predict_proba(logits)
    )


@pytest.mark.parametrize(("name", "k", "width"), TABLE)
def test_file_round_trip_is_exact(name: str, k: int, width: str, tmp_path: Path) -> None:
    cal = fitted(name, k, width)
    hcal.save(cal, tmp_path / "model.hcal")
    loaded = hcal.load(tmp_path / "model.hcal")
    logits, _ = data(k, width, n=80, seed=9)
    np.testing.assert_array_equal(loaded.predict_proba(logits), cal.predict_proba(logits))
    assert loaded.get_params() == cal.get_params()
    assert loaded.scores_ == cal.scores_


@pytest.mark.parametrize("name", METHODS)
def test_absent_class(name: str) -> None:
    logits, y = data(4)
    present = y != 2
    cal = fit_quietly(make(name), logits[present], y[present])
    p = cal.predict_proba(logits)
    assert_probabilities(p, logits.shape)
    # Absent from the calibration set is no proof of impossible: the class may still be predicted.
    assert (p[:, 2] > 0).any()


@pytest.mark.parametrize("name", PATIENT)
def test_duplicate_rows(name: str) -> None:
    logits, y = data(3, n=40)
    cal = fit_quietly(make(name), np.repeat(logits, 4, axis=0), np.repeat(y, 4))
    assert_probabilities(cal.predict_proba(logits), logits.shape)


@pytest.mark.parametrize("name", PATIENT)
def test_all_rows_equal(name: str) -> None:
    logits = np.tile([0.5, 2.0, -1.0], (60, 1))
    cal = fit_quietly(make(name), logits, np.arange(60) % 3)
    assert_probabilities(cal.predict_proba(logits[:2]), (2, 3))


@pytest.mark.parametrize("name", METHODS)
def test_one_sample_per_class(name: str) -> None:
    logits, _ = data(10, n=10)
    cal = fit_quietly(make(name), logits, np.arange(10))
    assert_probabilities(cal.predict_proba(logits), (10, 10))


@pytest.mark.parametrize("labels", ["right", "wrong"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", PATIENT)
def test_labels_all_right_or_all_wrong_at_any_scale(name: str, scale: float, labels: str) -> None:
    logits, _ = data(3, n=60)
    y = logits.argmax(axis=1) if labels == "right" else logits.argmin(axis=1)
    cal = fit_quietly(make(name), logits * scale, y)
    assert_probabilities(cal.predict_proba(logits * scale), logits.shape)


@pytest.mark.parametrize("name", PATIENT)
def test_worse_than_before_is_said(name: str) -> None:
    """A warning is given exactly when the recorded NLL rose."""
    for k, scale in ((2, 1.0), (3, 1.0), (10, 2.5)):
        logits, y = synthetic(120, k, scale=scale, seed=4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cal = make(name).fit(logits, y)
        rose = cal.scores_["after"]["nll"] > cal.scores_["before"]["nll"] * (1 + 1e-6) + 1e-12
        assert rose == any("worse than before" in str(w.message) for w in caught)
        assert cal.converged_ == (not any(_is_convergence(w, cal) for w in caught))


def _is_convergence(warning: warnings.WarningMessage, cal: Any) -> bool:
    text = str(warning.message)
    return (
        issubclass(warning.category, hcal.CalibrationWarning)
        and text.startswith(f"{cal.name}:")
        and "worse than before" not in text
    )


def test_a_fit_that_worsens_its_own_set_warns() -> None:
    logits, y = synthetic(400, 3, scale=1.0)
    with pytest.warns(hcal.CalibrationWarning, match="worse than before"):
        hcal.make_calibrator("hb", bins=1).fit(logits, y)


BAD_FITS = {
    "NaN": (lambda z, y: (np.where(np.eye(len(z), z.shape[1]) > 0, np.nan, z), y), "NaN, first at row 0"),
    "infinite": (lambda z, y: (np.where(np.eye(len(z), z.shape[1]) > 0, np.inf, z), y), "infinite value"),
    "three dimensions": (lambda z, y: (z[None], y), "must have shape"),
    "empty": (lambda z, y: (z[:0], y[:0]), "empty"),
    "one column": (lambda z, y: (z[:, :1], y), "at least 2 classes"),
    "label too large": (lambda z, y: (z, np.where(np.arange(len(y)) == 3, 99, y)), "row 3 is 99"),
    "label negative": (lambda z, y: (z, np.where(np.arange(len(y)) == 3, -1, y)), "row 3 is -1"),
    "label fractional": (lambda z, y: (z, y + 0.5), "integers"),
    "labels missing": (lambda z, y: (z, y[:-1]), "labels for"),
}


@pytest.mark.parametrize("case", BAD_FITS)
@pytest.mark.parametrize("name", METHODS)
def test_bad_input_is_refused_by_name(name: str, case: str) -> None:
    spoil, message = BAD_FITS[case]
    cal = make(name)
    with pytest.raises(ValueError, match=message):
        cal.fit(*spoil(*data(3, n=30)))
    with pytest.raises(NotFittedError):
        cal.predict_proba(data(3, n=2)[0])


@pytest.mark.parametrize("name", METHODS)
def test_prediction_refuses_another_number_of_classes(name: str) -> None:
    with pytest.raises(ValueError, match="2 classes, but the calibrator was fitted on 3"):
        fitted(name, 3).predict_proba(data(2, n=4)[0])


@pytest.mark.parametrize("name", METHODS)
def test_probs_that_do_not_sum_to_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="row 0 sums to"):
        make(name, input="probs").fit(np.full((6, 3), 0.5), np.arange(6) % 3)


@pytest.mark.parametrize("name", METHODS)
def test_unknown_parameter_lists_the_valid_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"has no parameter 'nonsense'; valid parameters: .*input"):
        make(name, nonsense=1)


@pytest.mark.parametrize("name", METHODS)
def test_sample_weight_equals_repetition_or_is_refused(name: str) -> None:
    logits, y = data(3, n=90)
    weight = np.arange(90) % 3
    cal = make(name)
    if not cal.weighted:
        with pytest.raises(ValueError, match="does not support sample_weight"):
            cal.fit(logits, y, sample_weight=weight)
        return
    # A shortened search stops before its optimum, at a point that depends on rounding: defaults here.
    cal = fit_quietly(hcal.make_calibrator(name), logits, y, sample_weight=weight)
    repeated = fit_quietly(
        hcal.make_calibrator(name), np.repeat(logits, weight, axis=0), np.repeat(y, weight)
    )
    # Sums in another order: equal to rounding, and to the tolerance of the iterative solvers.
    np.testing.assert_allclose(cal.predict_proba(logits), repeated.predict_proba(logits), rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_thousand_classes(name: str) -> None:
    logits, y = data(1000, "float32", n=300)
    cal = fit_quietly(make(name), logits, y)
    assert_probabilities(cal.predict_proba(logits), logits.shape)
