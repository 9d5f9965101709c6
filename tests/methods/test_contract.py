"""The common table: what every registered calibrator promises, tested on all of them. A new method needs no line."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import hcal
from hcal.maps.base import MANY_ROWS
from helpers import fit_quietly, quick, synthetic

METHODS = hcal.list_calibrators()
#: (classes, float width) of the fits that the table looks at.
CELLS = [(2, "float64"), (3, "float32"), (3, "float64"), (30, "float32")]
#: Methods that train networks or pools for seconds: their table is that of three classes.
PATIENT = {"h", "pool", "diag", "gp"}

Fit = Callable[..., Any]


def cells(name: str) -> list[tuple[int, str]]:
    return [c for c in CELLS if c[0] == 3] if name in PATIENT else CELLS


def hostile(k: int, width: str) -> np.ndarray:
    """Logits made to break order: ties, neighbours one ulp apart, and scales from 1e-4 to 1e4."""
    rng = np.random.default_rng(1)
    scales = rng.permutation(np.repeat([1e-4, 1e-2, 1.0, 10.0, 1e2, 1e4], 8))
    z = rng.normal(size=(len(scales), k)) * scales[:, None]
    z = z.astype(width)
    z[::4, 1] = z[::4, 0]
    infinity = z.dtype.type(np.inf)
    z[1::4, 0] = np.nextafter(z[1::4, 1], infinity)
    z[2::4, 1] = np.nextafter(z[2::4].max(axis=1), infinity)
    z[3] = 0
    z[7] = np.where(np.arange(k) % 2, 1e4, -1e4)
    return np.clip(z, -1e4, 1e4)


def assert_probabilities(p: np.ndarray, like: np.ndarray) -> None:
    assert p.shape == like.shape
    assert (np.isfinite(p) & (p >= 0)).all()
    assert np.abs(p.sum(axis=1, dtype=np.float64) - 1).max() < 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_rows_are_probabilities_and_claims_of_preservation_hold(name: str, fitted: Fit) -> None:
    for k, width in cells(name):
        cal = fitted(name, k, width)
        z = hostile(k, width)
        p = cal.predict_proba(z)
        assert p.dtype == z.dtype
        assert_probabilities(p, z)
        if cal.preserves is not None and (k > 2 or cal.preserves == "accuracy"):
            np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))
        if cal.preserves == "order":
            along = np.take_along_axis(p, np.argsort(z, axis=1, kind="stable"), axis=1)
            rises = np.diff(np.sort(z, axis=1), axis=1) > 0
            # A class may equal its better (floats end somewhere) but never beat any class above it.
            from_the_right = np.minimum.accumulate(along[:, ::-1], axis=1)
            above = from_the_right[:, ::-1][:, 1:]
            assert not (rises & (along[:, :-1] > above)).any()


@pytest.mark.parametrize("name", METHODS)
def test_float32_scores_of_a_fit_on_tiny_logits_give_its_probabilities(name: str) -> None:
    """The inverse temperature is beyond float32: of few rows, and of many, which a kernel may predict."""
    logits, y = synthetic(90, 3, seed=5)
    tiny = (1e-40 * logits).astype(np.float32)
    wide = tiny.astype(np.float64)
    calibrator = fit_quietly(quick(name), wide, y)
    expected = calibrator.predict_proba(wide)
    np.testing.assert_allclose(calibrator.predict_proba(tiny), expected, atol=1e-6)
    many = calibrator.predict_proba(np.resize(tiny, (MANY_ROWS, 3)))
    np.testing.assert_allclose(many, np.resize(expected, many.shape), atol=1e-6)
    torch = pytest.importorskip("torch")
    head = importlib.import_module("hcal.integrations.torch").CalibrationHead(calibrator)
    np.testing.assert_allclose(head(torch.as_tensor(tiny)).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_files_keep_everything(name: str, fitted: Fit, tmp_path: Path) -> None:
    for k, width in cells(name):
        cal = fitted(name, k, width)
        path = tmp_path / f"{k}.hcal"
        hcal.save(cal, path)
        loaded = hcal.load(path)
        z = synthetic(40, k, seed=9)[0].astype(width)
        np.testing.assert_array_equal(loaded.predict_proba(z), cal.predict_proba(z))
        assert loaded.get_params() == cal.get_params()
        assert loaded.fit_.to_json() == cal.fit_.to_json()
        assert loaded.preserves == cal.preserves


@pytest.mark.parametrize("name", METHODS)
def test_torch_computes_the_same_formula(name: str, fitted: Fit) -> None:
    """One formula: 1e-12 in float64; a row with NaN or +inf comes out NaN, one −inf is a class that cannot be."""
    torch = pytest.importorskip("torch")
    from hcal.integrations.torch import MapModule

    for k, width in cells(name):
        if width == "float32" and k == 3:
            continue
        cal = fitted(name, k, width)
        usual = synthetic(40, k, seed=5)[0]
        z = np.concatenate([usual, hostile(k, "float64")[:20]])
        module = MapModule(cal.prediction_, torch.float64)
        of_torch = module(torch.from_numpy(z)).numpy()
        np.testing.assert_allclose(of_torch, cal.prediction_(z), rtol=0, atol=2e-12)
        odd = torch.zeros(4, k, dtype=torch.float64)
        odd[0, 1] = torch.nan
        odd[1, 0] = torch.inf
        odd[2, 1] = -torch.inf
        odd[3] = -torch.inf
        p = module(odd)
        assert torch.isnan(p[[0, 1, 3]]).all()
        assert torch.isfinite(p[2]).all()


@pytest.mark.parametrize("name", METHODS)
def test_the_same_fit_whatever_the_library_and_the_run(name: str, fitted: Fit) -> None:
    torch = pytest.importorskip("torch")
    z, y = synthetic(160, 3)
    again = fit_quietly(clone(quick(name)), torch.from_numpy(z), torch.from_numpy(y))
    p = again.predict_proba(torch.from_numpy(z))
    assert isinstance(p, torch.Tensor)
    expected = fitted(name, 3).predict_proba(z)
    np.testing.assert_array_equal(p.numpy(), expected)


#: Calibration sets on which estimates run to their bounds.
SITUATIONS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "a class absent": lambda z, y: (z[y != 2], y[y != 2]),
    "one class only": lambda z, y: (z, np.zeros_like(y)),
    "every label right": lambda z, y: (z, z.argmax(axis=1)),
    "every label wrong": lambda z, y: (z, z.argmin(axis=1)),
    "tiny logits": lambda z, y: (z * 1e-8, y),
    "huge logits": lambda z, y: (z * 1e6, z.argmin(axis=1)),
    "all rows equal": lambda z, y: (np.tile([0.5, 2.0, -1.0, 0.0], (len(y), 1)), y),
    "copies": lambda z, y: (np.repeat(z[:20], 4, axis=0), np.repeat(y[:20], 4)),
    "one row a class": lambda z, y: (z[:4], np.arange(4)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_hard_calibration_sets_give_probabilities(name: str) -> None:
    """And a map that keeps its declaration, since that is checked when it is made."""
    z, y = synthetic(70, 4)
    for situation, change in SITUATIONS.items():
        x, labels = change(z, y)
        p = fit_quietly(quick(name), x, labels).predict_proba(x[:30])
        assert_probabilities(p, x[:30])
        if (
            situation == "a class absent"
        ):  # no proof of impossible: the class may still be predicted
            assert (p[:, 2] > 0).any()


@pytest.mark.parametrize("name", METHODS)
def test_worse_than_before_and_not_converged_are_said(name: str) -> None:
    for k, scale in ((2, 1.0), (3, 2.5)):
        z, y = synthetic(120, k, scale=scale, seed=4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cal = quick(name).fit(z, y)
        warnings_given = [
            str(w.message) for w in caught if issubclass(w.category, hcal.CalibrationWarning)
        ]
        rose = cal.fit_.after["nll"] > cal.fit_.before["nll"] * (1 + 1e-6) + 1e-12
        assert rose == any("worse than before" in words for words in warnings_given)
        assert cal.converged_ == all("worse than before" in words for words in warnings_given)
    with pytest.warns(hcal.CalibrationWarning, match="worse than before"):
        hcal.make_calibrator("hb", bins=1).fit(*synthetic(400, 3, scale=1.0))


BAD_FITS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]] = {
    "NaN, first at row 0": lambda z, y: (np.where(np.eye(*z.shape) > 0, np.nan, z), y),
    "infinite value": lambda z, y: (np.where(np.eye(*z.shape) > 0, np.inf, z), y),
    "must have shape": lambda z, y: (z[None], y),
    "empty": lambda z, y: (z[:0], y[:0]),
    "at least 2 classes": lambda z, y: (z[:, :1], y),
    "row 3 is 99": lambda z, y: (z, np.where(np.arange(len(y)) == 3, 99, y)),
    "row 3 is -1": lambda z, y: (z, np.where(np.arange(len(y)) == 3, -1, y)),
    "integers": lambda z, y: (z, y + 0.5),
    "labels for": lambda z, y: (z, y[:-1]),
}


@pytest.mark.parametrize("name", METHODS)
def test_bad_input_is_refused_by_name(name: str, fitted: Fit) -> None:
    z, y = synthetic(30, 3)
    for message, spoil in BAD_FITS.items():
        cal = quick(name)
        with pytest.raises(ValueError, match=message):
            cal.fit(*spoil(z, y))
        with pytest.raises(NotFittedError):
            cal.predict_proba(z)
    with pytest.raises(ValueError, match="2 classes, but the calibrator was fitted on 3"):
        fitted(name, 3).predict_proba(z[:, :2])
    with pytest.raises(ValueError, match="row 0 sums to"):
        quick(name, input="probs").fit(np.full((6, 3), 0.5), np.arange(6) % 3)
    with pytest.raises(ValueError, match=r"has no parameter 'nonsense'; valid parameters: .*input"):
        hcal.make_calibrator(name, nonsense=1)


@pytest.mark.parametrize("name", METHODS)
def test_parameters_of_another_type_are_refused_by_name(name: str) -> None:
    z = np.eye(3)[np.arange(30) % 3] * 2
    y = np.arange(30) % 3
    for param in hcal.make_calibrator(name).get_params():
        for odd in ([1, 2, "a"], object(), "no such thing"):
            if (param, odd) == ("device", "no such thing"):
                continue  # a word: torch knows the devices
            calibrator = hcal.make_calibrator(name, **{param: odd})
            with pytest.raises(ValueError, match=param.rstrip("s")):
                calibrator.fit(z, y)
            assert not hasattr(calibrator, "map_")


def forest(n: int, k: int, *, trees: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Votes of few trees: probabilities are multiples of 1/trees, many of them 0; a true class may get 0."""
    z, y = synthetic(n, k, seed=seed)
    return np.random.default_rng(seed).multinomial(trees, hcal.softmax(z)) / trees, y


@pytest.mark.parametrize("name", [m for m in METHODS if m != "uncal"])
def test_no_true_class_is_impossible(name: str) -> None:
    """A probability of 0 is a small number that was rounded: its floor is learned and used."""
    for k in (2, 4):
        probs, y = forest(200, k)
        new, y_new = forest(1000, k, seed=1)
        of_true_class = np.arange(1000), y_new
        assert new[of_true_class].min() == 0
        cal = fit_quietly(quick(name, input="probs"), probs, y)
        assert float(cal.prediction_.floor) == pytest.approx(0.025)
        assert cal.predict_proba(new)[of_true_class].min() > 0


def test_the_floor_keeps_the_ranking_and_is_the_same_for_log_probs() -> None:
    probs, y = forest(300, 2)
    small = np.array([0.4, 0.1, 0.05, 0.04, 1e-3, 1e-6, 1e-12, 1e-25, 1e-37, 0.0])
    for width in ("float32", "float64"):
        cal = fit_quietly(hcal.make_calibrator("ts", input="probs"), probs.astype(width), y)
        new = np.stack([small, 1 - small], axis=1).astype(width)
        p = cal.predict_proba(new)[:, 0]
        assert (np.diff(p) <= 0).all()
        assert (np.diff(p)[:6] < 0).all()
        assert p[-1] > 0
    with np.errstate(divide="ignore"):
        logs = np.log(probs)
    other = fit_quietly(hcal.make_calibrator("ts", input="log_probs"), logs, y)
    np.testing.assert_allclose(other.predict_proba(logs), cal.predict_proba(probs), rtol=1e-9)
    uncal = hcal.make_calibrator("uncal", input="probs").fit(probs, y)
    np.testing.assert_allclose(uncal.predict_proba(probs), probs, rtol=0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_thousand_classes(name: str) -> None:
    z, y = synthetic(300, 1000)
    cal = fit_quietly(quick(name), z.astype(np.float32), y)
    assert_probabilities(cal.predict_proba(z), z)
