"""The paper's ten limitations of earlier methods, each with a demonstration of a second or so.

``python -m studies.limitations`` runs them and writes their table into ``studies/theory.md``; a test runs them
again and compares. Each says what was measured, whether or not it speaks for the paper.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import hcal
from hcal.metrics import dkde_ce, ece_ew, hce, ks, mmce
from studies import sensitivity
from studies.records import read_rows
from studies.synthetic import SyntheticTask, make_synthetic
from studies.theory import World, conditional_error

Array = NDArray[np.float64]
PAGE: Final = Path(__file__).parents[1] / "studies" / "theory.md"
MARKS: Final = ("<!-- limitations: begin -->", "<!-- limitations: end -->")
POOLED_MARKS: Final = ("<!-- pooled: begin -->", "<!-- pooled: end -->")


@dataclass(frozen=True)
class Demonstration:
    """One limitation: its number, what the paper says, what was measured, and what is true of h."""

    number: int
    limitation: str
    result: str
    of_h: str


def labels(true: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw a label for every row of true probabilities (N, K).

    Examples
    --------
    >>> labels(np.array([[0.0, 1.0]] * 3), np.random.default_rng(0))
    array([1, 1, 1])
    """
    above = true.cumsum(axis=1) > rng.random((len(true), 1))
    return np.asarray(above.argmax(axis=1))


def no_link() -> Demonstration:
    """1: the least focal loss is not at the truth."""
    import torch

    from studies.objectives import objective_of

    task = make_synthetic("calibrated", n_cal=4000)
    x = torch.from_numpy(task.logits_cal)
    y = torch.from_numpy(task.y_cal)
    scales = torch.linspace(0.3, 1.5, 61, dtype=torch.float64)
    temperatures = {}
    for name in ("focal", "smoothing", "nll", "h"):
        objective = objective_of(name)
        losses = [float(objective(torch.softmax(scale * x, 1), y)) for scale in scales]
        temperatures[name] = float(scales[int(np.argmin(losses))])
    error = ece_ew(hcal.softmax(temperatures["focal"] * task.logits_test), task.y_test)
    return Demonstration(
        1,
        "objectives by intuition have no link to the error",
        "a calibrated network, one scale to learn (right: 1): focal loss learns "
        f"{temperatures['focal']:.2f} (ECE {error:.2f}), smoothed labels "
        f"{temperatures['smoothing']:.2f}, NLL {temperatures['nll']:.2f}, "
        f"h {temperatures['h']:.2f}",
        "learns the right scale, and so does NLL",
    )


def binned_training() -> Demonstration:
    """2: DIAG's map trained on the binned error itself, as in the paper's appendix."""
    import torch

    from hcal.h_calibration.trainable_maps import build_trainable
    from studies.objectives import objective_of

    task = make_synthetic("temperature", n_cal=1000, n_test=4000)
    x = torch.from_numpy(_log_probs(task.logits_cal))
    y = torch.from_numpy(task.y_cal)
    fresh = torch.from_numpy(_log_probs(task.logits_test))
    results = []
    losses = {"ECE": _binned, "NLL": objective_of("nll"), "h": objective_of("h")}
    for name, loss in losses.items():
        new = build_trainable("monotonic-10", x, random_state=0).to(x.dtype)
        optimiser = torch.optim.Adam(new.parameters(), lr=0.02)
        for _ in range(150):
            optimiser.zero_grad()
            loss(new(x), y).backward()
            optimiser.step()
        with torch.no_grad():
            trained_on = ece_ew(new(x).numpy(), task.y_cal)
            other = ece_ew(new(fresh).numpy(), task.y_test)
        results.append(f"{name} {trained_on:.3f} / {other:.3f}")
    before = ece_ew(hcal.softmax(task.logits_test), task.y_test)
    return Demonstration(
        2,
        "a small binned error is necessary, not sufficient",
        "a monotone network (the map of DIAG) trained 150 epochs on 1000 rows, ECE of its own / "
        f"of fresh rows: trained on {', on '.join(results)}; before {before:.3f}. {_wave()}",
        "windows move with every event, so no edge can be learned; the pooled loss is itself only "
        "necessary",
    )


def _binned(probs: Any, y: Any) -> Any:
    """ECE^ew: differentiable in the confidences, blind to their bins."""
    import torch

    conf, label = probs.max(dim=1)
    which = (conf.detach() * 15).long().clamp(0, 14)
    hit = (label == y).to(conf.dtype)
    gap = torch.zeros(15, dtype=conf.dtype).index_add(0, which, conf - hit)
    return gap.abs().sum() / len(y)


def _wave() -> str:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1.0, 40_000)
    wave = np.sin(2 * np.pi * 15 * p)
    true = np.clip(p + 0.1 * wave, 0, 1)
    both = np.stack([1 - p, p], axis=1)
    y = (rng.random(len(p)) < true).astype(np.int64)
    return (
        f"A truth that waves with the period of the bins: ECE {ece_ew(both, y):.3f} in 15 bins, "
        f"{ece_ew(both, y, bins=60):.3f} in 60"
    )


def ideal_only() -> Demonstration:
    """3: kernel and cumulated errors of predictions that all err by exactly 0.05."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.55, 0.95, 20_000)
    results = []
    alternating = np.sign(np.sin(2 * np.pi * p / 0.1))
    signs = {"one direction": np.ones_like(p), "alternating": alternating}
    for words, sign in signs.items():
        y = (rng.random(len(p)) < p - 0.05 * sign).astype(np.int64)
        both = np.stack([1 - p, p], axis=1)
        canonical = hce(both, y, events="top-label")
        values = (mmce(both, y), ks(both, y), canonical)
        results.append(f"{words}: MMCE {values[0]:.3f}, KS {values[1]:.3f}, HCE {values[2]:.3f}")
    return Demonstration(
        3,
        "forms of ideal calibration say nothing of imperfect ones",
        f"every prediction wrong by 0.05: {'; '.join(results)}",
        "the window error is in units of probability",
    )


def level_errors(world: World) -> dict[str, float]:
    """Return the exact top-label, class-wise and canonical error of a world.

    Examples
    --------
    >>> level_errors(World(np.ones(1), np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])))
    {'top-label': 0.25, 'class-wise': 0.25, 'canonical': 0.25}
    """
    predicted = world.predicted
    true = world.true
    top = predicted.argmax(axis=1)[:, None]
    p, mu = (np.take_along_axis(a, top, axis=1) for a in (predicted, true))
    columns = [[c] for c in range(predicted.shape[1])]
    of_classes = []
    for c in columns:
        of_classes.append(conditional_error(world, predicted[:, c], true[:, c], predicted[:, c]))
    return {
        "top-label": conditional_error(world, p, mu, p),
        "class-wise": max(of_classes),
        "canonical": conditional_error(world, predicted, true, predicted),
    }


def non_canonical() -> Demonstration:
    """4: calibrated in every class and in the top label, and not canonically (Vaicenavicius et al. 2019)."""
    tenths = [[1, 3, 6], [1, 6, 3], [3, 1, 6], [3, 6, 1], [6, 1, 3], [6, 3, 1]]
    predicted = np.array(tenths, dtype=np.float64) / 10
    tenths = [[2, 2, 6], [0, 7, 3], [2, 2, 6], [4, 5, 1], [7, 0, 3], [5, 4, 1]]
    true = np.array(tenths, dtype=np.float64) / 10
    levels = level_errors(World(np.full(6, 1 / 6), true, predicted))
    errors = ", ".join(f"{k} {v:.2f}" for k, v in levels.items())
    return Demonstration(
        4,
        "top-label and class-wise are weaker than canonical",
        f"six predictions of three classes, exact errors: {errors}",
        "the definition is canonical; the pooled loss that is trained sees none of this",
    )


def dimension() -> Demonstration:
    """5: a kernel estimate of the error of the whole vector beside the error itself."""
    results = []
    for k in (2, 10, 100):
        task = make_synthetic("temperature", n_classes=k, n_cal=2000, n_test=10)
        probs = hcal.softmax(task.logits_cal)
        squares = (probs - task.true_cal) ** 2
        error = float(squares.sum(axis=1).mean())
        results.append(f"K = {k}: {dkde_ce(probs, task.y_cal):.3f} for {error:.3f}")
    return Demonstration(
        5,
        "estimates in K dimensions need rows without end",
        "2000 rows of a network that is too sure, DKDE-CE for the squared error that it "
        f"estimates: {', '.join(results)}",
        "its windows are one-dimensional; the price is #4",
    )


def assumptions() -> Demonstration:
    """6: one slope for log-odds that are wrong in a curved way."""
    results = []
    for name in ("platt", "quadratic", "smooth_spline", "h"):
        rng = np.random.default_rng(0)
        z, y = _curved(3000, rng)
        fresh, y_fresh = _curved(3000, rng)
        results.append(f"{name} {ece_ew(_fitted(name, z, y).predict_proba(fresh), y_fresh):.3f}")
    return Demonstration(
        6,
        "assumed distributions",
        f"log-odds that exaggerate what is large, ECE on fresh rows: {', '.join(results)}",
        "the objective assumes none; the map that it trains does restrict",
    )


def _curved(n: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.int64]]:
    evidence = rng.normal(size=n) * 1.5
    rate = 1 / (1 + np.exp(-evidence))
    y = (rng.random(n) < rate).astype(np.int64)
    exaggerated = np.sign(evidence) * evidence**2
    return np.stack([np.zeros(n), exaggerated], axis=1), y


def settings() -> Demonstration:
    """7: the number of bins that is best differs from task to task."""
    results = []
    for n in (300, 3000):
        task = make_synthetic("temperature", n_classes=2, n_cal=n, n_test=4000)
        scores = {}
        for bins in (3, 10, 30):
            scores[bins] = _nll(hcal.make_calibrator("hb", bins=bins), task)
        results.append(f"{n} rows: " + ", ".join(f"{v:.3f} ({b} bins)" for b, v in scores.items()))
    change = sensitivity.largest_change(read_rows(sensitivity.FILE), "window")
    return Demonstration(
        7,
        "settings that have to be guessed",
        f"NLL of histogram binning, {'; '.join(results)}",
        f"M from 50 to 1000 moves the top-label error of two networks by at most {change:.0%} "
        "(three maps, results/sensitivity.csv)",
    )


def unit_measure() -> Demonstration:
    """8: one-vs-rest curves do not sum to 1, and dividing by the sum undoes part of the calibration."""
    from sklearn.isotonic import IsotonicRegression

    task = make_synthetic("class_bias", n_classes=10, n_cal=3000, n_test=10_000)
    cal = hcal.softmax(task.logits_cal)
    test = hcal.softmax(task.logits_test)
    columns = []
    for c in range(10):
        isotonic = IsotonicRegression(out_of_bounds="clip").fit(cal[:, c], task.y_cal == c)
        columns.append(isotonic.predict(test[:, c]))
    curves = np.stack(columns, axis=1)
    total = curves.sum(axis=1)
    frequency = np.bincount(task.y_test, minlength=10) / len(task.y_test)
    before = float(np.abs(curves.mean(axis=0) - frequency).mean())
    divided = curves / total[:, None]
    after = float(np.abs(divided.mean(axis=0) - frequency).mean())
    return Demonstration(
        8,
        "one curve a class does not sum to 1",
        f"isotonic regression of 10 classes: sums from {total.min():.2f} to {total.max():.2f}; gap "
        f"between the share stated and the share seen of a class {before:.4f}, after dividing by "
        f"the sum {after:.4f}",
        "a softmax after the map: rows sum to 1",
    )


def accuracy() -> Demonstration:
    """9: how many argmax change."""
    task = make_synthetic("temperature", n_classes=10, n_cal=1000, n_test=5000)
    top = task.logits_test.argmax(axis=1)
    results = []
    for name in ("hb", "iso", "vs", "ts", "ec"):
        probs = _fitted(name, task.logits_cal, task.y_cal).predict_proba(task.logits_test)
        results.append(f"`{name}` {int((probs.argmax(axis=1) != top).sum())}")
    return Demonstration(
        9,
        "accuracy is not kept",
        f"argmax changed in 5000 rows: {', '.join(results)}",
        "increasing maps keep the order; so does `ts`",
    )


def applicability() -> Demonstration:
    """10: scores from anywhere, here the votes of 50 trees with exact zeros, and no model at all."""
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.full(4, 0.5), size=4000)
    sharp = true**1.5
    shares = sharp / sharp.sum(1, keepdims=True)
    votes = np.stack([rng.multinomial(50, share) for share in shares]) / 50
    y = labels(true, rng)
    cal = _fitted("svs", votes[:2000], y[:2000], input="probs")
    after = hcal.metrics.nll(cal.predict_proba(votes[2000:]), y[2000:])
    floored = np.maximum(votes[2000:], 1e-3)
    normalised = floored / floored.sum(axis=1, keepdims=True)
    before = hcal.metrics.nll(normalised, y[2000:])
    return Demonstration(
        10,
        "tied to a kind of network or its training",
        f"votes of 50 trees, no model at hand: NLL {before:.3f} (zeros as 0.001), `svs` "
        f"{after:.3f}",
        "true of every method here: they read scores",
    )


def _log_probs(logits: Array) -> Array:
    from hcal.numerics import log_softmax

    return np.asarray(log_softmax(logits))


def _fitted(name: str, scores: Array, y: NDArray[np.int64], **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a fit says of itself is not the subject
        return hcal.make_calibrator(name, **options).fit(scores, y)


def _nll(calibrator: Any, task: SyntheticTask) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probs = calibrator.fit(task.logits_cal, task.y_cal).predict_proba(task.logits_test)
    return float(hcal.metrics.nll(probs, task.y_test))


#: In the paper's order.
DEMONSTRATIONS: Final[tuple[Callable[[], Demonstration], ...]] = (
    no_link,
    binned_training,
    ideal_only,
    non_canonical,
    dimension,
    assumptions,
    settings,
    unit_measure,
    accuracy,
    applicability,
)


def table(rows: list[Demonstration]) -> str:
    """Return the demonstrations as a Markdown table."""
    lines = ["| # | the paper's limitation | shown here | and h-calibration |", "|---|---|---|---|"]
    lines += [f"| {r.number} | {r.limitation} | {r.result} | {r.of_h} |" for r in rows]
    return "\n".join(lines)


def pooled_table() -> str:
    """Return the counter-example to the pooled objective as a Markdown table, indented for its list."""
    from studies.theory_more import check_pooled_is_blind

    check = check_pooled_is_blind()
    lines = ["| " + " | ".join(check.columns) + " |", "|" + "---|" * len(check.columns)]
    for name, *values in check.rows:
        cells = [f"{value:.4f}" for value in values]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join("    " + line for line in lines)


def between(text: str, marks: tuple[str, str], new: str) -> str:
    """Return a page with what stands between two marks replaced.

    Examples
    --------
    >>> between("a <x>old</x>", ("<x>", "</x>"), "new")
    'a <x>new</x>'
    """
    begin, end = marks
    return f"{text.split(begin)[0]}{begin}{new}{end}{text.split(end)[1]}"


def write_page(path: Path = PAGE) -> None:
    """Run all demonstrations and put their tables into the page."""
    from studies.drawing import write_text

    text = between(path.read_text(), MARKS, f"\n{table([d() for d in DEMONSTRATIONS])}\n")
    write_text(path, between(text, POOLED_MARKS, f"\n\n{pooled_table()}\n\n    "))


if __name__ == "__main__":
    write_page()
