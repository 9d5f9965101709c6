"""Properties of every method on made-up calibration sets at the edges: ``--count`` cases from ``--seed``.

Each case is drawn from its own number: extreme, subnormal, tied, constant and discrete scores, exact zeros,
one class, absent classes, K = 2, N = 1, weights with zeros, fractions and huge counts, any dtype and stride.
All are legal: a fit must end without an error or a warning that is not a ``CalibrationWarning``, and give
probabilities that are finite, in [0, 1], sum to 1, keep what the method promises, and do not depend on the
rows beside them.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import hcal
from helpers import quick

Draw = Callable[[np.random.Generator, int, int], np.ndarray]

#: Seconds that a fit of these sizes may take on a busy machine; the slowest takes two on an idle one.
PATIENCE = 60.0


def far_apart(weight: np.ndarray) -> np.ndarray:
    """Return weights hundreds of digits apart, of which the largest is not so small that it is refused."""
    return weight if weight.max() > 1e-90 else weight / weight.max()


def _mixed(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    scales = [0.0, 5e-324, 1e-310, 1e-300, 1e-8, 1.0, 30.0, 800.0, 1e5, 1e150, 1e308]
    scale = rng.choice(scales, size=(n, 1))
    return np.clip(rng.normal(size=(n, k)), -1.5, 1.5) * scale


def _outlier(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    z = rng.normal(size=(n, k))
    z[rng.integers(n), rng.integers(k)] *= 10.0 ** rng.integers(3, 300)
    return z


#: How the scores look; as logits.
SCORES: dict[str, Draw] = {
    "normal": lambda rng, n, k: rng.normal(size=(n, k)) * 3,
    "votes": lambda rng, n, k: np.log(rng.multinomial(6, np.full(k, 1 / k), size=n) + 0.5),
    "ties": lambda rng, n, k: rng.integers(-2, 3, size=(n, k)).astype(np.float64),
    "mixed scales": _mixed,
    "last bits": lambda rng, n, k: 1.0 + rng.integers(0, 3, size=(n, k)) * np.finfo(np.float64).eps,
    "one outlier": _outlier,
    "constant rows": lambda rng, n, k: np.repeat(rng.normal(size=(n, 1)), k, axis=1),
    "one row again and again": lambda rng, n, k: np.repeat(rng.normal(size=(1, k)), n, axis=0),
    "zeros": lambda _, n, k: np.zeros((n, k)),
    "saturated": lambda rng, n, k: rng.choice([-1e4, 0.0, 1e4], size=(n, k)),
    "largest floats": lambda rng, n, k: rng.choice([-1.7e308, 1.7e308, 0.0], size=(n, k)),
    "subnormal": lambda rng, n, k: rng.integers(-9, 9, size=(n, k)) * 5e-324,
    "tiny": lambda rng, n, k: rng.normal(size=(n, k)) * 1e-300,
    "large constant": lambda rng, n, k: rng.normal(size=(n, k)) + rng.normal(size=(n, 1)) * 1e7,
}

LABELS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "any": lambda rng, z: rng.integers(0, z.shape[1], len(z)),
    "one class": lambda rng, z: np.full(len(z), rng.integers(z.shape[1])),
    "last class absent": lambda rng, z: rng.integers(0, z.shape[1] - 1, len(z)),
    "right": lambda _, z: z.argmax(axis=1),
    "wrong": lambda _, z: z.argmin(axis=1),
}

WEIGHTS: dict[str, Callable[[np.random.Generator, int], np.ndarray | None]] = {
    "none": lambda _, n: None,
    "counts": lambda rng, n: np.r_[1, rng.integers(0, 4, n - 1)],
    "fractions": lambda rng, n: rng.uniform(0.01, 3, n),
    "sum to one": lambda rng, n: rng.dirichlet(np.ones(n)) + 1e-12,
    "millions": lambda rng, n: rng.uniform(1e6, 1e7, n),
    "one row only": lambda rng, n: np.eye(n)[rng.integers(n)],
    "far apart": lambda rng, n: far_apart(10.0 ** rng.uniform(-200, 12, n)),
}

FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "plain": lambda a: a,
    "float32": lambda a: np.clip(a, -3e38, 3e38).astype(np.float32),
    "float16": lambda a: np.clip(a, -6e4, 6e4).astype(np.float16),
    "integers": lambda a: np.clip(np.rint(a), -1e9, 1e9).astype(np.int64),
    "column-major": np.asfortranarray,
    "reversed twice": lambda a: a[::-1].copy()[::-1],
    "every other row": lambda a: np.repeat(a, 2, axis=0)[::2],
}
#: These cannot hold rows that sum to 1.
NARROW = ("float32", "float16", "integers")


@dataclass(frozen=True)
class Case:
    """One fit: which method, and how its rows look."""

    method: str
    n: int
    k: int
    scores: str
    labels: str
    weights: str
    form: str
    kind: str  # of the input: logits, probs, log_probs
    number: int  # of the draws


def draw_case(number: int, seed: int = 0) -> Case:
    """Return the case of a number."""
    rng = np.random.default_rng([seed, number])
    methods = [name for name in hcal.list_calibrators() if name != "h"]
    if number % 12 == 0:  # a fit takes long
        methods = ["h"]

    def one_of(table: Any) -> Any:
        return list(table)[rng.integers(len(table))]

    method = one_of(methods)
    weighted = (
        hcal.methods.get_calibrator(method).weighted and method != "h"
    )  # h takes whole weights alone
    return Case(
        method,
        int(one_of([1, 2, 3, 5, 10, 40])),
        int(one_of([2, 3, 5, 12])),
        one_of(SCORES),
        one_of(LABELS),
        one_of(WEIGHTS) if weighted else "none",
        one_of(FORMS),
        one_of(["logits", "logits", "probs", "log_probs"]),
        number,
    )


def _scores(case: Case, rng: np.random.Generator, n: int) -> tuple[np.ndarray, Any]:
    """Return logits, and the same as the case hands them over."""
    z = SCORES[case.scores](rng, n, case.k)
    if case.kind == "logits":
        return z, FORMS[case.form](z)
    with np.errstate(all="ignore"):
        p = hcal.softmax(np.clip(z, -1e300, 1e300))  # saturates: exact zeros and ones
        scores = p if case.kind == "probs" else np.log(p)
    return z, scores if case.form in NARROW else FORMS[case.form](scores)


def check(case: Case) -> None:
    """Fit and predict; raise where a promise is broken."""
    rng = np.random.default_rng(case.number)
    z, scores = _scores(case, rng, case.n)
    y = LABELS[case.labels](rng, z)
    weight = WEIGHTS[case.weights](rng, case.n)
    _, new = _scores(case, rng, 7)
    calibrator = quick(case.method, input=case.kind)
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", hcal.CalibrationWarning)
        calibrator.fit(scores, y, sample_weight=weight)
        assert time.monotonic() - began < PATIENCE, "takes too long"
        for rows in (scores, new):
            _check_probabilities(calibrator, rows)


def _check_probabilities(calibrator: Any, rows: Any) -> None:
    p = calibrator.predict_proba(rows)
    assert p.shape == rows.shape, "shape"
    wide = np.asarray(p, dtype=np.float64)
    assert np.isfinite(wide).all(), "not finite"
    assert ((wide >= 0) & (wide <= 1)).all(), "outside [0, 1]"
    slack = 1e-6 if p.dtype != np.float16 else 1e-2
    assert np.abs(wide.sum(axis=1) - 1).max() < slack, "does not sum to 1"
    if calibrator.preserves is not None and p.dtype != np.float16:
        assert (p.argmax(axis=1) == rows.argmax(axis=1)).all(), "argmax"
    alone = np.concatenate([calibrator.predict_proba(row[None]) for row in rows[:3]])
    difference = np.abs(alone.astype(np.float64) - wide[:3]).max()
    rounding = slack * (p.dtype != np.float64)
    assert difference < 1e-9 + rounding, "batch"


def run_case(case: Case) -> str:
    """Return what is wrong with a case, or nothing."""
    try:
        check(case)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
        )
    return ""


def main(count: int, seed: int = 0) -> int:
    """Check many cases; print every one that fails, and how many did by method."""
    failed: Counter[str] = Counter()
    for number in range(count):
        case = draw_case(number, seed)
        fault = run_case(case)
        if fault:
            failed[case.method] += 1
            print(f"{case}\n    {fault}", flush=True)
    print(
        f"calibrators: {count} cases, {sum(failed.values())} failed {dict(failed) or ''}",
        flush=True,
    )
    return 1 if failed else 0
