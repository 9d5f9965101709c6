"""What a fitted calibrator is, in memory and in a file: maps that keep their declaration, names, class frequencies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.maps.base import MANY_ROWS
from hcal.methods import files, get_calibrator
from hcal.methods.parameters import check_params
from hcal.methods.prior import estimate_frequencies
from hcal.solvers.temperature import SolvedTemperature
from helpers import fit_quietly, quick, synthetic

METHODS = hcal.list_calibrators()
NAMES = ["cat", "dog", "eel", "fox"]
LOGITS, CODES = synthetic()
Y = np.array(NAMES)[CODES]

Fit = Callable[..., Any]


# -- files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_tampered_file_is_refused_or_gives_probabilities(name: str, fitted: Fit) -> None:
    """Every array of every method with NaN, another shape, other extremes: refused, or sound rows."""
    header, arrays = files.describe(fitted(name, 3))
    header = json.loads(json.dumps(header))
    x = synthetic(6, 3, seed=3)[0]
    x[0], x[1, 0], x[2, 1] = 0, 1e20, -1e20
    # Many rows are predicted by a compiled kernel.
    forms = (x, x.astype(np.float32), np.resize(x, (MANY_ROWS, 3)).astype(np.float32))
    for key, array in arrays.items():
        if key.startswith("fitted_on."):
            continue
        one_more = np.append(array.ravel(), array.ravel()[:1])
        spoiled: list[Any] = [one_more, array.astype(np.float32)]
        if array.size:
            is_float = array.dtype == np.float64
            extremes = (
                (np.nan, np.inf, -1e300, 1e290, 1e99, 1e-99, 0.0) if is_float else (-1, 2**40, 0)
            )
            spoiled += [np.full_like(array, value) for value in extremes]
            spoiled += [array[::-1].copy() if array.ndim else array * 3]
        others = {k: a for k, a in arrays.items() if k != key}
        for change in [{}, *({key: value} for value in spoiled)]:
            try:
                cal = files.rebuild(header, others | change)
            except (ValueError, KeyError):
                continue
            for scores in forms:
                with np.errstate(all="ignore"):
                    p = cal.predict_proba(scores)
                assert np.isfinite(p).all(), (key, change)
                sums = p.sum(axis=1, dtype=np.float64)
                assert (np.abs(sums - 1) < 1e-6).all(), (key, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "no such method"}, "is not registered here"),
        ({"params": {"folds": 3}}, "'ts' has no parameter 'folds'"),
        (
            {"map": {"type": "Curves"}},
            "the map is of type 'Curves', declared is one of Temperature",
        ),
        ({"preserves": "everything"}, "'preserves' is 'everything'"),
        ({"kind": "scores"}, "input must be one of"),
        ({"fit": {"frequencies": [0.5, 0.6]}}, "'fit.frequencies' must be K numbers"),
        ({"fit": {"frequencies": None}}, "'fit.frequencies' must be K numbers"),
        ({"fit": {"prior": [1.0]}}, "'fit.prior' must be K numbers"),
        ({"fit": {"before": 1}}, "'fit.before' must be an object of numbers"),
        ({"fit": {"converged": "yes"}}, "'fit.converged' must be true or false"),
        ({"fit": {"rows": 3.0}}, "'fit.rows' must be a whole number"),
        ({"fit": {"names": ["cat", "cat", "dog", "eel"]}}, "two classes are named 'cat'"),
        ({"fit": {"names": ["cat", 1, "dog", "eel"]}}, "all text or all integers"),
        ({"fit": {"notes": "text"}}, "'fit.notes' must be a list of texts"),
        ({"fit": {"score_range": [1.0, 0.0]}}, "'fit.score_range' must be two ascending numbers"),
        ({"fit": {"surprise": 1}}, "'fit.surprise' is not an entry of a fit"),
    ],
)
def test_a_tampered_header_is_refused(change: dict[str, Any], message: str) -> None:
    header, arrays = files.describe(hcal.make_calibrator("ts").fit(LOGITS, CODES))
    header = json.loads(json.dumps(header))
    fit = change.pop("fit", {})
    with pytest.raises(ValueError, match=message):
        files.rebuild(header | change | {"fit": header["fit"] | fit}, arrays)


# -- parameters ---------------------------------------------------------------------------------------


def test_parameters_pass_through_json_and_are_checked() -> None:
    for name in METHODS:
        params = quick(name).get_params()
        assert check_params(get_calibrator(name), json.loads(json.dumps(params))) == params
    for name, param, value, rule in (
        ("gp", "samples", 60_000_000, r"an integer in \[0, 10000\]"),
        ("gp", "samples", -1, r"an integer in \[0, 10000\]"),
        ("gp", "samples", 1.5, "an integer"),
        ("imax", "random_state", -1, "an integer in"),
        ("imax", "random_state", 2**32, "an integer in"),
        ("imax", "bins", 1, "an integer of at least 2"),
        ("hb", "bins", 0, "an integer of at least 1"),
        ("hb", "bins", True, "an integer of at least 1"),
        ("hb", "floor", float("nan"), "a number of at least 0 or None"),
        ("iso", "floor", float("inf"), "a number of at least 0 or None"),
        ("dec", "floor", 0.6, r"a number in \[0, 0.5\] or None"),
        ("lece", "fraction", 0.0, r"a number in \(0, 1\] or None"),
        ("lece", "threshold", 1.5, r"a number in \[0, 1\] or None"),
        ("softbin", "tau", 0, "a number above 0"),
        ("hb", "input", "guess", "'logits' or 'probs' or 'log_probs'"),
        ("diag", "hidden", [2, "x"], "a tuple of an integer of at least 1"),
        ("diag", "early_stopping", 2, "True or False"),
        (
            "ms",
            "penalty",
            [0.1, 0.2, 0.3],
            "a tuple of a number of at least 0 and a number of at least 0 or None",
        ),
        ("ms", "features", "other", "'logits' or 'probs'"),
        ("h", "maps", 3, "text or a tuple of text"),
        ("h", "batch_size", 0, "an integer of at least 1 or None"),
    ):
        message = f"^parameter '{param}' of '{name}' must be {rule}.*, got"
        with pytest.raises(ValueError, match=message):
            check_params(get_calibrator(name), {param: value})
        with pytest.raises(ValueError, match=message):
            hcal.make_calibrator(name, **{param: value}).fit(LOGITS, CODES)
    for name, param, value in (
        ("gp", "samples", 0),
        ("lece", "fraction", 1),
        ("imax", "random_state", 2**32 - 1),
    ):
        assert check_params(get_calibrator(name), {param: value}) == {param: value}
    assert check_params(get_calibrator("diag"), {"hidden": [2, 10]}) == {"hidden": (2, 10)}
    with_numpy_integer = hcal.make_calibrator("diag", hidden=(2,), max_iterations=np.int64(5))
    fit_quietly(with_numpy_integer, LOGITS, CODES)


def test_your_own_method_is_a_class(tmp_path: Path) -> None:
    from hcal.methods._scaling import OneTemperature

    class Half(OneTemperature):
        name, title = "half", "Half"

        def _fit(self, rows: Any) -> Any:
            return self._solution(SolvedTemperature(0.5, True, ""))

    hcal.register(Half)
    hcal.save(hcal.make_calibrator("half").fit(LOGITS, CODES), tmp_path / "m.hcal")
    probs = hcal.load(tmp_path / "m.hcal").predict_proba(LOGITS)
    np.testing.assert_allclose(probs, hcal.softmax(LOGITS / 2), atol=1e-15)


# -- names of classes ---------------------------------------------------------------------------------


def test_names_of_classes_are_kept(tmp_path: Path) -> None:
    for name in ("ts", "iso", "vs"):
        named = fit_quietly(hcal.make_calibrator(name), LOGITS, Y, classes=NAMES)
        plain = fit_quietly(hcal.make_calibrator(name), LOGITS, CODES)
        np.testing.assert_array_equal(named.predict_proba(LOGITS), plain.predict_proba(LOGITS))
        np.testing.assert_array_equal(named.predict(LOGITS), np.array(NAMES)[plain.predict(LOGITS)])
        assert named.score(LOGITS, Y) == plain.score(LOGITS, CODES)
        hcal.save(named, tmp_path / "m.hcal")
        assert hcal.load(tmp_path / "m.hcal").classes_.tolist() == NAMES
        assert plain.classes_.tolist() == [0, 1, 2, 3]
    classes = [3, 13, 23, 33]
    numbers = hcal.make_calibrator("ts").fit(LOGITS, CODES * 10 + 3, classes=classes)
    assert set(numbers.predict(LOGITS).tolist()) <= {3, 13, 23, 33}


def test_what_is_unclear_about_names_is_refused() -> None:
    cal = hcal.make_calibrator("ts").fit(LOGITS, Y, classes=NAMES)
    with pytest.raises(ValueError, match="y has"):
        cal.fit(LOGITS, CODES[:-1])
    assert not hasattr(cal, "fit_")
    with pytest.raises(ValueError, match="say which column is which class"):
        hcal.make_calibrator("ts").fit(LOGITS, Y)
    with pytest.raises(ValueError, match="classes has 3 names for 4 classes"):
        hcal.make_calibrator("ts").fit(LOGITS, Y, classes=NAMES[:3])
    with pytest.raises(ValueError, match=r"row \d+ is 'fox', no class of cat, dog, eel, bee"):
        hcal.make_calibrator("ts").fit(LOGITS, Y, classes=[*NAMES[:3], "bee"])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_columns_of_a_frame_name_the_classes(library: str) -> None:
    module = pytest.importorskip(library)
    frame = module.DataFrame({name: LOGITS[:, k] for k, name in enumerate(NAMES)})
    assert hcal.make_calibrator("ts").fit(frame, Y).classes_.tolist() == NAMES
    assert hcal.make_calibrator("ts").fit(frame, CODES).fit_.names is None


# -- other class frequencies --------------------------------------------------------------------------


def drawn(n: int, frequencies: list[float], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of Gaussian classes with the given frequencies; logits of the model for even ones."""
    rng = np.random.default_rng(seed)
    k = len(frequencies)
    y = rng.choice(k, n, p=frequencies)
    scores = rng.normal(size=(n, k)) + 2.0 * np.eye(k)[y]
    return 2.0 * scores, y


def test_known_and_learned_frequencies_undo_a_shift(tmp_path: Path) -> None:
    z, y = drawn(4000, [0.6, 0.3, 0.1], 0)
    new, y_new = drawn(6000, [0.1, 0.2, 0.7], 1)
    cal = hcal.make_calibrator("svs").fit(z, y)
    with_true_frequencies = cal.with_prior([0.1, 0.2, 0.7])
    learned = cal.with_prior_from(new)
    calibrators = (cal, with_true_frequencies, learned)
    plain, *others = (hcal.metrics.nll(c.predict_proba(new), y_new) for c in calibrators)
    assert max(others) < 0.9 * plain
    np.testing.assert_allclose(learned.fit_.prior, [0.1, 0.2, 0.7], atol=0.03)
    hcal.save(with_true_frequencies, tmp_path / "m.hcal")
    again = hcal.load(tmp_path / "m.hcal")
    np.testing.assert_array_equal(
        again.predict_proba(new), with_true_frequencies.predict_proba(new)
    )
    same = cal.with_prior(cal.fit_.frequencies).predict_proba(z)
    np.testing.assert_allclose(same, cal.predict_proba(z), atol=1e-12)
    reweighted = cal.with_prior([1, 2, 3]).with_prior([3, 2, 1])
    twice = reweighted.predict_proba(z)
    expected = cal.with_prior([3, 2, 1]).predict_proba(z)
    np.testing.assert_array_equal(twice, expected)
    ts = hcal.make_calibrator("ts").fit(z, y)
    assert ts.with_prior([1, 1, 1]).preserves is None
    assert ts.preserves == "order"


def test_bad_frequencies_are_refused() -> None:
    cal = hcal.make_calibrator("ts").fit(*drawn(100, [0.6, 0.3, 0.1], 0))
    for frequencies, words in (
        ([0.5, 0.5], "one number for each"),
        ([1, -1, 1], "not negative"),
        ([0, 0, 0], "not all 0"),
        ([np.nan, 1, 1], "finite"),
    ):
        with pytest.raises(ValueError, match=words):
            cal.with_prior(frequencies)
    z, y = drawn(100, [0.6, 0.4, 0.0], 0)
    cal = hcal.make_calibrator("ts").fit(z, y)
    with pytest.raises(ValueError, match="class 2 has no calibration row"):
        cal.with_prior([1, 1, 1])
    assert cal.with_prior([1, 1, 0]).predict_proba(z)[:, 2].max() == 0


def test_em_finds_frequencies_of_exact_probabilities() -> None:
    rng = np.random.default_rng(0)
    signs = 2.0 * rng.choice(2, 20_000, p=[0.2, 0.8]) - 1.0
    odds = 2.0 * rng.normal(signs)  # of even classes
    probs = 1 / (1 + np.exp(np.stack([odds, -odds], axis=1)))
    frequencies = estimate_frequencies(probs, np.array([0.5, 0.5]))
    np.testing.assert_allclose(frequencies, [0.2, 0.8], atol=0.01)
