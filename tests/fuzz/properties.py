"""Properties of every metric and of evaluate, reliability and compare, on made-up predictions at the edges.

Each case is drawn from its own number: extreme and subnormal probabilities, one-hot rows, ties, one class,
absent classes, K = 2, N = 1, weights with zeros, fractions and huge counts; handed over in any dtype,
stride, order and library. A legal case must be answered, without a warning, by numbers that are finite where
they are defined, in range, and the same in whichever form the arrays came. An illegal one must be refused by
a ``ValueError`` of one line that names the array.
"""

from __future__ import annotations

import math
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import calibrators
import numpy as np
import torch

import hcal
from hcal.metrics import METRICS, Sample


@dataclass(frozen=True)
class Case:
    """Legal predictions with their labels and weights."""

    probs: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    words: str


# -- legal cases ------------------------------------------------------------------------------------


def _subnormal(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    p = np.full((n, k), 5e-324) * rng.integers(0, 9, (n, k))
    p[np.arange(n), rng.integers(0, k, n)] = 1.0
    return p


def _near_zero_one(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    p = np.full((n, k), np.finfo(np.float64).eps / k)
    p[np.arange(n), rng.integers(0, k, n)] = 1.0
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _tied(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    p = rng.integers(0, 3, (n, k)).astype(float)
    p[:, 0] += p.sum(axis=1) == 0
    return np.asarray(p / p.sum(axis=1, keepdims=True))


PREDICTIONS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "plain": lambda rng, n, k: hcal.softmax(2 * rng.normal(size=(n, k))),
    "sharp": lambda rng, n, k: hcal.softmax(300 * rng.normal(size=(n, k))),
    "extreme": lambda rng, n, k: hcal.softmax(1e4 * rng.normal(size=(n, k))),
    "one-hot": lambda rng, n, k: np.eye(k)[rng.integers(0, k, n)],
    "one class": lambda rng, n, k: np.tile(np.eye(k)[0], (n, 1)),
    "uniform": lambda rng, n, k: np.full((n, k), 1 / k),
    "tied": _tied,
    "subnormal": _subnormal,
    "near 0 and 1": _near_zero_one,
    "equal rows": lambda rng, n, k: np.tile(hcal.softmax(rng.normal(size=(1, k))), (n, 1)),
    "dirichlet": lambda rng, n, k: rng.dirichlet(np.full(k, 0.05), n) + 0.0,
}
#: Beside those of the calibrators' fuzzer, which are wilder than a sum over rows of any size can bear.
WEIGHTS = {name: draw for name, draw in calibrators.WEIGHTS.items() if name != "far apart"} | {
    "tiny": lambda rng, n: np.full(n, 1e-90),
    "mixed": lambda rng, n: 10.0 ** rng.uniform(-9, 9, n),
}


def draw_case(rng: np.random.Generator) -> Case:
    """Draw one legal case and the words that describe it."""
    n = int(rng.choice([1, 2, 3, 7, 30, 60]))
    k = int(rng.choice([2, 3, 5, 12, 40]))
    kinds = [str(rng.choice(list(table))) for table in (PREDICTIONS, calibrators.LABELS, WEIGHTS)]
    probs = PREDICTIONS[kinds[0]](rng, n, k)
    is_finite = np.isfinite(probs).all(axis=1, keepdims=True)
    probs = np.where(is_finite, probs, 1 / k)  # 0/0 of a Dirichlet draw
    y = calibrators.LABELS[kinds[1]](rng, probs)
    return Case(probs, y, WEIGHTS[kinds[2]](rng, n), f"N={n} K={k} {', '.join(kinds)}")


# -- what every form of the same arrays must give ---------------------------------------------------


def _read_only(a: np.ndarray) -> np.ndarray:
    copy = a.copy()
    copy.flags.writeable = False
    return copy


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda a: a.tolist(),
    **{
        name: calibrators.FORMS[name]
        for name in ("column-major", "reversed twice", "every other row")
    },
    "read-only": _read_only,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "masked, nothing hidden": np.ma.masked_array,
    "torch": lambda a: torch.from_numpy(a.copy()),
    "longdouble": lambda a: a.astype(np.longdouble) if a.dtype.kind == "f" else a,
    "int32": lambda a: a.astype(np.int32) if a.dtype.kind in "iu" else a,
}


def takes(name: str, case: Case) -> bool:
    """Return whether a metric takes the weights of a case."""
    return METRICS[name].takes(Sample(case.probs, case.y, case.weight))


def check_metric(name: str, case: Case, form: str) -> None:
    """Hold one metric against its properties on one case."""
    metric = METRICS[name]
    before = case.probs.copy(), case.y.copy()
    value = metric.function(case.probs, case.y, sample_weight=case.weight)
    assert type(value) is float, f"returned {type(value).__name__}"
    reason = metric.why_undefined(Sample(case.probs, case.y, case.weight))
    assert math.isfinite(value) == (not reason), f"{value}, and undefined because: {reason!r}"
    np.testing.assert_array_equal(before[0], case.probs, "the input was written to")
    np.testing.assert_array_equal(before[1], case.y, "the input was written to")
    if metric.kind == "plug-in" and math.isfinite(value):
        assert value >= 0, f"{value} below 0"
    most = 2.0 if name == "cwece_s" else {"canonical": 2.0, "score": 710.0}.get(metric.level, 1.0)
    if name != "spiegelhalter":  # a standardised score, without a bound
        assert not value > most * (1 + 1e-9), f"{value} above {most}"
    shaped = FORMS[form]
    weight = None if case.weight is None else shaped(case.weight)
    other = metric.function(shaped(case.probs), shaped(case.y), sample_weight=weight)
    # numpy sums other memory layouts in another order.
    assert _close(value, other, 1e-9), f"{value} plain, {other} as {form}"
    of_sample = metric.function(Sample(case.probs, case.y, case.weight))
    assert _close(value, of_sample, 0), f"{value} plain, {of_sample} as Sample"


def _close(a: float, b: float, slack: float) -> bool:
    if math.isnan(a) and math.isnan(b):
        return True
    return abs(a - b) <= slack * max(1.0, abs(a))


def check_repetition(name: str, case: Case) -> None:
    """An integer weight equals that many rows."""
    w = case.weight
    if w is None or w.sum() > 500 or (w != np.rint(w)).any():
        return
    index = np.repeat(np.arange(len(w)), w.astype(int))
    weighted = METRICS[name].function(case.probs, case.y, sample_weight=w)
    repeated = METRICS[name].function(case.probs[index], case.y[index])
    assert _close(weighted, repeated, 1e-7), f"{weighted} by weight, {repeated} by repetition"


def check_evaluate(case: Case, rng: np.random.Generator) -> None:
    """hcal.evaluate answers, prints and agrees with the plain functions."""
    ci = float(rng.choice([0.5, 0.95])) if rng.random() < 0.3 else None
    baseline = case.probs[::-1].copy() if rng.random() < 0.3 else None
    names = [m for m in METRICS if takes(m, case)]
    result = hcal.evaluate(
        case.probs,
        case.y,
        metrics=names,
        confidence=ci,
        sample_weight=case.weight,
        baseline=baseline,
        resamples=20,
    )
    assert list(result.values) == names
    for name in names:
        plain = METRICS[name].function(case.probs, case.y, sample_weight=case.weight)
        assert _close(plain, result[name], 0), f"evaluate says {result[name]}, {name} {plain}"
        ends = result.interval(name)
        if ends is not None and not any(map(math.isnan, ends)):
            assert ends[0] <= ends[1], f"interval {ends} of {name}"
    assert str(result)


def check_reliability(case: Case, rng: np.random.Generator) -> None:
    """hcal.reliability counts every row once, in [0, 1]."""
    level = str(rng.choice(["top-label", "class-wise"]))
    diagram = hcal.reliability(case.probs, case.y, level=level, sample_weight=case.weight)
    total = len(case.y) if case.weight is None else case.weight.sum()
    for curve in diagram.curves:
        assert abs(curve.weight.sum() - total) <= 1e-9 * total, (
            f"{curve.weight.sum()} of {total} rows"
        )
        full = curve.weight > 0
        for part in (curve.predicted[full], curve.observed[full]):
            assert ((part >= -1e-12) & (part <= 1 + 1e-9)).all(), "outside [0, 1]"
    assert diagram.n == len(case.y)


def check_compare(case: Case) -> None:
    """hcal.compare has a line for every method: numbers, or the reason why there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the two parts coincide on purpose
        table = hcal.compare(
            case.probs,
            case.y,
            case.probs,
            case.y,
            methods=["ts", "hb"],
            metrics=["ece_ew", "nll"],
            input="probs",
            n_jobs=1,
            progress=False,
        )
    for name, line in table.to_dict()["methods"].items():
        assert line["error"] or math.isfinite(line["nll"]), f"{name}: no number and no reason"
        assert not line["error"] or line["error"].startswith("ValueError"), (
            f"{name}: {line['error']}"
        )


# -- illegal cases ----------------------------------------------------------------------------------


def _with(a: np.ndarray, value: Any) -> np.ndarray:
    out = a.astype(np.result_type(a, type(value)) if not isinstance(value, complex) else complex)
    out.flat[len(out.flat) // 2] = value
    return np.asarray(out)


def _hidden(a: np.ndarray) -> np.ndarray:
    out = np.ma.masked_array(a.copy())
    out[0] = np.ma.masked
    return out


#: What is wrong -> (which argument, how to spoil it).
ILLEGAL: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
    "NaN": ("probs", lambda p: _with(p, float("nan"))),
    "infinite": ("probs", lambda p: _with(p, float("inf"))),
    "negative": ("probs", lambda p: _with(p, -0.25)),
    "does not sum to 1": ("probs", lambda p: p * 1.01),
    "complex": ("probs", lambda p: _with(p, 1j)),
    "text": ("probs", lambda p: p.astype(str)),
    "objects": ("probs", lambda p: p.astype(object)),
    "three dimensions": ("probs", lambda p: p[None]),
    "no rows": ("probs", lambda p: p[:0]),
    "one column": ("probs", lambda p: np.ones((len(p), 1))),
    "ragged, one row no number": ("probs", lambda p: [*p.tolist()[:-1], ["a"]]),
    "masked probs": ("probs", _hidden),
    "dates": ("probs", lambda p: p.astype("datetime64[s]")),
    "label -1": ("y", lambda y: _with(y, -1)),
    "label K": ("y", lambda y: _with(y, 10**6)),
    "label 0.5": ("y", lambda y: _with(y, 0.5)),
    "label NaN": ("y", lambda y: _with(y, float("nan"))),
    "label huge": ("y", lambda y: _with(y.astype(float), 1e300)),
    "labels of text": ("y", lambda y: y.astype(str)),
    "masked labels": ("y", _hidden),
    "one label more": ("y", lambda y: np.append(y, 0)),
    "labels in a square": ("y", lambda y: np.tile(y, (2, 1))),
    "weight NaN": ("sample_weight", lambda w: _with(w, float("nan"))),
    "weight below 0": ("sample_weight", lambda w: _with(w, -1.0)),
    "weight infinite": ("sample_weight", lambda w: _with(w, float("inf"))),
    "weights all 0": ("sample_weight", lambda w: 0 * w),
    "masked weights": ("sample_weight", _hidden),
    "one weight more": ("sample_weight", lambda w: np.append(w, 1.0)),
    "weights of text": ("sample_weight", lambda w: w.astype(str)),
}


def check_refusal(name: str, case: Case, wrong: str) -> None:
    """An illegal array is refused in one line that names it."""
    which, spoil = ILLEGAL[wrong]
    weight = np.ones(len(case.y))
    arrays = {"probs": case.probs, "y": case.y, "sample_weight": weight}
    arrays[which] = spoil(arrays[which])
    door = hcal.evaluate if name == "evaluate" else METRICS[name].function
    try:
        with np.errstate(all="ignore"):
            answer = door(arrays["probs"], arrays["y"], sample_weight=arrays["sample_weight"])
    except ValueError as error:
        text = str(error)
        assert "\n" not in text, f"{wrong}: more than one line: {text!r}"
        assert which in text, f"{wrong}: does not name {which}: {text!r}"
        return
    raise AssertionError(f"{wrong}: accepted, {answer!r}")


# -- running ----------------------------------------------------------------------------------------


def run_case(number: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Run everything that a case is held against; return counts and the faults found."""
    rng = np.random.default_rng([seed, number])
    case = draw_case(rng)
    form, wrong = (str(rng.choice(list(table))) for table in (FORMS, ILLEGAL))
    door = str(rng.choice([*METRICS, "evaluate"]))
    checks: list[tuple[str, Callable[[], None]]] = []
    for name in METRICS:
        if takes(name, case):
            checks.append((name, lambda name=name: check_metric(name, case, form)))
            checks.append((f"{name} repeated", lambda name=name: check_repetition(name, case)))
    checks.append(("evaluate", lambda: check_evaluate(case, rng)))
    checks.append(("reliability", lambda: check_reliability(case, rng)))
    checks.append((f"refusal by {door}", lambda: check_refusal(door, case, wrong)))
    if number % 20 == 0:
        checks.append(("compare", lambda: check_compare(case)))
    counts = Counter[str]()
    faults = []
    for what, check in checks:
        counts[what.split(" ")[0]] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                check()
        except Exception as error:
            where = "" if isinstance(error, AssertionError) else traceback.format_exc(limit=-2)
            words = f"case {number} ({case.words}; {form}), {what}"
            faults.append(f"{words}: {type(error).__name__}: {error}\n{where}")
    return counts, faults


def main(count: int, seed: int) -> int:
    """Run the cases, print what was found and how much was tried; 1 if there is any fault."""
    total = Counter[str]()
    n_faults = 0
    for number in range(count):
        counts, faults = run_case(number, seed)
        total += counts
        n_faults += len(faults)
        for fault in faults:
            print(fault, flush=True)
    print(f"properties: {count} cases, {sum(total.values())} checks, {n_faults} faults")
    return 1 if n_faults else 0
